#include "models/expert_balancer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace espalier {
namespace {

PlacementShape shape_of(const ExpertPlaces& places, const ExpertSlots& slots) {
  return {.num_experts = places.num_experts,
          .num_slots = static_cast<int32_t>(slots.size()),
          .num_groups = places.num_groups};
}

// The busiest group over the mean of all, over all layers, if tokens come as they have.
double expected_balance(const ExpertPlaces& places, const ExpertTable& tokens) {
  double most = 0, mean = 0;
  for (size_t layer = 0; layer < tokens.size(); ++layer) {
    const ExpertSlots& slots = places.layers[layer];
    if (slots.empty()) continue;
    const std::vector<double> loads = group_loads(shape_of(places, slots), tokens[layer], slots);
    most += *std::ranges::max_element(loads);
    for (const double load : loads) mean += load / static_cast<double>(loads.size());
  }
  return mean == 0 ? 1 : most / mean;
}

}  // namespace

ExpertBalancer::ExpertBalancer(const RebalanceConfig& config, ExpertCounts& counts)
    : config_(config), counts_(counts) {}

Result<std::vector<LayerMove>> ExpertBalancer::next() {
  if (waiting_.empty() && ++num_steps_ < config_.num_iterations) return std::vector<LayerMove>();
  if (waiting_.empty()) ESP_RETURN_IF_ERROR(plan());
  std::vector<LayerMove> out;
  const ExpertPlaces places = counts_.places();
  while (!waiting_.empty() &&
         (config_.layers_per_chunk == 0 || std::ssize(out) < config_.layers_per_chunk)) {
    LayerSlots next = std::move(waiting_.back());
    waiting_.pop_back();
    const ExpertSlots& now = places.layers[static_cast<size_t>(next.layer)];
    const PlacementShape shape = shape_of(places, now);
    out.push_back({.layer = next.layer,
                   .shape = shape,
                   .slots = next.slots,
                   .copies = plan_copies(shape, now, next.slots)});
  }
  return out;
}

Status ExpertBalancer::plan() {
  num_steps_ = 0;
  ESP_ASSIGN_OR_RETURN(ExpertTotals totals, counts_.read());
  ExpertTotals window = difference(totals, seen_);
  seen_ = std::move(totals);
  for (std::vector<int64_t>& layer : window.tokens)  // below 0: counts have begun anew
    for (int64_t& count : layer) count = std::max<int64_t>(count, 0);
  const double balance = balance_of(window).over_groups;
  if (1 / balance > config_.utilization_max) return Status();
  ExpertPlaces places = counts_.places();
  for (auto layer = static_cast<int32_t>(places.layers.size()) - 1; layer >= 0; --layer) {
    ExpertSlots& slots = places.layers[static_cast<size_t>(layer)];
    if (slots.empty()) continue;
    ExpertSlots next = balanced_placement(shape_of(places, slots),
                                          window.tokens[static_cast<size_t>(layer)], slots);
    if (next == slots) continue;
    slots = next;
    waiting_.push_back({layer, std::move(next)});
  }
  if (!waiting_.empty()) {
    log_info("experts move layers={} busiest_group_over_mean={:.3f} expected={:.3f}",
             waiting_.size(), balance, expected_balance(places, window.tokens));
  }
  return Status();
}

Status ExpertBalancer::moved(std::span<const LayerMove> moves) {
  std::vector<LayerSlots> layers;
  int64_t num_copies = 0;
  for (const LayerMove& move : moves) {
    layers.push_back({move.layer, move.slots});
    for (const std::vector<SlotCopy>& step : move.copies) num_copies += std::ssize(step);
  }
  return counts_.move(layers, num_copies);
}

}  // namespace espalier
