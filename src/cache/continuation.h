// How other sequences went on behind a sequence's text, read from the radix tree: draft tokens for
// the sequence. Reading changes nothing: no lock, no use, no order of eviction.
//
// The tree has the text of ended sequences and the prompts of running ones, in whole pages. A text
// is followed from the sequence's lock; where no run in the tree begins with it, there is no
// continuation. Behind the text's end each branch takes the child with the most uses, of equal ones
// the one that was used last, among the newest kSiblingsMax.
#pragma once

#include <cstdint>
#include <span>

namespace espalier {

class RadixNode;
class RadixTree;

// How far a text has been followed. The record holds no lock: it is valid for one version of the
// tree and one lock of the sequence, and read_continuation() begins anew where these have changed.
struct TreePosition {
  const RadixNode* lock = nullptr;  // of the sequence when it was followed; null: never
  const RadixNode* node = nullptr;  // num_tokens lie within its run or at its end
  int32_t num_tokens = 0;           // of the text, from its begin
  uint64_t version = 0;             // of the tree
  bool has_left = false;            // no run in the tree goes on as the text does
};

inline constexpr int32_t kSiblingsMax = 32;  // children of one node that are looked at

// Writes up to out.size() tokens that followed `text` and returns how many. `lock` is the node that
// the sequence of `text` has locked, and its run begins `text`.
// Cost: the text's tokens since the last call (since the lock, after a change of the tree), a
// look-up for each node on their way, and kSiblingsMax children for each branch that is read.
int32_t read_continuation(const RadixTree& tree, const RadixNode* lock,
                          std::span<const int32_t> text, TreePosition& at, std::span<int32_t> out);

}  // namespace espalier
