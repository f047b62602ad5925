// Llama 2 and 3, and what shares their architecture: TinyLlama, SmolLM, Yi, DeepSeek-LLM.
// Source: transformers, models/llama.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_llama_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_llama_like(config));
  ESP_ASSIGN_OR_RETURN(const bool attention_bias, config.boolean_or("attention_bias", false));
  ESP_ASSIGN_OR_RETURN(const bool mlp_bias, config.boolean_or("mlp_bias", false));
  for (LayerSpec& layer : spec.layers) {
    layer.attention.qkv_bias = attention_bias;
    layer.attention.output_bias = attention_bias;
    layer.mlp.bias = mlp_bias;
  }
  return spec;
}

}  // namespace espalier
