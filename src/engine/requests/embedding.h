// Models that make a vector of a text: what may be asked of them, and how the vector is handed out.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/requests/request.h"
#include "models/model.h"

namespace espalier {

// kFailedPrecondition where a vector is requested of a model that generates, or the other way
// round; kInvalidArgument for dimensions that there are not.
Status check_use(const GenerateRequest& request, const ModelInfo& info);

// The first `dimensions` numbers (0: all), then of length 1 where the model's vectors are.
void shape_embedding(std::vector<float>& vector, const PooledInfo& info, int32_t dimensions);

}  // namespace espalier
