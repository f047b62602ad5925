// A node of the radix tree, for the tree's own files. Plain data without thread safety;
// RadixNodes owns the nodes and what their pointers lead to.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "cache/arena.h"
#include "cache/eviction.h"
#include "cache/page_record.h"

namespace espalier {

// What a match reads comes first, in one cache line.
class alignas(64) RadixNode {
 public:
  bool is_root() const { return parent == nullptr; }
  bool is_leaf() const { return first_child == nullptr; }
  std::span<const int32_t> tokens() const { return {token_data, static_cast<size_t>(num_tokens)}; }
  std::span<const PageRecord> pages() const { return {page_data, static_cast<size_t>(num_pages)}; }

  // Whether the next step can read all pages. All pages of a node are resident, or none is.
  bool is_resident() const { return num_pages == 0 || page_data->resident(); }

  uint32_t id = 0;      // of a live node; 0: the node is unused
  uint32_t number = 0;  // its index in RadixNodes, from 1: the id of a live node
  RadixNode* parent = nullptr;
  RadixNode* first_child = nullptr;     // the newest; siblings are a list
  const int32_t* token_data = nullptr;  // the edge from the parent to here
  int32_t num_tokens = 0;
  int32_t end = 0;        // tokens from the root to this node's end
  int32_t num_locks = 0;  // on this node and on all below it
  int32_t num_pages = 0;  // 0 in a tree without pages
  const PageRecord* page_data = nullptr;
  RadixNode* next_sibling = nullptr;

  RadixNode* prev_sibling = nullptr;
  RunStore::Block block;  // where token_data and page_data lie
  NodeUse use;
  const std::string* name_space = nullptr;  // of a root: the key in the tree's map

  // Among the leaves that may be evicted: in the heap, in the list, or in neither.
  EvictionRank rank;
  int32_t heap_index = -1;
  bool in_list = false;
  RadixNode* next_evictable = nullptr;
  RadixNode* prev_evictable = nullptr;
  bool is_evictable() const { return heap_index >= 0 || in_list; }
};

}  // namespace espalier
