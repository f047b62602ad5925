// Qwen 1.5 and 2 with experts: Qwen 2 whose MLPs are experts and one that all tokens pass, gated.
// Source: transformers, models/qwen2_moe.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_qwen2_moe_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_qwen2_spec(config));
  ESP_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("qkv_bias", true));
  set_biases(spec, bias, false, false);
  ExpertsSpec experts;
  ESP_ASSIGN_OR_RETURN(experts.router.num_experts, read_num_experts(config));
  ESP_ASSIGN_OR_RETURN(experts.router.top_k, read_size(config, "num_experts_per_tok"));
  ESP_ASSIGN_OR_RETURN(experts.router.normalise, config.boolean_or("norm_topk_prob", false));
  experts.expert = spec.layers[0].mlp;
  ESP_ASSIGN_OR_RETURN(experts.expert.intermediate_size,
                       read_size(config, "moe_intermediate_size"));
  experts.shared = experts.expert;
  ESP_ASSIGN_OR_RETURN(experts.shared->intermediate_size,
                       read_size(config, "shared_expert_intermediate_size"));
  experts.shared_gate = true;
  spec.names.shared_expert = "model.layers.{}.mlp.shared_expert";
  ESP_RETURN_IF_ERROR(set_qwen_experts(config, experts, spec));
  return spec;
}

}  // namespace espalier
