// Mixtral: Mistral whose MLPs are experts, weighed by a softmax over those chosen.
// Source: Jiang et al. 2024; transformers, models/mixtral.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_mixtral_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_mistral_spec(config));
  ExpertsSpec experts;
  ESP_ASSIGN_OR_RETURN(experts.router.num_experts, read_num_experts(config));
  ESP_ASSIGN_OR_RETURN(experts.router.top_k, read_size(config, "num_experts_per_tok"));
  experts.router.normalise = true;
  experts.expert = spec.layers[0].mlp;
  for (LayerSpec& layer : spec.layers) layer.experts = experts;
  const std::string moe = "model.layers.{}.block_sparse_moe.";
  spec.names.router = moe + "gate";
  spec.names.expert_gate = moe + "experts.{}.w1";
  spec.names.expert_up = moe + "experts.{}.w3";
  spec.names.expert_down = moe + "experts.{}.w2";
  return spec;
}

}  // namespace espalier
