// Qwen 1.5, 2 and 2.5: Llama with biases on q, k and v.
// Source: transformers, models/qwen2.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_qwen2_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_llama_like(config));
  for (LayerSpec& layer : spec.layers) layer.attention.qkv_bias = true;
  ESP_RETURN_IF_ERROR(read_qwen_windows(config, spec));
  return spec;
}

}  // namespace espalier
