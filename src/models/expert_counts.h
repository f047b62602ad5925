// How many tokens each expert of each layer got: what shows how evenly experts, and the ranks that
// have some of them, are used. A model counts where ModelLoadOptions::expert_counts asks for it:
// devices by the slots that experts lie in, from which tokens by expert and by group follow.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/decoder_spec.h"
#include "models/expert_placement.h"

namespace espalier {

// [layers][experts]: (token, expert) pairs. Layers without experts have zeros.
using ExpertTable = std::vector<std::vector<int64_t>>;

// to += from, of one size or empty.
void add_counts(ExpertTable& to, const ExpertTable& from);
// What came to `from` since it was `before`, of one size or empty.
ExpertTable difference(const ExpertTable& from, const ExpertTable& before);

// What models have counted, and moved.
struct ExpertTotals {
  ExpertTable tokens;     // [layers][experts]
  ExpertTable of_groups;  // [layers][groups]: the pairs that each group of ranks computed
  int64_t num_moved = 0;  // experts that were copied to another slot
};
void add_counts(ExpertTotals& to, const ExpertTotals& from);
ExpertTotals difference(const ExpertTotals& from, const ExpertTotals& before);

// The pairs of the busiest expert over the mean of all, and the same of groups of ranks; of all
// layers together, so that 1 is even. 1 where nothing was counted.
struct ExpertBalance {
  double over_experts = 1;
  double over_groups = 1;
};
ExpertBalance balance_of(const ExpertTotals& totals);

// What one device has counted. Thread-safe, also while steps run.
class ExpertTally {
 public:
  virtual ~ExpertTally() = default;
  // Adds its counts to `table`, [layers][slots of all ranks].
  virtual Status add_to(ExpertTable& table) const = 0;
};

// Of a model on the CPU: one thread counts, any thread reads.
class HostExpertTally final : public ExpertTally {
 public:
  HostExpertTally(int32_t num_layers, int32_t num_slots)
      : num_slots_(num_slots),
        counts_(static_cast<size_t>(num_layers) * static_cast<size_t>(num_slots)) {}
  // slots: of each pair.
  void count(int32_t layer, std::span<const int32_t> slots);
  Status add_to(ExpertTable& table) const override;

 private:
  const int32_t num_slots_;
  std::vector<std::atomic<int64_t>> counts_;  // [layers, slots]
};

// Where the experts of a model lie.
struct ExpertPlaces {
  int32_t num_experts = 0;          // of a layer
  int32_t num_groups = 1;           // of ranks, which have equal parts of the slots
  std::vector<ExpertSlots> layers;  // empty: the layer has no experts

  int32_t num_slots() const;  // the most of a layer
};
// spec: of all ranks.
ExpertPlaces expert_places(const DecoderSpec& spec);

// New slots of a layer.
struct LayerSlots {
  int32_t layer = 0;
  ExpertSlots slots;
};

// The tallies of all devices of a model. Thread-safe.
class ExpertCounts {
 public:
  // shared: the model writes to a tally and this reads it, whichever is destroyed first. places:
  // the same of all tallies.
  void add(std::shared_ptr<const ExpertTally> tally, ExpertPlaces places);
  // Counts from here on: what a start has computed is left out.
  Status begin();
  Result<ExpertTotals> read() const;

  ExpertPlaces places() const;
  // Experts have moved. No step runs.
  Status move(std::span<const LayerSlots> layers, int64_t num_moved);

 private:
  Result<ExpertTable> read_slots() const;
  void add_slots(const ExpertTable& slots, ExpertTotals& to) const;
  Result<ExpertTotals> read_all() const;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const ExpertTally>> tallies_;
  ExpertPlaces places_;
  ExpertTable slots_before_;  // by slot, of the places before these,
  ExpertTotals before_;       // and what they came to
  ExpertTotals begin_;
};

}  // namespace espalier
