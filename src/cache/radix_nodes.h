// The nodes of a radix tree: their memory, their runs and the links between them. The tree
// (radix_tree.h) decides which nodes there are; this part keeps lists and counts consistent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/arena.h"
#include "cache/page_record.h"

namespace espalier {

class RadixNode;

// Owns every node that it creates; a deleted node is reused. Not thread-safe.
// Invariant: each node is live (id != 0) or unused, and num_linked() live nodes have a parent.
class RadixNodes {
 public:
  // A live node without run and links; `now` is the time of its creation.
  RadixNode* create(uint64_t now);
  // REQUIRES that the node is not linked.
  void destroy(RadixNode* node);

  // Copies the run into the node. REQUIRES that the node has none.
  void set_run(RadixNode* node, std::span<const int32_t> tokens, std::span<const PageRecord> pages);
  // The same for pages that have just been computed, by number: on the device and ready.
  void set_computed_run(RadixNode* node, std::span<const int32_t> tokens,
                        std::span<const int32_t> pages);

  // Replaces the records of the node's pages. REQUIRES as many as it has.
  void set_pages(RadixNode* node, std::span<const PageRecord> pages);

  // The newest child comes first in its parent's list.
  void link(RadixNode* parent, RadixNode* node);
  void unlink(RadixNode* node);

  std::span<RadixNode* const> all() const { return nodes_; }  // live and unused
  size_t num_linked() const { return num_linked_; }
  size_t num_unused() const { return unused_.size(); }

 private:
  // Room for the run, whose tokens are copied; returns where its records begin.
  PageRecord* allocate_run(RadixNode* node, std::span<const int32_t> tokens, size_t num_pages);

  Arena node_memory_;
  RunStore runs_;
  std::vector<RadixNode*> nodes_;  // all that were ever created
  std::vector<RadixNode*> unused_;
  size_t num_linked_ = 0;
};

}  // namespace espalier
