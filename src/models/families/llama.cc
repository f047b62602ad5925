// Llama 2 and 3, and what shares their architecture: TinyLlama, SmolLM, Yi, DeepSeek-LLM.
// Source: transformers, models/llama.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_llama_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_llama_like(config));
  ESP_ASSIGN_OR_RETURN(const bool attention_bias, config.boolean_or("attention_bias", false));
  ESP_ASSIGN_OR_RETURN(const bool mlp_bias, config.boolean_or("mlp_bias", false));
  set_biases(spec, attention_bias, attention_bias, mlp_bias);
  return spec;
}

}  // namespace espalier
