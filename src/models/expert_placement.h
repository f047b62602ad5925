// Where the experts of a layer lie, where groups of ranks have whole experts (--ep-size): each
// group has an equal part of the layer's slots, neighbours in order, and an expert lies in one slot
// or, with redundant experts, in several, of different groups. Tokens take turns among the replicas
// of an expert (kernels::choose_replicas), so a busy one is computed by several groups.
//
// Placements are balanced by counted tokens (EPLB, DeepSeek): replicas go to the busiest experts,
// and the group with the least load gets the next busiest replica. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace espalier {

// [slots]: the expert in each slot of a layer.
using ExpertSlots = std::vector<int32_t>;

struct PlacementShape {
  int32_t num_experts = 0;
  int32_t num_slots = 0;   // a multiple of num_groups, at least num_experts
  int32_t num_groups = 0;  // an expert has at most a replica in each

  int32_t slots_of_group() const { return num_slots / num_groups; }
  // Of a slot, or of a group's spare slot (plan_copies()).
  int32_t group_of(int32_t slot) const {
    return slot < num_slots ? slot / slots_of_group() : slot - num_slots;
  }
};

// When experts change places (ExpertBalancer).
struct RebalanceConfig {
  int64_t num_iterations = 0;    // steps from one look at the counts to the next; 0: experts stay
  double utilization_max = 1;    // of a group by the busiest one: above it experts stay
  int32_t layers_per_chunk = 0;  // so many layers move between two steps; 0: all
};

// Where experts lie at first, and whether they stay.
struct ExpertLocations {
  int32_t num_redundant = 0;  // slots of a layer beyond one for each expert
  std::string init;           // a JSON file of slots or counts; empty: even_placement()
  RebalanceConfig rebalance;

  bool places() const {
    return num_redundant != 0 || !init.empty() || rebalance.num_iterations > 0;
  }
};
// kInvalidArgument says which setting of --ep-num-redundant-experts and --ep-size does not fit.
Status check_placement(const PlacementShape& shape);

// Every expert has a slot, none two in a group.
bool is_placement(const PlacementShape& shape, std::span<const int32_t> slots);

// Slot i has expert i, and replicas begin again with expert 0. REQUIRES: check_placement().
ExpertSlots even_placement(const PlacementShape& shape);

// Computes a placement that balances `tokens`, the count of each expert, over the groups. An expert
// that stays in a group keeps its slot, and the parts are assigned to groups so that few experts
// are copied. Returns `now` where the new placement is hardly better. REQUIRES: is_placement(now).
ExpertSlots balanced_placement(const PlacementShape& shape, std::span<const int64_t> tokens,
                               const ExpertSlots& now);

// The tokens of each group, where an expert's are divided evenly among its replicas.
std::vector<double> group_loads(const PlacementShape& shape, std::span<const int64_t> tokens,
                                std::span<const int32_t> slots);

// [num_experts + 1] begins, then the slots of expert 0, 1 ...: what kernels::choose_replicas reads.
std::vector<int32_t> replica_table(int32_t num_experts, std::span<const int32_t> slots);

// The copies that turn one placement into another in place. Each group has a spare slot, which is
// num_slots + group, so that experts can change places.
struct SlotCopy {
  int32_t from = 0, to = 0;  // slots
};
// The copies of a step run at once: none writes a slot that another one of them reads or writes.
// Each step but the last follows when the one before has ended.
using CopySteps = std::vector<std::vector<SlotCopy>>;
CopySteps plan_copies(const PlacementShape& shape, const ExpertSlots& from, const ExpertSlots& to);

}  // namespace espalier
