// The leaves that may be evicted, lowest rank first: a binary heap whose nodes know their places.
#pragma once

#include <cstddef>
#include <vector>

#include "cache/eviction.h"

namespace espalier {

class RadixNode;

// Not thread-safe; borrows the nodes. push and remove are O(log n), top is O(1).
class EvictionHeap {
 public:
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  RadixNode* top() const { return entries_.front().node; }

  void push(RadixNode* node, EvictionRank rank);  // REQUIRES: not in the heap
  void remove(RadixNode* node);                   // REQUIRES: in the heap

  void check_invariants() const;

 private:
  struct Entry {
    EvictionRank rank;
    RadixNode* node;
  };
  void put(size_t index, const Entry& entry);
  void sift_up(size_t index, Entry entry);
  void sift_down(size_t index, Entry entry);

  std::vector<Entry> entries_;
};

}  // namespace espalier
