// A node of the radix tree; for the tree's own files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/eviction.h"

namespace espalier {

// What a match reads comes first, in one cache line.
class alignas(64) RadixNode {
 public:
  bool is_root() const { return parent == nullptr; }
  bool is_leaf() const { return first_child == nullptr; }

  uint64_t id = 0;  // 0: in the tree's store, not in the tree
  RadixNode* parent = nullptr;
  RadixNode* first_child = nullptr;  // the newest; siblings are a list
  std::vector<int32_t> tokens;       // the edge from the parent to here
  int32_t end = 0;                   // tokens from the root to this node's end
  int32_t num_locks = 0;             // on this node and on all below it

  std::vector<int32_t> pages;
  RadixNode* next_sibling = nullptr;
  RadixNode* prev_sibling = nullptr;
  int32_t heap_index = -1;  // in the heap of evictable leaves; -1: not there
  NodeUse use;
  const std::string* name_space = nullptr;  // of a root: the key in the tree's map
};

}  // namespace espalier
