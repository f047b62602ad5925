// How much of a prompt the workers' caches hold, by trees of blocks (block_tree.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/shadow/worker_set.h"
#include "router/block_tree.h"

namespace espalier::router {

struct BlockMatch {
  // The workers whose caches hold at least the first `num_tokens` tokens of the prompt. Steps go
  // from the shortest prefix to the longest, and each has fewer workers than the one before.
  struct Step {
    uint32_t num_tokens = 0;
    WorkerSet workers;
  };
  std::vector<Step> path;
  // No cache goes on behind the longest match: it is all of an earlier prompt or answer.
  bool at_leafs_end = false;
};

// A worker holds a block where one of the trees has the worker at that block's node. Matches of
// blocks under 16 tokens are counted in steps of tokens_per_node().
class BlockMatcher {
 public:
  BlockMatcher(const PromptTokens& prompt, std::span<const BlockTree* const> trees)
      : prompt_(prompt), trees_(trees) {}

  // `slots`: the workers whose blocks have this size, in tokens.
  void add(uint32_t block_size, std::span<const WorkerSlot> slots);
  BlockMatch take();

 private:
  struct Held {
    uint32_t num_tokens = 0;
    bool at_leafs_end = false;
    WorkerSlot slot = 0;
  };
  const PromptTokens& prompt_;
  const std::span<const BlockTree* const> trees_;
  std::vector<Held> held_;
};

// The worker is sent the prompt: its blocks are expected in its cache.
void insert_blocks(const PromptTokens& prompt, uint32_t block_size, WorkerSlot worker,
                   BlockTree& tree);

}  // namespace espalier::router
