// The leaves that may be evicted, lowest rank first.
//
// With most policies a leaf that becomes unused ranks after all others (lru) or before them (mru).
// Such leaves are in a list, so insertion and removal move no other leaf. A leaf with a rank in
// between (a parent whose last child was evicted) is in a heap; each node stores its heap index.
#pragma once

#include <cstddef>
#include <vector>

#include "cache/eviction.h"

namespace espalier {

class RadixNode;

// Not thread-safe; borrows the nodes. In the list each operation is O(1); in the heap push and
// remove are O(log n). top is O(1).
class EvictionHeap {
 public:
  bool empty() const { return size() == 0; }
  size_t size() const { return entries_.size() + list_size_; }
  RadixNode* top() const;

  void push(RadixNode* node, EvictionRank rank);  // REQUIRES: not in the heap
  void remove(RadixNode* node);                   // REQUIRES: in the heap

  void check_invariants() const;

 private:
  struct Entry {
    EvictionRank rank;
    RadixNode* node;
  };
  static constexpr size_t kArity = 4;  // half the levels and cache misses of a binary heap

  void add_to_list(RadixNode* node, RadixNode* prev, RadixNode* next);
  void remove_from_list(RadixNode* node);
  void remove_from_heap(RadixNode* node);
  void put(size_t index, const Entry& entry);
  void sift_up(size_t index, Entry entry);
  void sift_down(size_t index, Entry entry);

  std::vector<Entry> entries_;
  RadixNode* first_ = nullptr;  // in the list
  RadixNode* last_ = nullptr;
  size_t list_size_ = 0;
};

}  // namespace espalier
