// How much of a prompt the workers' caches hold, by trees of blocks (block_tree.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "router/block_tree.h"
#include "router/worker_set.h"

namespace espalier::router {

struct BlockMatch {
  // The workers that hold so many tokens of the prompt's begin, or more; from few to many tokens,
  // each step with fewer workers than the one before.
  struct Step {
    uint32_t num_tokens = 0;
    WorkerSet workers;
  };
  std::vector<Step> path;
  // No cache goes on behind the longest match: it is all of an earlier prompt or answer.
  bool at_leafs_end = false;
};

// A block counts as a worker's where one of the trees has it so; small ones count in steps of
// tokens_per_node(). `slots`: the workers whose blocks
// have this size.
class BlockMatcher {
 public:
  BlockMatcher(const PromptTokens& prompt, std::span<const BlockTree* const> trees)
      : prompt_(prompt), trees_(trees) {}

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
