// Qwen 3, the dense sizes: q and k are normalised over each head before they are rotated, and
// head_dim is a field of its own.
// Source: transformers, models/qwen3.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {
Result<DecoderSpec> make_qwen3_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_llama_like(config, {.head_dim = 128}));
  ESP_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  set_biases(spec, bias, bias, false);
  for (LayerSpec& layer : spec.layers) layer.attention.qk_norm = spec.final_norm;
  ESP_RETURN_IF_ERROR(read_qwen_windows(config, spec));
  return spec;
}

}  // namespace espalier
