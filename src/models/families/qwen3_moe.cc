// Qwen 3, the sizes with experts: Qwen 3 whose MLPs are experts chosen by a softmax.
// Source: transformers, models/qwen3_moe.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_qwen3_moe_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_qwen3_spec(config));
  ExpertsSpec experts;
  ESP_ASSIGN_OR_RETURN(experts.router.num_experts, read_num_experts(config));
  ESP_ASSIGN_OR_RETURN(experts.router.top_k, read_size(config, "num_experts_per_tok"));
  ESP_ASSIGN_OR_RETURN(experts.router.normalise, config.boolean_or("norm_topk_prob", false));
  experts.expert = spec.layers[0].mlp;
  ESP_ASSIGN_OR_RETURN(experts.expert.intermediate_size,
                       read_size(config, "moe_intermediate_size"));
  ESP_RETURN_IF_ERROR(set_qwen_experts(config, experts, spec));
  return spec;
}

}  // namespace espalier
