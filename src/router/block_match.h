// How much of a prompt the workers' caches hold, by trees of blocks (block_tree.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/shadow/worker_set.h"
#include "router/block_tree.h"

namespace espalier::router {

struct BlockMatch {
  // The workers that are spared the computing of at least `num_tokens` tokens of the prompt: a
  // token on the device counts as one, and one that is loaded first as the part that its loading
  // saves. Steps go from the fewest to the most, and each has fewer workers than the one before.
  struct Step {
    uint32_t num_tokens = 0;
    WorkerSet workers;
  };
  std::vector<Step> path;
  // No cache goes on behind the longest match: it is all of an earlier prompt or answer.
  bool at_leafs_end = false;
};

// A worker holds a block where one of the trees has the worker at that block's node, in any memory.
// Matches of blocks under 16 tokens are counted in steps of tokens_per_node().
class BlockMatcher {
 public:
  BlockMatcher(const PromptTokens& prompt, std::span<const BlockTree* const> trees,
               const LoadCosts& costs = {})
      : prompt_(prompt), trees_(trees), costs_(costs) {}

  // `slots`: the workers whose blocks have this size, in tokens.
  void add(uint32_t block_size, std::span<const WorkerSlot> slots);
  BlockMatch take();

 private:
  struct Held {
    double spared = 0;        // tokens
    uint32_t num_tokens = 0;  // held; of a match, those that are spared
    bool at_leafs_end = false;
    WorkerSlot slot = 0;
  };
  void finish(Held held);

  const PromptTokens& prompt_;
  const std::span<const BlockTree* const> trees_;
  const LoadCosts costs_;
  std::vector<Held> held_;
};

// The worker is sent the prompt: its blocks are expected in its cache.
void insert_blocks(const PromptTokens& prompt, uint32_t block_size, WorkerSlot worker,
                   BlockTree& tree);

}  // namespace espalier::router
