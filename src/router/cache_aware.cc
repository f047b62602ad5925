#include "router/cache_aware.h"

#include <algorithm>

namespace espalier::router {

namespace {

struct Holders {
  const Candidate* idlest = nullptr;
  int count = 0;
};

// Those of the candidates that are in the set.
Holders holders_among(const WorkerSet& set, std::span<const Candidate> candidates) {
  Holders holders;
  set.for_each([&](WorkerSlot slot) {
    const auto c = std::ranges::lower_bound(candidates, slot, {}, &Candidate::slot);
    if (c == candidates.end() || c->slot != slot) return;
    ++holders.count;
    if (holders.idlest == nullptr || c->load() < holders.idlest->load()) holders.idlest = &*c;
  });
  return holders;
}

float mean_load(std::span<const Candidate> candidates) {
  float sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.load();
  return sum / static_cast<float>(candidates.size());
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
  const float mean = mean_load(candidates);
  const float spare = std::max(static_cast<float>(options_.balance_abs_threshold),
                               mean * static_cast<float>(options_.balance_rel_threshold - 1));
  const double enough = options_.cache_threshold * static_cast<double>(request.key.size());
  bool goes_on = match_.at_leafs_end;
  for (auto step = match_.path.rbegin(); step != match_.path.rend(); ++step) {
    if (!goes_on && static_cast<double>(step->num_blocks) < enough) break;
    const Holders holders = holders_among(*step->workers, candidates);
    if (holders.count > 0 &&
        holders.idlest->load() <= mean + spare / static_cast<float>(holders.count))
      return {holders.idlest->slot, step->num_blocks};
    goes_on = false;
  }
  // What is cached there nevertheless, for the report.
  const auto has = std::ranges::find_if(match_.path.rbegin(), match_.path.rend(), [&](auto& step) {
    return step.workers->contains(idlest.slot);
  });
  return {idlest.slot, has == match_.path.rend() ? 0 : has->num_blocks};
}

}  // namespace espalier::router
