// Which of the workers that may take a request gets it. The names are those of SGLang's gateway.
//
//   round_robin    in turn
//   random         any
//   power_of_two   the less loaded of two drawn ones
//   least_tokens   the one with the fewest prompt tokens in flight
//   prefix_hash    by a hash of the prompt's first blocks, on a ring, with a bound on the load
//   cache_aware    the one that was sent the longest prefix of the prompt, unless its load is high;
//                  where workers publish events of their caches, the one that holds it
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/shadow/prefix_key.h"
#include "cache/shadow/prefix_tree.h"
#include "router/block_tree.h"
#include "router/kv_events.h"
#include "router/worker_table.h"

namespace espalier::router {

struct PolicyOptions {
  std::string name = "cache_aware";
  uint64_t seed = 0;  // of draws

  // cache_aware: a prompt goes where this part of it was sent before; a smaller part decides
  // nothing, unless it is the whole of an earlier prompt, whose conversation goes on then.
  double cache_threshold = 0.3;
  // A worker is overloaded, so that cache_aware passes it over, where its requests in flight exceed
  // the mean by this number and by this factor. For a prompt that begins as others do, and does not
  // go on from one, what it may exceed (the mean of those that do not hold that begin) is divided
  // by the number of workers that hold it, and multiplied by its part of the prompt.
  int balance_abs_threshold = 4;
  double balance_rel_threshold = 1.5;
  PrefixTree::Options tree;

  LoadCosts load_costs = {0, 0.1, 0.5, 0.7};  // cache_aware: by the memory that has a block

  int prefix_token_count = 256;           // prefix_hash: of the prompt's begin
  double prefix_hash_load_factor = 1.25;  // prefix_hash: the bound, in mean loads
};

// What a policy sees of a request.
struct PolicyRequest {
  std::span<const uint64_t> key;         // of the prompt
  uint64_t name_space = 0;               // where its chain begins
  const PromptTokens* tokens = nullptr;  // of the prompt; null or empty: not known
  TimePoint now{};
  WorkerRole role = WorkerRole::kServing;  // of all candidates
  uint64_t adapter = 0;                    // a hash of the LoRA adapter's name; 0: none
};

struct Choice {
  WorkerSlot slot = 0;
  uint32_t num_blocks_shared = 0;  // of the prompt, expected in the worker's cache
};

// Not thread-safe.
class Policy {
 public:
  virtual ~Policy() = default;

  // `candidates` is not empty and ordered by slot. The caller sends the request there.
  virtual Choice choose(const PolicyRequest& request, std::span<const Candidate> candidates) = 0;
  // The worker that had the slot is gone, or has lost its cache.
  virtual void forget_worker(WorkerSlot) {}
  // What the worker's cache has come to hold, and what it has given up.
  virtual void apply_event(WorkerSlot, const KvEvent&) {}
  // For metrics; null where the policy has none.
  virtual const PrefixTree* tree() const { return nullptr; }
  virtual const CacheMirror* mirror() const { return nullptr; }
};

const std::vector<std::string>& policy_names();
// kInvalidArgument names the policies that there are, or the option that is out of range.
Result<std::unique_ptr<Policy>> make_policy(const PolicyOptions& options);

// The candidate with the least load, by requests weighted; ties go to the one that comes first
// behind `from`, so that equal loads are taken in turn.
const Candidate& least_loaded(std::span<const Candidate> candidates, size_t from);

// The same worker for a session as long as that may be chosen: the candidate with the highest hash
// of both (rendezvous hashing), so that a worker that leaves moves its own sessions alone.
WorkerSlot session_worker(std::string_view session, std::span<const Candidate> candidates);

}  // namespace espalier::router
