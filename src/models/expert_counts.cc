#include "models/expert_counts.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace espalier {

void add_counts(ExpertTable& to, const ExpertTable& from) {
  if (to.empty()) to.resize(from.size());
  for (size_t layer = 0; layer < from.size(); ++layer) {
    to[layer].resize(from[layer].size());
    for (size_t i = 0; i < from[layer].size(); ++i) to[layer][i] += from[layer][i];
  }
}

ExpertTable difference(const ExpertTable& from, const ExpertTable& before) {
  ExpertTable out = from;
  for (size_t layer = 0; layer < before.size(); ++layer) {
    for (size_t i = 0; i < before[layer].size(); ++i) out[layer][i] -= before[layer][i];
  }
  return out;
}

void add_counts(ExpertTotals& to, const ExpertTotals& from) {
  add_counts(to.tokens, from.tokens);
  add_counts(to.of_groups, from.of_groups);
  to.num_moved += from.num_moved;
}

ExpertTotals difference(const ExpertTotals& from, const ExpertTotals& before) {
  return {.tokens = difference(from.tokens, before.tokens),
          .of_groups = difference(from.of_groups, before.of_groups),
          .num_moved = from.num_moved - before.num_moved};
}

namespace {

// Of all layers together, the largest number over the mean.
double busiest_over_mean(const ExpertTable& table) {
  double most = 0, mean = 0;
  for (const std::vector<int64_t>& layer : table) {
    const auto sum = static_cast<double>(std::accumulate(layer.begin(), layer.end(), int64_t{}));
    if (sum == 0) continue;
    most += static_cast<double>(*std::ranges::max_element(layer));
    mean += sum / static_cast<double>(layer.size());
  }
  return mean == 0 ? 1 : most / mean;
}

}  // namespace

ExpertBalance balance_of(const ExpertTotals& totals) {
  return {.over_experts = busiest_over_mean(totals.tokens),
          .over_groups = busiest_over_mean(totals.of_groups)};
}

int32_t ExpertPlaces::num_slots() const {
  size_t out = 0;
  for (const ExpertSlots& slots : layers) out = std::max(out, slots.size());
  return static_cast<int32_t>(out);
}

ExpertPlaces expert_places(const DecoderSpec& spec) {
  ExpertPlaces out{.num_groups = spec.expert_groups};
  for (const LayerSpec& layer : spec.layers) {
    ExpertSlots& slots = out.layers.emplace_back();
    if (!layer.experts) continue;
    out.num_experts = std::max(out.num_experts, layer.experts->router.num_experts);
    for (int32_t slot = 0; slot < layer.experts->num_slots(); ++slot)
      slots.push_back(layer.experts->expert_of(slot));
  }
  return out;
}

// One thread writes, so a load and a store are an addition.
void HostExpertTally::count(int32_t layer, std::span<const int32_t> slots) {
  std::atomic<int64_t>* const of_layer = counts_.data() + int64_t{layer} * num_slots_;
  for (const int32_t slot : slots) {
    std::atomic<int64_t>& count = of_layer[slot];
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

Status HostExpertTally::add_to(ExpertTable& table) const {
  for (size_t i = 0; i < counts_.size(); ++i) {
    const auto slots = static_cast<size_t>(num_slots_);
    table[i / slots][i % slots] += counts_[i].load(std::memory_order_relaxed);
  }
  return Status();
}

void ExpertCounts::add(std::shared_ptr<const ExpertTally> tally, ExpertPlaces places) {
  const std::lock_guard lock(mutex_);
  tallies_.push_back(std::move(tally));
  places_ = std::move(places);
}

Status ExpertCounts::begin() {
  const std::lock_guard lock(mutex_);
  ESP_ASSIGN_OR_RETURN(begin_, read_all());
  return Status();
}

Result<ExpertTotals> ExpertCounts::read() const {
  const std::lock_guard lock(mutex_);
  ESP_ASSIGN_OR_RETURN(const ExpertTotals now, read_all());
  return difference(now, begin_);
}

ExpertPlaces ExpertCounts::places() const {
  const std::lock_guard lock(mutex_);
  return places_;
}

Status ExpertCounts::move(std::span<const LayerSlots> layers, int64_t num_moved) {
  const std::lock_guard lock(mutex_);
  ESP_ASSIGN_OR_RETURN(const ExpertTable now, read_slots());
  add_slots(difference(now, slots_before_), before_);
  before_.num_moved += num_moved;
  slots_before_ = now;
  for (const LayerSlots& layer : layers)
    places_.layers[static_cast<size_t>(layer.layer)] = layer.slots;
  return Status();
}

// The lock is held in what follows.
Result<ExpertTable> ExpertCounts::read_slots() const {
  ExpertTable table(places_.layers.size(),
                    std::vector<int64_t>(static_cast<size_t>(places_.num_slots())));
  for (const auto& tally : tallies_) ESP_RETURN_IF_ERROR(tally->add_to(table));
  return table;
}

void ExpertCounts::add_slots(const ExpertTable& slots, ExpertTotals& to) const {
  const auto groups = static_cast<size_t>(places_.num_groups);
  to.tokens.resize(slots.size(), std::vector<int64_t>(static_cast<size_t>(places_.num_experts)));
  to.of_groups.resize(slots.size(), std::vector<int64_t>(groups));
  for (size_t layer = 0; layer < slots.size(); ++layer) {
    const ExpertSlots& experts = places_.layers[layer];
    for (size_t slot = 0; slot < experts.size(); ++slot) {
      const int64_t count = slots[layer][slot];
      to.tokens[layer][static_cast<size_t>(experts[slot])] += count;
      to.of_groups[layer][slot * groups / experts.size()] += count;
    }
  }
}

Result<ExpertTotals> ExpertCounts::read_all() const {
  ESP_ASSIGN_OR_RETURN(const ExpertTable now, read_slots());
  ExpertTotals out = before_;
  add_slots(difference(now, slots_before_), out);
  return out;
}

}  // namespace espalier
