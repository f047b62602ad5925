// DeepSeek V2 and V3 (and R1, which is V3): latent attention, and experts in groups beside shared
// ones. V2 scores experts by a softmax; V3 each by a sigmoid, with a correction for the selection.
// Source: DeepSeek-V2 (2024), sections 2.1 and 2.2; DeepSeek-V3 (2024), section 2.1; transformers,
// models/deepseek_v2 and models/deepseek_v3.
#include <cmath>

#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {
namespace {

// Peng et al. 2023, equation 22, as DeepSeek applies it to the scores.
Result<double> score_mscale(const JsonObject& config) {
  const char* field = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.has(field)) return 1.0;
  ESP_ASSIGN_OR_RETURN(const JsonObject rope, config.object(field));
  ESP_ASSIGN_OR_RETURN(const double all, rope.number_or("mscale_all_dim", 0));
  ESP_ASSIGN_OR_RETURN(const double factor, rope.number_or("factor", 1));
  if (all == 0 || factor <= 1) return 1.0;
  return 0.1 * all * std::log(factor) + 1;
}

Status read_latent_attention(const JsonObject& config, DecoderSpec& spec) {
  LatentSpec latent;
  if (config.has("q_lora_rank")) {
    ESP_ASSIGN_OR_RETURN(latent.query_rank, read_size(config, "q_lora_rank"));
  }
  ESP_ASSIGN_OR_RETURN(latent.rank, read_size(config, "kv_lora_rank"));
  ESP_ASSIGN_OR_RETURN(latent.nope_dim, read_size(config, "qk_nope_head_dim"));
  ESP_ASSIGN_OR_RETURN(latent.rope_dim, read_size(config, "qk_rope_head_dim"));
  ESP_ASSIGN_OR_RETURN(latent.value_dim, read_size(config, "v_head_dim"));
  latent.norm = {.epsilon = 1e-6f};  // whatever rms_norm_eps says
  ESP_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  if (bias) return config.field_error("attention_bias", "is known as false only");
  ESP_ASSIGN_OR_RETURN(const double mscale, score_mscale(config));
  ESP_ASSIGN_OR_RETURN(const bool interleaved, config.boolean_or("rope_interleave", true));
  ESP_ASSIGN_OR_RETURN(RopeSpec rope, read_rope(config, latent.rope_dim, spec.context_length));
  rope.pairing = interleaved ? RopeSpec::Pairing::kInterleaved : RopeSpec::Pairing::kHalves;
  spec.ropes = {rope};
  const double query_dim = latent.nope_dim + latent.rope_dim;
  for (LayerSpec& layer : spec.layers) {
    AttentionSpec& a = layer.attention;
    a.latent = latent;
    a.num_kv_heads = 1;
    a.head_dim = latent.rank + latent.rope_dim;
    a.scale = static_cast<float>(mscale * mscale / std::sqrt(query_dim));
  }
  return Status();
}

Result<ExpertsSpec> read_experts(const JsonObject& config, const MlpSpec& dense) {
  ExpertsSpec experts;
  ESP_ASSIGN_OR_RETURN(experts.router.num_experts, read_num_experts(config));
  ESP_ASSIGN_OR_RETURN(experts.router.top_k, read_size(config, "num_experts_per_tok"));
  ESP_ASSIGN_OR_RETURN(experts.router.scale, read_positive_or(config, "routed_scaling_factor", 1));
  experts.expert = dense;
  ESP_ASSIGN_OR_RETURN(experts.expert.intermediate_size,
                       read_size(config, "moe_intermediate_size"));
  ESP_ASSIGN_OR_RETURN(const int64_t shared, config.integer_or("n_shared_experts", 0, 0, 1024));
  if (shared > 0) {
    experts.shared = experts.expert;
    experts.shared->intermediate_size *= static_cast<int32_t>(shared);
  }
  return experts;
}

Status read_groups(const JsonObject& config, kernels::RouterSpec& router) {
  ESP_ASSIGN_OR_RETURN(router.num_groups, read_size_or(config, "n_group", 1));
  ESP_ASSIGN_OR_RETURN(router.top_groups, read_size_or(config, "topk_group", router.num_groups));
  return Status();
}

Status set_experts(const JsonObject& config, const ExpertsSpec& experts, DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const int64_t dense, config.integer_or("first_k_dense_replace", 0, 0));
  ESP_ASSIGN_OR_RETURN(const int64_t step, config.integer_or("moe_layer_freq", 1, 1));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    if (index >= dense && index % step == 0) spec.layers[i].experts = experts;
  }
  // Layers beyond the last predict further tokens; they are not run.
  ESP_ASSIGN_OR_RETURN(const int64_t extra, config.integer_or("num_nextn_predict_layers", 0, 0));
  for (int64_t i = 0; i < extra; ++i) {
    spec.names.unused_prefixes.push_back(
        layer_name("model.layers.{}.", static_cast<int32_t>(std::ssize(spec.layers) + i)));
  }
  return Status();
}

}  // namespace

Result<DecoderSpec> make_deepseek_v2_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_llama_like(config));
  ESP_RETURN_IF_ERROR(read_latent_attention(config, spec));
  ESP_ASSIGN_OR_RETURN(ExpertsSpec experts, read_experts(config, spec.layers[0].mlp));
  ESP_ASSIGN_OR_RETURN(const std::string method, config.string_or("topk_method", "greedy"));
  if (method == "group_limited_greedy") {
    ESP_RETURN_IF_ERROR(read_groups(config, experts.router));
  } else if (method != "greedy") {
    return fail(config.field_error("topk_method", "is known as greedy and group_limited_greedy"));
  }
  ESP_ASSIGN_OR_RETURN(const bool normalise, config.boolean_or("norm_topk_prob", false));
  if (normalise) return fail(config.field_error("norm_topk_prob", "is known as false only"));
  ESP_RETURN_IF_ERROR(set_experts(config, experts, spec));
  return spec;
}

Result<DecoderSpec> make_deepseek_v3_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_llama_like(config));
  ESP_RETURN_IF_ERROR(read_latent_attention(config, spec));
  ESP_ASSIGN_OR_RETURN(ExpertsSpec experts, read_experts(config, spec.layers[0].mlp));
  experts.router.scoring = kernels::RouterSpec::Scoring::kSigmoid;
  experts.router.group_by_two = true;
  experts.router.correction = true;
  ESP_ASSIGN_OR_RETURN(experts.router.normalise, config.boolean_or("norm_topk_prob", true));
  ESP_RETURN_IF_ERROR(read_groups(config, experts.router));
  ESP_RETURN_IF_ERROR(set_experts(config, experts, spec));
  return spec;
}

}  // namespace espalier
