// Control vectors as requests name them. Pure functions, thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/requests/request.h"
#include "models/model.h"
#include "seams/control_use.h"

namespace espalier {

// Nothing (index -1) where the request names none, or scales it by 0. kInvalidArgument names what
// the model does not have, with what it has.
Result<ControlUse> resolve_control(const GenerateRequest& request, const ModelInfo& info);

// A cache key that only requests with this control have, for keys and values depend on it:
// `cache_namespace` itself where there is none. It is this process's own.
std::string namespace_of_control(const ControlUse& use, std::string_view cache_namespace);

}  // namespace espalier
