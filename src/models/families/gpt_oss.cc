// gpt-oss: windows in every other layer, attention sinks, biases, and experts with a clamped
// SwiGLU, all experts of a layer in one tensor (mostly in MXFP4). Source: OpenAI 2025, gpt-oss
// model card; transformers, models/gpt_oss.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_gpt_oss_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec,
                       read_llama_like(config, {.head_dim = 64, .may_be_mxfp4 = true}));
  ESP_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", true));
  set_biases(spec, bias, bias, false);

  ExpertsSpec experts;
  ESP_ASSIGN_OR_RETURN(experts.router.num_experts, read_num_experts(config));
  const char* top_k =
      config.has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
  ESP_ASSIGN_OR_RETURN(experts.router.top_k, read_size(config, top_k));
  experts.router.normalise = true;
  experts.router_bias = true;
  experts.expert = spec.layers[0].mlp;
  experts.expert.bias = true;
  experts.expert.activation = kernels::Activation::kClampedSwiglu;
  ESP_ASSIGN_OR_RETURN(experts.expert.activation_limit,
                       read_positive_or(config, "swiglu_limit", 7));
  ESP_ASSIGN_OR_RETURN(const double alpha, config.number_or("swiglu_alpha", 1.702));
  if (alpha != 1.702) return fail(config.field_error("swiglu_alpha", "is known as 1.702 only"));

  ESP_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 128, 1, 1 << 30));
  ESP_ASSIGN_OR_RETURN(std::vector<bool> sliding, read_layer_types(config, spec.layers.size()));
  for (size_t i = sliding.size(); i < spec.layers.size(); ++i) sliding.push_back(i % 2 == 0);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.experts = experts;
    layer.attention.sinks = true;
    if (sliding[i]) layer.attention.sliding_window = static_cast<int32_t>(window);
  }
  spec.names.router = "model.layers.{}.mlp.router";
  spec.names.fused_gate_up = "model.layers.{}.mlp.experts.gate_up_proj";
  spec.names.fused_down = "model.layers.{}.mlp.experts.down_proj";
  spec.names.experts = config.has("quantization_config") ? WeightNames::Experts::kFusedMxfp4
                                                         : WeightNames::Experts::kFused;
  // Of a GGUF: a tensor for each expert's gate, up and down.
  ESP_ASSIGN_OR_RETURN(const bool separate, config.boolean_or("separate_experts", false));
  if (separate) spec.names.experts = WeightNames::Experts::kEach;
  return spec;
}

}  // namespace espalier
