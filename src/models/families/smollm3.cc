// SmolLM 3: Llama in which every fourth layer does not encode positions.
// Source: transformers, models/smollm3.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_smollm3_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_llama_spec(config));
  ESP_RETURN_IF_ERROR(read_qwen_windows(config, spec));
  if (config.has("no_rope_layers")) {  // for each layer 1 where there IS a rope
    ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> ropes, config.integers("no_rope_layers"));
    if (ropes.size() != spec.layers.size()) {
      return fail(config.field_error("no_rope_layers", "must have an entry for each layer"));
    }
    for (size_t i = 0; i < ropes.size(); ++i) {
      if (ropes[i] == 0) spec.layers[i].attention.rope.reset();
    }
    return spec;
  }
  ESP_ASSIGN_OR_RETURN(const int64_t interval, config.integer_or("no_rope_layer_interval", 4, 1));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if ((static_cast<int64_t>(i) + 1) % interval == 0) spec.layers[i].attention.rope.reset();
  }
  return spec;
}

}  // namespace espalier
