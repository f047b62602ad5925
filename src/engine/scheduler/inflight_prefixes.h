// In-flight prefix sharing: the prompts that are being computed now, and so will soon be cached. A
// waiting sequence with a long prefix in common with one of them is admitted after that prefix has
// been computed, and takes it from the cache. So n samples of a prompt compute it once.
//
// Not thread-safe. Borrows the sequences between add() and remove(), and holds exactly their runs.
#pragma once

#include <span>

#include "cache/prefix_cache.h"
#include "cache/radix_tree.h"
#include "engine/scheduler/sequence.h"

namespace espalier {

class InflightPrefixes {
 public:
  InflightPrefixes(const SchedulerConfig& config, const PrefixCache& cache);

  void add(Sequence& sequence);     // REQUIRES: admitted; its tokens up to prefill_end
  void remove(Sequence& sequence);  // no effect when it was not added

  // Whether a waiting sequence should wait for a prefix that is being computed: when that saves it
  // prefix_wait_min_tokens, or half of its own work. Returns the number of leading tokens by which
  // other sequences wait for the same prefix (a number beyond the prompt: this sequence alone); 0:
  // it does not wait.
  int32_t prefix_to_wait_for(Sequence& sequence) const;

  bool empty() const { return tree_.num_nodes() == 0; }
  // Aborts unless the tree's locks are those of `sequences`' nodes.
  void check_invariants(std::span<const RadixNode* const> nodes) const {
    tree_.check_invariants(nodes);
  }

 private:
  const int32_t prefix_wait_min_tokens_;
  const PrefixCache& cache_;
  RadixTree tree_;  // without pages
};

}  // namespace espalier
