#include "engine/scheduler/waiting_queue.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/rng.h"

namespace espalier {

namespace {

// Behind the window the queue is walked in its own order so much further, for when all of the
// window are held back for prefixes that others compute.
constexpr int32_t kReachInWindows = 4;

// What goes first has the lower tier; within one, order of arrival.
using TierFunction = int64_t (*)(const SequenceSpec&);
int64_t tier_of_arrival(const SequenceSpec&) { return 0; }
int64_t tier_of_output(const SequenceSpec& spec) { return -int64_t{spec.max_new_tokens}; }
int64_t tier_of_chance(const SequenceSpec& spec) {
  return static_cast<int64_t>(mix64(spec.id) >> 1);
}
int64_t tier_of_priority(const SequenceSpec& spec) { return -int64_t{spec.priority}; }
constexpr int64_t kRetractedTier = std::numeric_limits<int64_t>::min();

struct PolicyEntry {
  SchedulePolicy policy;
  std::string_view name;
  TierFunction tier;
};
constexpr PolicyEntry kPolicies[] = {
    {SchedulePolicy::kLpm, "lpm", tier_of_arrival},
    {SchedulePolicy::kFcfs, "fcfs", tier_of_arrival},
    {SchedulePolicy::kLof, "lof", tier_of_output},
    {SchedulePolicy::kRandom, "random", tier_of_chance},
    {SchedulePolicy::kPriority, "priority", tier_of_priority},
};

constexpr bool indexed_by_policy() {
  for (size_t i = 0; i < std::size(kPolicies); ++i)
    if (kPolicies[i].policy != static_cast<SchedulePolicy>(i)) return false;
  return true;
}
static_assert(indexed_by_policy());

}  // namespace

Result<SchedulePolicy> parse_schedule_policy(std::string_view name) {
  std::string known;
  for (const PolicyEntry& entry : kPolicies) {
    if (entry.name == name) return entry.policy;
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  return fail(invalid_argument("unknown schedule policy '{}'; known: {}", name, known));
}

std::string_view schedule_policy_name(SchedulePolicy policy) {
  return kPolicies[static_cast<size_t>(policy)].name;
}

void WaitingQueue::push(Sequence& sequence) {
  const TierFunction tier = kPolicies[static_cast<size_t>(policy_)].tier;
  sequence.waiting_rank = {tier(sequence.spec), num_pushed_++};
  sequences_.insert(&sequence);
}

void WaitingQueue::push_front(Sequence& sequence) {
  sequence.waiting_rank = {kRetractedTier, -num_pushed_++};
  sequences_.insert(&sequence);
}

int32_t current_match(Sequence& sequence, const PrefixCache& cache) {
  if (sequence.match_version != cache.version()) {
    sequence.matched =
        cache.match(sequence.spec.cache_namespace, sequence.first_tokens(sequence.match_limit()));
    sequence.match_version = cache.version();
  }
  return sequence.matched;
}

void WaitingQueue::order(const PrefixCache& cache, int64_t num_admitted,
                         std::vector<Sequence*>& order) const {
  order.clear();
  auto at = sequences_.begin();
  const auto take = [&](int32_t count) {
    for (; at != sequences_.end() && count > 0; --count, ++at) order.push_back(*at);
  };
  take(window_);
  if (policy_ == SchedulePolicy::kLpm) {
    for (Sequence* waiting : order) current_match(*waiting, cache);
    sort_by_match(num_admitted, order);
  }
  take(window_ * (kReachInWindows - 1));
}

void WaitingQueue::sort_by_match(int64_t num_admitted, std::vector<Sequence*>& order) {
  const auto goes_first = [&](const Sequence* s) {
    return s->was_retracted() || num_admitted >= s->overdue_at;
  };
  std::sort(order.begin(), order.end(), [&](const Sequence* a, const Sequence* b) {
    const bool a_first = goes_first(a), b_first = goes_first(b);
    if (a_first != b_first) return a_first;
    if (!a_first && a->matched != b->matched) return a->matched > b->matched;
    return a->waiting_rank < b->waiting_rank;
  });
}

}  // namespace espalier
