#include "router/cache_aware.h"

#include <algorithm>

namespace espalier::router {

namespace {

// The least loaded of the candidates in the set; null where none is in it.
const Candidate* least_loaded_of(const WorkerSet& set, std::span<const Candidate> candidates) {
  const Candidate* best = nullptr;
  set.for_each([&](WorkerSlot slot) {
    const auto c = std::ranges::lower_bound(candidates, slot, {}, &Candidate::slot);
    if (c == candidates.end() || c->slot != slot) return;
    if (best == nullptr || c->load() < best->load()) best = &*c;
  });
  return best;
}

}  // namespace

Choice CacheAware::choose(const PolicyRequest& request, std::span<const Candidate> candidates) {
  const Choice choice = find(request, candidates);
  tree_.insert(request.key, choice.slot);
  return choice;
}

Choice CacheAware::find(const PolicyRequest& request, std::span<const Candidate> candidates) {
  const Candidate& idlest = least_loaded(candidates, turn_++);
  tree_.match(request.key, match_);
  const float bound = std::max(idlest.load() + static_cast<float>(options_.balance_abs_threshold),
                               idlest.load() * static_cast<float>(options_.balance_rel_threshold));
  const double enough = options_.cache_threshold * static_cast<double>(request.key.size());
  bool goes_on = match_.at_leafs_end;
  for (auto step = match_.path.rbegin(); step != match_.path.rend(); ++step) {
    if (!goes_on && static_cast<double>(step->num_blocks) < enough) break;
    const Candidate* const c = least_loaded_of(*step->workers, candidates);
    if (c != nullptr && c->load() <= bound) return {c->slot, step->num_blocks};
    goes_on = false;
  }
  // What is cached there nevertheless, for the report.
  const auto has = std::ranges::find_if(match_.path.rbegin(), match_.path.rend(), [&](auto& step) {
    return step.workers->contains(idlest.slot);
  });
  return {idlest.slot, has == match_.path.rend() ? 0 : has->num_blocks};
}

}  // namespace espalier::router
