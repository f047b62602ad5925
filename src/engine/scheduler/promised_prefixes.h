// The prompts that are being computed now: what the cache will soon hold. A waiting sequence that
// shares such a prefix lets its owner go first and takes it from the cache.
#pragma once

#include "cache/radix_tree.h"
#include "engine/scheduler/sequence.h"

namespace espalier {

// Not thread-safe. Holds exactly the runs of sequences between add() and remove().
class PromisedPrefixes {
 public:
  explicit PromisedPrefixes(int32_t page_size)
      : tree_({.page_size = page_size, .has_pages = false}) {}

  void add(Sequence& sequence);     // REQUIRES: admitted; its tokens up to prefill_end
  void remove(Sequence& sequence);  // nothing when it was not added

  // How many of the first `limit` tokens of `sequence` are promised or cached by now.
  int32_t match(const Sequence& sequence, int32_t limit) const;

  bool empty() const { return tree_.num_nodes() == 0; }
  const RadixTree& tree() const { return tree_; }

 private:
  RadixTree tree_;
};

}  // namespace espalier
