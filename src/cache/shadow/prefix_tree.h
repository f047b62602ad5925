// Which worker was sent which prompt: one radix tree for all workers, over the chained hashes of
// prompts' blocks (prefix_key.h). It approximates what the workers' caches hold, and is never asked
// whether that is true: a wrong answer costs a prefill.
//
// Because hashes are chained, a run of blocks is known to match when its last hash does, and where
// it does not, the end of the match is found by bisection: a match costs one look-up for each node
// on its path, whatever the lengths of the runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/arena.h"
#include "cache/shadow/prefix_key.h"
#include "cache/shadow/worker_set.h"

namespace espalier {

// Invariants: the workers of a node are among those of its parent; every leaf has a worker. A run's
// blocks are kept as 32 bits of their hashes, so one comparison in four thousand million errs.
//
// Bounded: beyond max_blocks or max_nodes the least recently used leaves are removed. A node that
// becomes a leaf by that counts as just used, so what many prompts share outlives them.
//
// Not thread-safe. Cost, for d nodes on a path and a last run of n blocks: match O(d + log n),
// insert the same and a copy of the new blocks, remove_worker O(nodes).
class PrefixTree {
 public:
  struct Options {
    size_t max_blocks = size_t{16} << 20;  // 1 GiB of text
    size_t max_nodes = size_t{4} << 20;
  };

  explicit PrefixTree(const Options& options);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // A node on a match's path.
  struct Step {
    uint32_t num_blocks = 0;             // of the prompt that match up to here
    const WorkerSet* workers = nullptr;  // valid until the tree is changed
  };
  struct Match {
    std::vector<Step> path;     // from the root; empty: nothing matches
    uint32_t num_blocks = 0;    // that match
    bool at_leafs_end = false;  // the match is all of an earlier prompt that nothing extended
  };
  // Modifies nothing. `match` is cleared first, so that its memory is used again.
  void match(std::span<const uint64_t> key, Match& match) const;

  // The worker is sent this prompt; its leaf counts as just used.
  void insert(std::span<const uint64_t> key, WorkerSlot worker);

  // The worker's cache is gone, and with it the nodes that no other worker has.
  void remove_worker(WorkerSlot worker);

  size_t num_nodes() const { return num_nodes_; }
  size_t num_blocks() const { return num_blocks_; }
  size_t num_evicted_total() const { return num_evicted_; }
  // Of nodes, runs, look-up table and sets.
  size_t memory_bytes() const;

  // Aborts (ESP_CHECK) unless links, look-ups, counts, sets and the order of eviction agree.
  void check_invariants() const;

 private:
  using Index = uint32_t;  // of a node; 0: the root, which has no run and no workers

  // One cache line. A node is found by its parent and the low half of its first block's hash.
  struct alignas(64) Node {
    RunStore::Block run;  // the low halves of the blocks' hashes
    uint32_t last = 0;    // the last of them
    uint32_t num_blocks = 0;
    Index parent = 0;
    uint32_t num_children = 0;
    Index newer = 0, older = 0;  // of leaves
    WorkerSet workers;

    uint32_t block(uint32_t i) const { return static_cast<uint32_t>(run.data[i]); }
  };
  struct Entry {
    uint32_t first = 0;
    Index node = 0;  // 0: empty
  };

  // Where a key leaves the tree.
  struct End {
    Index node = 0;           // the deepest node touched
    uint32_t num_inside = 0;  // blocks of it that match
    size_t num_blocks = 0;    // of the key that match
  };
  template <typename Visit>
  End walk(std::span<const uint64_t> key, Visit&& visit) const;

  Node& at(Index i) { return reinterpret_cast<Node*>(nodes_.get())[i]; }
  const Node& at(Index i) const { return reinterpret_cast<const Node*>(nodes_.get())[i]; }

  Index find(Index parent, uint32_t first) const;
  void link(Index node);    // into the look-up table
  void unlink(Index node);  // out of it
  void grow();

  void add_leaf(Index parent, std::span<const uint64_t> blocks, WorkerSlot worker);
  // The first `num_blocks` of the node become a new node above it, which is returned.
  Index split(Index node, uint32_t num_blocks);
  Index new_node();
  template <typename Hash>
  void set_run(Node& node, std::span<const Hash> blocks);
  void remove_leaf(Index leaf);
  void remove_if_unused(Index leaf);

  void push_newest(Index leaf);
  void take_from_list(Index leaf);

  const Options options_;
  RunStore runs_;
  Mapping nodes_;              // of max_nodes, and the root; memory only where nodes were
  Index num_constructed_ = 1;  // nodes that were ever used, the root included
  std::vector<Index> free_nodes_;
  std::vector<Entry> table_;  // open addressing, linear probing, at most half full
  size_t mask_;
  Index newest_ = 0, oldest_ = 0;  // leaves
  size_t num_nodes_ = 0, num_blocks_ = 0, num_evicted_ = 0;
  size_t run_bytes_ = 0;
};

}  // namespace espalier
