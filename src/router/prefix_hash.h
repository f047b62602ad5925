// Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam: "Consistent Hashing with
// Bounded Loads", 2016): prompts of the same begin go to the same worker, until that has more than
// its share; then to the next on the ring. It needs no memory of what was sent.
#pragma once

#include <vector>

#include "router/policy.h"

namespace espalier::router {

// Not thread-safe.
class PrefixHash final : public Policy {
 public:
  explicit PrefixHash(const PolicyOptions& options);
  Choice choose(const PolicyRequest& request, std::span<const Candidate> candidates) override;
  void forget_worker(WorkerSlot slot) override;

 private:
  struct Point {
    uint64_t hash = 0;
    WorkerSlot slot = 0;
  };
  // Candidates come and go, so their points are drawn when a slot is first seen, and points of
  // others are passed over.
  void add_points(std::span<const Candidate> candidates);

  const size_t num_blocks_;  // of a prompt that are hashed
  const double load_factor_;
  std::vector<Point> ring_;  // by hash
  WorkerSet on_ring_;
};

}  // namespace espalier::router
