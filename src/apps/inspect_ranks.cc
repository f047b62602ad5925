#include "apps/inspect_ranks.h"

#include <fmt/format.h>

#include <numeric>

#include "models/model_plan.h"
#include "models/program/partition.h"
#include "models/program/stages.h"

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
    share.has_slots = !layer.experts->slots.empty();
    share.num_expert_features = layer.experts->expert.intermediate_size;
  }
  return out;
}

Result<std::vector<StageShare>> share_among_stages(const ModelLoadOptions& options, int32_t pp_size,
                                                   program::StageBalance balance) {
  std::vector<StageShare> out;
  if (pp_size == 1) return out;
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  ESP_RETURN_IF_ERROR(program::check_stages(plan.spec, pp_size));
  const program::StageCosts costs = program::stage_costs(plan.spec, balance);
  const double all =
      std::accumulate(costs.layers.begin(), costs.layers.end(), costs.embedding + costs.head);
  for (const DecoderSpec& spec : program::divide_layers(plan.spec, pp_size, balance)) {
    StageShare& share = out.emplace_back();
    share.first_layer = spec.stage.first_layer;
    share.num_layers = static_cast<int32_t>(spec.layers.size());
    share.embeds = spec.stage.embeds;
    share.samples = spec.stage.samples;
    const auto first = costs.layers.begin() + share.first_layer;
    const double cost =
        std::accumulate(first, first + share.num_layers,
                        (share.embeds ? costs.embedding : 0) + (share.samples ? costs.head : 0));
    share.of_step = cost / all;
  }
  return out;
}

std::string describe(const StageShare& share) {
  const int32_t last = share.first_layer + share.num_layers - 1;
  const std::string layers = share.num_layers == 1
                                 ? fmt::format("layer {}", last)
                                 : fmt::format("layers {} to {}", share.first_layer, last);
  return fmt::format("{}{}{}, {:.1f} % of a step", share.embeds ? "embedding, " : "", layers,
                     share.samples ? ", head" : "", 100 * share.of_step);
}

std::string describe(const RankShare& share) {
  std::string out =
      fmt::format("{} heads, {} of keys and values", share.num_heads, share.num_kv_heads);
  if (share.num_features > 0) out += fmt::format(", {} features of an MLP", share.num_features);
  if (share.num_experts > 0)
    out += fmt::format(", {} {} to {} with {} features",
                       share.has_slots ? "experts in slots" : "experts", share.first_expert,
                       share.first_expert + share.num_experts - 1, share.num_expert_features);
  return out;
}

boost::json::array stages_json(const std::vector<StageShare>& shares) {
  boost::json::array out;
  for (const StageShare& share : shares)
    out.push_back({{"first_layer", share.first_layer},
                   {"num_layers", share.num_layers},
                   {"embeds", share.embeds},
                   {"samples", share.samples},
                   {"of_step", share.of_step}});
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
