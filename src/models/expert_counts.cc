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

ExpertBalance balance_of(const ExpertTable& table, int32_t num_groups) {
  double most = 0, most_of_group = 0, mean = 0, mean_of_group = 0;
  for (const std::vector<int64_t>& experts : table) {
    const auto sum =
        static_cast<double>(std::accumulate(experts.begin(), experts.end(), int64_t{}));
    if (sum == 0) continue;
    most += static_cast<double>(*std::ranges::max_element(experts));
    mean += sum / static_cast<double>(experts.size());
    mean_of_group += sum / num_groups;
    const auto of_group = std::ssize(experts) / num_groups;
    int64_t busiest = 0;
    for (auto at = experts.begin(); at != experts.end(); at += of_group)
      busiest = std::max(busiest, std::accumulate(at, at + of_group, int64_t{}));
    most_of_group += static_cast<double>(busiest);
  }
  if (mean == 0) return {};
  return {.over_experts = most / mean, .over_groups = most_of_group / mean_of_group};
}

// One thread writes, so a load and a store are an addition.
void HostExpertTally::count(int32_t layer, std::span<const int32_t> experts) {
  std::atomic<int64_t>* const of_layer = counts_.data() + int64_t{layer} * num_experts_;
  for (const int32_t expert : experts) {
    std::atomic<int64_t>& count = of_layer[expert];
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

Status HostExpertTally::add_to(ExpertTable& table) const {
  for (size_t i = 0; i < counts_.size(); ++i) {
    const auto experts = static_cast<size_t>(num_experts_);
    table[i / experts][i % experts] += counts_[i].load(std::memory_order_relaxed);
  }
  return Status();
}

void ExpertCounts::add(std::shared_ptr<const ExpertTally> tally, int32_t num_layers,
                       int32_t num_experts) {
  const std::lock_guard lock(mutex_);
  tallies_.push_back(std::move(tally));
  num_layers_ = static_cast<size_t>(num_layers);
  num_experts_ = static_cast<size_t>(num_experts);
}

Status ExpertCounts::begin() {
  const std::lock_guard lock(mutex_);
  ESP_ASSIGN_OR_RETURN(begin_, read_all());
  return Status();
}

Result<ExpertTable> ExpertCounts::read() const {
  const std::lock_guard lock(mutex_);
  ESP_ASSIGN_OR_RETURN(const ExpertTable now, read_all());
  return difference(now, begin_);
}

// REQUIRES: the lock is held.
Result<ExpertTable> ExpertCounts::read_all() const {
  ExpertTable table(num_layers_, std::vector<int64_t>(num_experts_));
  for (const auto& tally : tallies_) ESP_RETURN_IF_ERROR(tally->add_to(table));
  return table;
}

}  // namespace espalier
