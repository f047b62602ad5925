#include "engine/requests/control_vector.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace espalier {
namespace {

Result<int32_t> layer_of(int32_t stated, int32_t num_layers) {
  const int32_t layer = stated < 0 ? stated + num_layers : stated;
  if (layer >= 0 && layer < num_layers) return layer;
  return fail(invalid_argument(
      "control_vector.layers holds {}, but must hold numbers in [0, {}], or from -{} to -1", stated,
      num_layers - 1, num_layers));
}

}  // namespace

Result<ControlUse> resolve_control(const GenerateRequest& request, const ModelInfo& info) {
  if (!request.control_vector) return ControlUse();
  const ControlRequest& stated = *request.control_vector;
  const auto found = std::ranges::find(info.control_vectors, stated.name);
  if (info.control_vectors.empty())
    return fail(error(StatusCode::kFailedPrecondition,
                      "control_vector is '{}', but the server has none: start it with "
                      "--control-vector NAME=PATH",
                      stated.name));
  if (found == info.control_vectors.end())
    return fail(invalid_argument("control_vector is '{}', but the server has {}", stated.name,
                                 fmt::join(info.control_vectors, ", ")));
  if (!std::isfinite(stated.scale))
    return fail(invalid_argument("control_vector.scale must be a finite number"));
  ControlUse use{.index = static_cast<int32_t>(found - info.control_vectors.begin()),
                 .scale = stated.scale};
  ESP_ASSIGN_OR_RETURN(use.first_layer, layer_of(stated.first_layer, info.num_layers));
  ESP_ASSIGN_OR_RETURN(use.last_layer, layer_of(stated.last_layer, info.num_layers));
  if (use.first_layer > use.last_layer)
    return fail(invalid_argument("control_vector.layers is [{}, {}]: the first comes first",
                                 stated.first_layer, stated.last_layer));
  return use.scale == 0 ? ControlUse() : use;
}

// As namespace_of_adapter()'s, whose marks have a digit or a zero byte behind the first byte.
std::string namespace_of_control(const ControlUse& use, std::string_view cache_namespace) {
  if (!use.any()) return std::string(cache_namespace);
  std::string out(1, '\0');
  out += fmt::format("v{}:{:x}:{}:{}", use.index, std::bit_cast<uint32_t>(use.scale),
                     use.first_layer, use.last_layer);
  out += '\0';
  return out.append(cache_namespace);
}

}  // namespace espalier
