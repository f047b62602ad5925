// Which hidden states a request gets (GenerateRequest::return_hidden_states).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/requests/request.h"
#include "models/model.h"

namespace espalier {

// As SamplingSpec::hidden_layers. kFailedPrecondition where the model was loaded without them;
// kInvalidArgument names a layer that there is not, or one that is listed twice.
Result<std::vector<int32_t>> resolve_hidden_layers(const GenerateRequest& request,
                                                   const ModelInfo& info);

}  // namespace espalier
