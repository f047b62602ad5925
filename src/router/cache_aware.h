// The policy that keeps conversations, and prompts that begin alike, with the worker that has their
// prefix in its cache, as far as loads allow it.
#pragma once

#include "router/adapter_homes.h"
#include "router/block_match.h"
#include "router/policy.h"

namespace espalier::router {

// A prompt goes to the worker that was sent its longest prefix. Where several were, it goes to the
// least loaded of them; where that is overloaded, the next shorter prefix decides, and last the
// load alone. SGLang's gateway gives up the cache for all requests while any worker is overloaded;
// here only the overloaded worker is passed over.
//
// A conversation that goes on stays unless its worker has more to do than the mean, by a loose
// bound. A prompt that begins as others do is compared with the workers that do not hold that
// begin: the more of them hold it, and the smaller a part of the prompt it is, the earlier it is
// computed there once more. That costs one short prefill, and every conversation that begins so
// then stays on a worker that has room, for its requests now and for its keys and values later.
//
// Where every candidate publishes its cache's events and the prompt's tokens are known, what the
// caches hold decides instead (CacheMirror), and what was sent counts for 2 to 4 seconds, until
// events report that it is held, or is no more. A block in host memory, on disk or elsewhere counts
// as what its loading saves (PolicyOptions::load_costs).
//
// A request of a LoRA adapter whose prompt decides nothing goes to a worker that was sent the
// adapter lately, with the bound of a prefix that one worker holds. Not thread-safe.
class CacheAware final : public Policy {
 public:
  explicit CacheAware(const PolicyOptions& options) : options_(options), tree_(options.tree) {}

  Choice choose(const PolicyRequest& request, std::span<const Candidate> candidates) override;
  void forget_worker(WorkerSlot slot) override;
  void apply_event(WorkerSlot slot, const KvEvent& event) override;
  const PrefixTree* tree() const override { return &tree_; }
  const CacheMirror* mirror() const override { return &mirror_; }

 private:
  // A prefix that some workers have, by its length.
  struct Step {
    uint32_t num_blocks = 0;
    const WorkerSet* workers = nullptr;
  };
  bool is_mirrored(const PolicyRequest& request, std::span<const Candidate> candidates) const;
  Choice choose_by_events(const PolicyRequest& request, std::span<const Candidate> candidates);
  Choice choose_by_history(const PolicyRequest& request, std::span<const Candidate> candidates);
  // By the prefixes in path_, the longest last. `num_blocks`: of the prompt.
  Choice find(const PolicyRequest& request, std::span<const Candidate> candidates, bool goes_on,
              double num_blocks);
  // The least loaded of the workers that were sent the adapter, where it has room; else null.
  const Candidate* home_of(const PolicyRequest& request,
                           std::span<const Candidate> candidates) const;
  // By how much a worker that alone holds a whole prompt may exceed the mean load.
  float spare_load(float mean) const;
  void expect(const PolicyRequest& request, WorkerSlot slot);

  const PolicyOptions options_;
  PrefixTree tree_;
  PrefixTree::Match match_;  // of one call, kept for its memory
  std::vector<Step> path_;   // likewise
  size_t turn_ = 0;
  AdapterHomes homes_;
  CacheMirror mirror_;
  // What was sent lately, and before that: each is dropped whole when it is old.
  BlockTree recent_, older_;
  TimePoint recent_since_{};
};

}  // namespace espalier::router
