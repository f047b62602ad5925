// Decides between two steps which experts change places, from the tokens that they got since it
// last looked (EPLB). Who has the weights copies them (plan_copies()), on the CPU and on GPUs.
//
// Not thread-safe. Borrows the counts, which outlive it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/expert_counts.h"
#include "models/expert_placement.h"

namespace espalier {

// A layer whose experts change places.
struct LayerMove {
  int32_t layer = 0;
  PlacementShape shape;
  ExpertSlots slots;  // from now on
  CopySteps copies;
};

class ExpertBalancer {
 public:
  // REQUIRES: config.num_iterations > 0, and the counts have tallies.
  ExpertBalancer(const RebalanceConfig& config, ExpertCounts& counts);

  // What moves in front of the next step, at most config.layers_per_chunk layers; mostly nothing.
  Result<std::vector<LayerMove>> next();
  // They have moved, and no step has run since next().
  Status moved(std::span<const LayerMove> moves);

 private:
  Status plan();

  const RebalanceConfig config_;
  ExpertCounts& counts_;
  int64_t num_steps_ = 0;            // since plan()
  ExpertTotals seen_;                // by plan()
  std::vector<LayerSlots> waiting_;  // that other chunks come before, the last one first
};

}  // namespace espalier
