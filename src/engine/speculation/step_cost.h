// What a decode step costs by its number of batch entries and of rows (entries and the draft tokens
// that are verified behind them), learnt from the steps that run. A device's step time is seldom
// proportional to rows: a GPU's is a staircase with cliffs, a CPU's a line. So times are kept by
// ranges of rows, relative to a step of the same entries without draft tokens, and interpolated.
//
// What has not been measured is estimated optimistically (between measured rows half as much above
// the lower ones as a line, beyond them half the last slope), so that it is tried where it might be
// the best; what was measured long ago sinks towards 1, and is measured anew when it is tried. The
// number of tries is bounded by the number of ranges; DraftPlanner bounds what they lose.
// Invariant: the ratios of a curve are at least 1 and do not fall as rows rise.
// Not thread-safe. Allocates nothing. Times in seconds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/scheduler/plain_steps.h"

namespace espalier {

class StepCost {
 public:
  // Ranges of numbers, two an octave: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, ...
  static size_t range_of(int32_t number) { return PlainSteps::range_of(number); }
  // Rows at which a plan may end, four an octave: 1 to 8, 10, 12, 14, 16, 20, ... The least of them
  // that is not below `rows`.
  static int32_t next_edge(int32_t rows);

  // A step of decode entries alone. `seconds`: from the commit of the step before to its own, for
  // the host's wait for a verifying step is a cost of it.
  void observe(int32_t num_entries, int32_t num_draft_tokens, double seconds);

  // Of a step without draft tokens; 0 while none has been measured.
  double plain_seconds(int32_t num_entries) const { return plain_.seconds(num_entries); }
  // Of the range of so many draft tokens, as it was measured of late.
  const RecentMedian& measured(int32_t num_entries, int32_t num_draft_tokens) const {
    return cells_[entry_range(num_entries)][row_range(num_entries, num_draft_tokens)].ratio;
  }
  // Whether a step of so many entries should run without draft tokens, because its time is not
  // known or old. False while no step has been measured: a device may not measure any.
  bool needs_plain_step(int32_t num_entries) const {
    return num_steps_ > 0 && plain_.need_step(num_entries, num_steps_);
  }

  // A step's time over that of one without draft tokens, by its draft tokens.
  class Curve {
   public:
    double ratio(int32_t num_draft_tokens) const;
    // The most draft tokens to try: with them there are at most twice as many rows as were ever
    // measured; any number where the device measures no step.
    int32_t most() const { return most_; }

   private:
    friend class StepCost;
    struct Node {
      double draft_tokens = 0, ratio = 1;
      size_t range = 0;
    };
    static constexpr size_t kNodesMax = 13;
    std::array<Node, kNodesMax> nodes_;  // rising; the first is the step without draft tokens
    size_t num_nodes_ = 1;
    int32_t num_entries_ = 1, most_ = 0;
  };
  Curve curve(int32_t num_entries) const;

 private:
  static constexpr size_t kEntryRanges = PlainSteps::kRanges, kRowRanges = Curve::kNodesMax - 1;
  // What was measured so many steps ago is measured anew.
  static constexpr uint64_t kStaleSteps = 4096;

  struct Cell {
    RecentMedian ratio;
    double draft_tokens = 0;  // of the steps measured, a running mean
    uint64_t last_step = 0;
  };
  static size_t entry_range(int32_t num_entries) {
    return std::min(range_of(num_entries), kEntryRanges - 1);
  }
  static size_t row_range(int32_t num_entries, int32_t num_draft_tokens) {
    const size_t above = range_of(num_entries + num_draft_tokens) - entry_range(num_entries);
    return std::min(above, kRowRanges - 1);
  }
  double aged_ratio(const Cell& cell) const;

  PlainSteps plain_;  // by entries
  // By the range of entries and by how many ranges the rows are above it.
  std::array<std::array<Cell, kRowRanges>, kEntryRanges> cells_;
  uint64_t num_steps_ = 0;
};

}  // namespace espalier
