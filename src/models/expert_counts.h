// How many tokens each expert of each layer got: what shows how evenly experts, and the ranks that
// have some of them, are used. A model counts where ModelLoadOptions::expert_counts asks for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"

namespace espalier {

// [layers][experts]: (token, expert) pairs. Layers without experts have zeros.
using ExpertTable = std::vector<std::vector<int64_t>>;

// to += from, of one size or empty.
void add_counts(ExpertTable& to, const ExpertTable& from);
// What came to `from` since it was `before`, of one size or empty.
ExpertTable difference(const ExpertTable& from, const ExpertTable& before);

// The pairs of the busiest expert over the mean of all, and the same of groups of neighbours that
// ranks have; of all layers together, so that 1 is even. 1 where nothing was counted.
struct ExpertBalance {
  double over_experts = 1;
  double over_groups = 1;
};
// REQUIRES: num_groups divides the experts.
ExpertBalance balance_of(const ExpertTable& table, int32_t num_groups);

// What one device has counted. Thread-safe, also while steps run.
class ExpertTally {
 public:
  virtual ~ExpertTally() = default;
  // Adds its counts to `table`, which has room for them.
  virtual Status add_to(ExpertTable& table) const = 0;
};

// Of a model on the CPU: one thread counts, any thread reads.
class HostExpertTally final : public ExpertTally {
 public:
  HostExpertTally(int32_t num_layers, int32_t num_experts)
      : num_experts_(num_experts),
        counts_(static_cast<size_t>(num_layers) * static_cast<size_t>(num_experts)) {}
  // experts: of each pair.
  void count(int32_t layer, std::span<const int32_t> experts);
  Status add_to(ExpertTable& table) const override;

 private:
  const int32_t num_experts_;
  std::vector<std::atomic<int64_t>> counts_;  // [layers, experts]
};

// The tallies of all devices of a model. Thread-safe.
class ExpertCounts {
 public:
  // shared: the model writes to a tally and this reads it, whichever is destroyed first.
  void add(std::shared_ptr<const ExpertTally> tally, int32_t num_layers, int32_t num_experts);
  // Counts from here on: what a start has computed is left out.
  Status begin();
  Result<ExpertTable> read() const;

 private:
  Result<ExpertTable> read_all() const;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const ExpertTally>> tallies_;
  size_t num_layers_ = 0, num_experts_ = 0;
  ExpertTable begin_;
};

}  // namespace espalier
