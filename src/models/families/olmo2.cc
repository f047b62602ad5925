// OLMo 2: norms behind the blocks instead of before them, and over all of q and of k.
// Source: OLMo 2 (2024), section 3; transformers, models/olmo2.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_olmo2_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_llama_like(config));
  ESP_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  set_biases(spec, bias, bias, false);
  for (LayerSpec& layer : spec.layers) {
    layer.input_norm = layer.post_attention_norm = std::nullopt;
    layer.attention_output_norm = layer.mlp_output_norm = spec.final_norm;
    layer.attention.qk_norm = spec.final_norm;
    layer.attention.qk_norm_scope = AttentionSpec::NormScope::kAll;
  }
  spec.names.attention_output_norm = "model.layers.{}.post_attention_layernorm";
  spec.names.mlp_output_norm = "model.layers.{}.post_feedforward_layernorm";
  return spec;
}

}  // namespace espalier
