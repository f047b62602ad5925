// What workers' caches hold, exactly: a radix tree of blocks of tokens for all workers, as their
// events state it (kv_events.h). Unlike PrefixTree, which remembers what was sent where, it forgets
// what a worker has evicted.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/shadow/worker_set.h"
#include "router/kv_events.h"

namespace espalier::router {

// The hash of a block of tokens behind its parent's; a prompt's begin is 0. `extra`: what divides
// it from others of the same tokens. Two prompts share n blocks where their n-th hashes are equal.
uint64_t block_hash(uint64_t parent, std::span<const int32_t> tokens, std::string_view extra);

// Tokens of a prompt from one node of the tree to the next. Blocks of 16 tokens or more have a node
// each; of smaller ones every (16 / block_size)-th has a node. A cache evicts a prompt's last
// blocks first, so a worker that holds a node's block also holds the blocks since the node before.
constexpr uint32_t tokens_per_node(uint32_t block_size) {
  return block_size >= 16 ? block_size : 16 / block_size * block_size;
}

// A prompt as the workers' caches see it.
struct PromptTokens {
  std::vector<int32_t> ids;  // empty: not known, and nothing else counts
  std::string extra;         // of its first block: an extra_key or a salt, as the workers name it
};

// What loading a token from each memory takes, as a part of what computing it takes.
using LoadCosts = std::array<double, kNumMedia>;

// Nodes are blocks (every one, or some: tokens_per_node), found by their hashes; a node stays as
// long as it has a worker or a child, so a block whose parent a worker has evicted before it keeps
// its place. Not thread-safe. Costs: a look up for each block of an event or a match, or two.
class BlockTree {
 public:
  struct Node {
    uint64_t parent = 0;
    uint32_t num_children = 0;
    WorkerSet workers;  // that have it on their devices
    std::unique_ptr<std::array<WorkerSet, kNumMedia - 1>>
        elsewhere;  // null: no worker has it there

    const WorkerSet* in(KvMedium medium) const;  // null: no worker has it there
    // The nearest memory in which the worker has it; nothing: it does not.
    std::optional<KvMedium> nearest(WorkerSlot worker) const;
    bool has_worker() const;
  };

  // False where the worker has it there already. REQUIRES that the parent is 0 or has a node.
  bool insert(uint64_t parent, uint64_t hash, WorkerSlot worker,
              KvMedium medium = KvMedium::kDevice);
  // False where the worker does not have it there.
  bool erase(uint64_t hash, WorkerSlot worker, KvMedium medium = KvMedium::kDevice);
  const Node* find(uint64_t hash) const;  // null: no worker has it or a block behind it
  void remove_worker(WorkerSlot worker);  // costs a pass over all nodes
  size_t num_nodes() const { return nodes_.size(); }

  // Aborts (ESP_CHECK) unless every node has a worker or a child, and its parent counts it.
  void check_invariants() const;

 private:
  void remove_if_unused(uint64_t hash);
  std::unordered_map<uint64_t, Node> nodes_;
};

// The tree beside what each worker calls its blocks. Not thread-safe.
class CacheMirror {
 public:
  static constexpr uint32_t kBlockSizeDefault = 16;
  // Of one worker. One that states more loses what is known of it: its removals do not come.
  static constexpr size_t kBlocksMax = size_t{4} << 20;

  // An event of the worker; of blocks behind one that is not known nothing is learnt, nor of blocks
  // without tokens whose names are not known. What has left every memory is no more known.
  void apply(WorkerSlot worker, const KvEvent& event);
  // The worker's cache is empty, or what is known of it is void.
  void clear(WorkerSlot worker);
  // The same, and it counts as not mirrored until its next event.
  void forget(WorkerSlot worker);

  // Whether an event has come, if only that the cache is empty.
  bool is_mirrored(WorkerSlot worker) const {
    return worker < caches_.size() && caches_[worker].mirrored;
  }
  // kBlockSizeDefault where no block has come. REQUIRES is_mirrored().
  uint32_t block_size(WorkerSlot worker) const {
    return caches_[worker].block_size != 0 ? caches_[worker].block_size : kBlockSizeDefault;
  }
  const BlockTree& tree() const { return tree_; }
  // Of the worker's block by its own name; 0: it has none of that name.
  uint64_t hash_of(WorkerSlot worker, uint64_t name) const;
  size_t num_blocks(WorkerSlot worker) const {
    return worker < caches_.size() ? caches_[worker].blocks.size() : 0;
  }
  void check_invariants() const;

 private:
  struct Block {
    uint64_t hash = 0;        // ours
    uint64_t node = 0;        // the last one up to here; the same where the block has one
    uint32_t num_tokens = 0;  // of the prompt up to its end
    uint8_t media = 0;        // that have it: a bit for each
  };
  struct Cache {
    bool mirrored = false;
    uint32_t block_size = 0;                     // 0: not known
    std::unordered_map<uint64_t, Block> blocks;  // by the worker's names
    // In each memory: further names of a node, where there are any.
    std::array<std::unordered_map<uint64_t, uint32_t>, kNumMedia> counts;
  };
  void store(Cache& cache, WorkerSlot worker, const KvEvent& event);
  void store_named(Cache& cache, WorkerSlot worker, const KvEvent& event);
  void put(Cache& cache, WorkerSlot worker, uint64_t parent_node, Block& block, KvMedium medium);
  void remove(Cache& cache, WorkerSlot worker, uint64_t name, KvMedium medium);
  void remove_everywhere(Cache& cache, WorkerSlot worker, uint64_t name);

  BlockTree tree_;
  std::vector<Cache> caches_;  // by slot
};

}  // namespace espalier::router
