#include "router/cache_aware.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace espalier::router {

namespace {

// Twice as long as a prompt waits and computes, mostly: then its worker's events report it.
constexpr Duration kExpectedFor = std::chrono::seconds(2);

struct Holders {
  const Candidate* idlest = nullptr;
  size_t count = 0;
  float load = 0;  // of all together
};

// Those of the candidates that are in the set.
Holders holders_among(const WorkerSet& set, std::span<const Candidate> candidates) {
  Holders holders;
  set.for_each([&](WorkerSlot slot) {
    const auto c = std::ranges::lower_bound(candidates, slot, {}, &Candidate::slot);
    if (c == candidates.end() || c->slot != slot) return;
    ++holders.count;
    holders.load += c->load();
    if (holders.idlest == nullptr || c->load() < holders.idlest->load()) holders.idlest = &*c;
  });
  return holders;
}

float total_load(std::span<const Candidate> candidates) {
  float sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.load();
  return sum;
}

float mean_load(std::span<const Candidate> candidates) {
  return total_load(candidates) / static_cast<float>(candidates.size());
}

}  // namespace

Choice CacheAware::choose(const PolicyRequest& request, std::span<const Candidate> candidates) {
  const bool is_exact = is_mirrored(request, candidates);
  const Choice choice =
      is_exact ? choose_by_events(request, candidates) : choose_by_history(request, candidates);
  tree_.insert(request.key, choice.slot);  // also for the time when a worker has no events
  if (is_exact) expect(request, choice.slot);
  if (request.adapter != 0) homes_.insert(request.adapter, choice.slot, request.now);
  return choice;
}

bool CacheAware::is_mirrored(const PolicyRequest& request,
                             std::span<const Candidate> candidates) const {
  return request.tokens != nullptr && !request.tokens->ids.empty() &&
         std::ranges::all_of(candidates,
                             [&](const Candidate& c) { return mirror_.is_mirrored(c.slot); });
}

Choice CacheAware::choose_by_history(const PolicyRequest& request,
                                     std::span<const Candidate> candidates) {
  tree_.match(request.key, match_);
  path_.clear();
  for (const PrefixTree::Step& step : match_.path) path_.push_back({step.num_blocks, step.workers});
  return find(request, candidates, match_.at_leafs_end, static_cast<double>(request.key.size()));
}

Choice CacheAware::choose_by_events(const PolicyRequest& request,
                                    std::span<const Candidate> candidates) {
  const std::array<const BlockTree*, 3> trees = {&mirror_.tree(), &recent_, &older_};
  BlockMatcher matcher(*request.tokens, trees, options_.load_costs);
  std::map<uint32_t, std::vector<WorkerSlot>> slots;  // by block size, of which there is one mostly
  for (const Candidate& c : candidates) slots[mirror_.block_size(c.slot)].push_back(c.slot);
  for (const auto& [block_size, of_size] : slots) matcher.add(block_size, of_size);
  const BlockMatch match = matcher.take();
  if (match.path.empty()) {
    // Nobody holds it, or workers name it in a way that is not known here (a key's tenant): then a
    // conversation still stays where it was.
    Choice choice = choose_by_history(request, candidates);
    choice.num_blocks_shared = 0;
    return choice;
  }
  path_.clear();
  for (const BlockMatch::Step& step : match.path)
    path_.push_back({static_cast<uint32_t>(step.num_tokens / kTokensPerBlock), &step.workers});
  return find(request, candidates, match.at_leafs_end,
              static_cast<double>(request.tokens->ids.size()) / kTokensPerBlock);
}

// By how much a worker that alone holds a whole prompt may exceed the mean load.
float CacheAware::spare_load(float mean) const {
  return std::max(static_cast<float>(options_.balance_abs_threshold),
                  mean * static_cast<float>(options_.balance_rel_threshold - 1));
}

const Candidate* CacheAware::home_of(const PolicyRequest& request,
                                     std::span<const Candidate> candidates) const {
  const Candidate* idlest = nullptr;
  for (const Candidate& c : candidates)
    if (homes_.contains(request.adapter, c.slot, request.now) &&
        (idlest == nullptr || c.load() < idlest->load()))
      idlest = &c;
  const float mean = mean_load(candidates);
  return idlest != nullptr && idlest->load() <= mean + spare_load(mean) ? idlest : nullptr;
}

Choice CacheAware::find(const PolicyRequest& request, std::span<const Candidate> candidates,
                        bool goes_on, double num_blocks) {
  const Candidate* chosen = &least_loaded(candidates, turn_++);
  const double enough = options_.cache_threshold * num_blocks;
  const float total = total_load(candidates), mean = mean_load(candidates);
  for (auto step = path_.rbegin(); step != path_.rend(); ++step) {
    if (!goes_on && static_cast<double>(step->num_blocks) < enough) break;
    const Holders holders = holders_among(*step->workers, candidates);
    const size_t num_others = candidates.size() - holders.count;
    // A conversation stays unless its worker has much more to do than the mean. A new one is
    // compared with the workers that would compute the prefix once more.
    float load_max = mean + spare_load(mean);
    if (!goes_on && num_others == 0) load_max = total;
    if (!goes_on && num_others > 0 && holders.count > 0)
      load_max = (total - holders.load) / static_cast<float>(num_others) +
                 spare_load(mean) * static_cast<float>(step->num_blocks / num_blocks) /
                     static_cast<float>(holders.count);
    if (holders.count > 0 && holders.idlest->load() <= load_max)
      return {holders.idlest->slot, step->num_blocks};
    goes_on = false;
  }
  if (request.adapter != 0)
    if (const Candidate* const home = home_of(request, candidates)) chosen = home;
  // What is cached there nevertheless, for the report.
  const auto has = std::ranges::find_if(path_.rbegin(), path_.rend(), [&](const Step& step) {
    return step.workers->contains(chosen->slot);
  });
  return {chosen->slot, has == path_.rend() ? 0 : has->num_blocks};
}

void CacheAware::expect(const PolicyRequest& request, WorkerSlot slot) {
  const Duration age = request.now - recent_since_;
  if (age >= kExpectedFor) {
    older_ = age >= 2 * kExpectedFor ? BlockTree() : std::move(recent_);
    recent_ = BlockTree();
    recent_since_ = request.now;
  }
  insert_blocks(*request.tokens, mirror_.block_size(slot), slot, recent_);
}

void CacheAware::apply_event(WorkerSlot slot, const KvEvent& event) {
  if (event.type == KvEvent::Type::kCleared) {
    recent_.remove_worker(slot);
    older_.remove_worker(slot);
  } else if (event.type == KvEvent::Type::kRemoved && event.medium == KvMedium::kDevice) {
    for (const uint64_t name : event.hashes)
      if (const uint64_t hash = mirror_.hash_of(slot, name); hash != 0) {
        recent_.erase(hash, slot);
        older_.erase(hash, slot);
      }
  }
  mirror_.apply(slot, event);
}

void CacheAware::forget_worker(WorkerSlot slot) {
  tree_.remove_worker(slot);
  homes_.forget_worker(slot);
  mirror_.forget(slot);
  recent_.remove_worker(slot);
  older_.remove_worker(slot);
}

}  // namespace espalier::router
