#include "engine/requests/hidden_states.h"

#include <algorithm>

namespace espalier {

Result<std::vector<int32_t>> resolve_hidden_layers(const GenerateRequest& request,
                                                   const ModelInfo& info) {
  if (!request.return_hidden_states) {
    if (request.hidden_states_layers.empty()) return std::vector<int32_t>();
    return fail(invalid_argument(
        "hidden_states_layers is there without return_hidden_states: set that to true"));
  }
  if (!info.returns_hidden_states)
    return fail(error(StatusCode::kFailedPrecondition,
                      "return_hidden_states is true, but the server does not return them: start it "
                      "with --enable-return-hidden-states"));
  if (request.embed)
    return fail(invalid_argument("a request for a vector returns no hidden states"));
  std::vector<int32_t> layers = request.hidden_states_layers;
  if (layers.empty()) layers.push_back(-1);
  for (int32_t& layer : layers) {
    const int32_t stated = layer;
    if (layer < 0) layer += info.num_layers + 1;
    if (layer < 0 || layer > info.num_layers)
      return fail(invalid_argument(
          "hidden_states_layers holds {}, but must hold numbers in [0, {}] (0: the embeddings, {}: "
          "behind the final norm), or from -{} to -1",
          stated, info.num_layers, info.num_layers, info.num_layers + 1));
  }
  for (const int32_t layer : layers)
    if (std::ranges::count(layers, layer) > 1)
      return fail(invalid_argument(
          "hidden_states_layers holds layer {} twice: name each layer once", layer));
  return layers;
}

}  // namespace espalier
