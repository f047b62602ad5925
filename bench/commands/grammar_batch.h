// What the masks of one step cost, for many sequences at once.
#pragma once

#include <vector>

#include "apps/grammar/source.h"

namespace espalier::bench {

// So many sequences, each at a place of its own along texts of `num_schemas` schemas, whose masks
// so many threads fill: microseconds of a step of all, each step's the least of some times, the
// median of the steps. Cold: grammars just compiled, whose states are made as far as their texts
// have come and whose masks are not.
struct MaskBatch {
  size_t num_sequences = 0, num_schemas = 0;
  int32_t num_threads = 0;
  double cold_us = 0, warm_us = 0;
  double choices_us = 0;  // of JumpForward::append_choices of all, warm
  double entries_us = 0;  // as an engine does it, warm: choices, and a mask where there are none
  double entries_cpu_us = 0;  // the same in processor time of all threads
  double narrowed = 0;        // share of the sequences that had choices
};
std::vector<MaskBatch> measure_mask_batches(const apps::Vocabulary& vocab);

}  // namespace espalier::bench
