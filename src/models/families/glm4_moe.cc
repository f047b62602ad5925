// GLM-4.5: attention as Qwen 3's, of which a part of each head is rotated, and experts as DeepSeek
// V3's (a sigmoid, a correction for the selection, groups, a shared expert) behind dense layers.
// Source: transformers, models/glm4_moe.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {
namespace {

Result<ExpertsSpec> read_glm_experts(const JsonObject& config, const MlpSpec& dense) {
  ExpertsSpec experts;
  kernels::RouterSpec& router = experts.router;
  router.scoring = kernels::RouterSpec::Scoring::kSigmoid;
  router.group_by_two = true;
  router.correction = true;
  ESP_ASSIGN_OR_RETURN(router.num_experts, read_num_experts(config));
  ESP_ASSIGN_OR_RETURN(router.top_k, read_size(config, "num_experts_per_tok"));
  ESP_ASSIGN_OR_RETURN(router.num_groups, read_size_or(config, "n_group", 1));
  ESP_ASSIGN_OR_RETURN(router.top_groups, read_size_or(config, "topk_group", router.num_groups));
  ESP_ASSIGN_OR_RETURN(router.normalise, config.boolean_or("norm_topk_prob", true));
  ESP_ASSIGN_OR_RETURN(router.scale, read_positive_or(config, "routed_scaling_factor", 1));
  experts.expert = dense;
  ESP_ASSIGN_OR_RETURN(experts.expert.intermediate_size,
                       read_size(config, "moe_intermediate_size"));
  ESP_ASSIGN_OR_RETURN(const int64_t shared, config.integer_or("n_shared_experts", 0, 0, 1024));
  if (shared == 0) return experts;
  experts.shared = experts.expert;
  experts.shared->intermediate_size *= static_cast<int32_t>(shared);
  return experts;
}

}  // namespace

Result<DecoderSpec> make_glm4_moe_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_llama_like(config));
  ESP_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  ESP_ASSIGN_OR_RETURN(const bool qk_norm, config.boolean_or("use_qk_norm", false));
  ESP_ASSIGN_OR_RETURN(const ExpertsSpec experts, read_glm_experts(config, spec.layers[0].mlp));
  ESP_ASSIGN_OR_RETURN(const int64_t dense, config.integer_or("first_k_dense_replace", 0, 0));
  set_biases(spec, bias, false, false);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    if (qk_norm) layer.attention.qk_norm = layer.input_norm;
    if (static_cast<int64_t>(i) >= dense) layer.experts = experts;
  }
  // Layers beyond the last predict further tokens; they are not run.
  ESP_ASSIGN_OR_RETURN(const int64_t extra, config.integer_or("num_nextn_predict_layers", 0, 0));
  for (int64_t i = 0; i < extra; ++i) {
    spec.names.unused_prefixes.push_back(
        layer_name("model.layers.{}.", static_cast<int32_t>(std::ssize(spec.layers) + i)));
  }
  return spec;
}

}  // namespace espalier
