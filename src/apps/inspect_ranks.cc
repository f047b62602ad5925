#include "apps/inspect_ranks.h"

#include <fmt/format.h>

#include "models/model_plan.h"
#include "models/program/partition.h"

namespace espalier::apps {

Result<std::vector<RankShare>> share_among_ranks(const ModelLoadOptions& options, int32_t tp_size) {
  std::vector<RankShare> out;
  if (tp_size == 1) return out;
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  ESP_RETURN_IF_ERROR(program::check_partition(plan.spec, tp_size));
  for (int32_t rank = 0; rank < tp_size; ++rank) {
    const LayerSpec layer = program::local_spec(plan.spec, {rank, tp_size}).layers.back();
    RankShare& share = out.emplace_back();
    share.num_heads = layer.attention.num_heads;
    share.num_kv_heads = layer.attention.num_kv_heads;
    if (!layer.experts) {
      share.num_features = layer.mlp.intermediate_size;
      continue;
    }
    if (layer.experts->shared) share.num_features = layer.experts->shared->intermediate_size;
    share.first_expert = layer.experts->first_local;
    share.num_experts = layer.experts->num_local();
    share.num_expert_features = layer.experts->expert.intermediate_size;
  }
  return out;
}

std::string describe(const RankShare& share) {
  std::string out =
      fmt::format("{} heads, {} of keys and values", share.num_heads, share.num_kv_heads);
  if (share.num_features > 0) out += fmt::format(", {} features of an MLP", share.num_features);
  if (share.num_experts > 0)
    out += fmt::format(", experts {} to {} with {} features", share.first_expert,
                       share.first_expert + share.num_experts - 1, share.num_expert_features);
  return out;
}

boost::json::array ranks_json(const std::vector<RankShare>& shares) {
  boost::json::array out;
  for (const RankShare& share : shares)
    out.push_back({{"num_heads", share.num_heads},
                   {"num_kv_heads", share.num_kv_heads},
                   {"num_features", share.num_features},
                   {"first_expert", share.first_expert},
                   {"num_experts", share.num_experts},
                   {"num_expert_features", share.num_expert_features}});
  return out;
}

}  // namespace espalier::apps
