// The parts of a model that ranks compute together (tensor parallelism, Megatron-LM): each rank has
// some heads of attention, some features of each MLP and some tokens of the vocabulary. A matrix
// whose outputs are divided has a part of its rows, one whose inputs are divided a part of its
// columns, and what comes out of the latter is summed over the ranks.
//
// Experts may be spread whole (expert parallelism): the ranks form DecoderSpec::expert_groups
// groups of neighbours, each group has an equal part of the experts, and the ranks of a group
// divide the features of these. Every rank routes all rows and computes its experts' part of them;
// the sum behind the experts, which is there in any case, adds up all parts. A busy expert may lie
// in several groups, and experts may change places (models/expert_placement.h): ranks then have
// parts of the slots that experts lie in.
//
// Pure functions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "models/decoder_spec.h"
#include "models/program/program.h"
#include "models/weight_layout.h"
#include "tensor/collective.h"

namespace espalier::program {

// A rank's place among the groups that have whole experts.
struct ExpertRanks {
  Ranks groups;  // which group of how many
  Ranks slices;  // which rank of the group
};
ExpertRanks expert_ranks(const DecoderSpec& spec, const Ranks& ranks);

// kInvalidArgument says which part of the model is not divided by so many ranks.
Status check_partition(const DecoderSpec& spec, int32_t num_ranks);

// The model as one rank sees it: its heads and features. The vocabulary stays whole.
// REQUIRES: check_partition().
DecoderSpec local_spec(const DecoderSpec& spec, const Ranks& ranks);

// Parameters that all ranks together have: those that each has count for each.
// REQUIRES: check_partition().
int64_t num_loaded_parameters(const DecoderSpec& spec, int32_t num_ranks);

// Whether embedding and head are divided; else every rank has all of them.
bool divides_vocabulary(const DecoderSpec& spec, const Ranks& ranks);

// Where keys and values of ranks lie. What several ranks compute (latents, heads that are fewer
// than ranks) lies once in pages that all share, so one rank writes it and the others wait; or each
// rank writes its own copy.
enum class RankPages : uint8_t { kShared, kOwn };

// Of shared pages: how many neighbouring ranks have one pool of them. 0: all ranks.
inline constexpr int32_t kAllRanks = 0;

// The program of one rank: the lowered local_spec() with the sums and gathers between the ranks.
// Biases of what is summed are added by rank 0. REQUIRES: check_partition().
Program partition(const DecoderSpec& spec, const Ranks& ranks, RankPages pages = RankPages::kShared,
                  int32_t ranks_per_pool = kAllRanks);

// weight_layout(spec), of each weight the rank's shard. REQUIRES: check_partition().
WeightLayout partition_weights(const DecoderSpec& spec, const Ranks& ranks);

}  // namespace espalier::program
