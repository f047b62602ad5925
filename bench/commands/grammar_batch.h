// The cost of filling the masks of one step, for many sequences at once.
#pragma once

#include <vector>

#include "apps/grammar/source.h"

namespace espalier::bench {

// Measures `num_sequences` sequences at different positions in texts of `num_schemas` schemas,
// whose masks `num_threads` threads fill. The result is in microseconds for a step of all
// sequences: the least time of each step's repetitions, then the median over the steps. Cold means
// that the grammars are newly compiled: they have the automaton states of their texts so far, and
// no masks.
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
