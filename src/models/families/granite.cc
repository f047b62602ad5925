// Granite 3: Llama with multipliers on the embedding, the scores, the residuals and the logits.
// Source: transformers, models/granite.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_granite_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_llama_spec(config));
  ESP_ASSIGN_OR_RETURN(spec.embedding_scale, read_positive_or(config, "embedding_multiplier", 1));
  ESP_ASSIGN_OR_RETURN(spec.residual_scale, read_positive_or(config, "residual_multiplier", 1));
  ESP_ASSIGN_OR_RETURN(const float divisor, read_positive_or(config, "logits_scaling", 1));
  spec.logits_scale = 1 / divisor;
  ESP_ASSIGN_OR_RETURN(const float scale, read_positive_or(config, "attention_multiplier", 1));
  for (LayerSpec& layer : spec.layers) layer.attention.scale = scale;
  return spec;
}

}  // namespace espalier
