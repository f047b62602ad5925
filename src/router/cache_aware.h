// The policy that keeps conversations, and prompts that begin alike, with the worker that has their
// prefix in its cache, as far as loads allow it.
#pragma once

#include "router/policy.h"

namespace espalier::router {

// A prompt goes to the worker that was sent its longest prefix. Where several were, it goes to the
// least loaded of them; where that is overloaded, the next shorter prefix decides, and last the load
// alone. SGLang's gateway gives up the cache for all requests while any worker is overloaded; here
// only the overloaded worker is passed over.
//
// The bound is loose for a prefix that one worker holds, as a conversation's, and near the mean load
// for one that many hold, as a system prompt: to hold that once more costs one prefill, and every
// conversation that begins with it then stays on a worker that has room. Not thread-safe.
class CacheAware final : public Policy {
 public:
  explicit CacheAware(const PolicyOptions& options) : options_(options), tree_(options.tree) {}

  Choice choose(const PolicyRequest& request, std::span<const Candidate> candidates) override;
  void forget_worker(WorkerSlot slot) override { tree_.remove_worker(slot); }
  const PrefixTree* tree() const override { return &tree_; }

 private:
  Choice find(const PolicyRequest& request, std::span<const Candidate> candidates);

  const PolicyOptions options_;
  PrefixTree tree_;
  PrefixTree::Match match_;  // of one call, kept for its memory
  size_t turn_ = 0;
};

}  // namespace espalier::router
