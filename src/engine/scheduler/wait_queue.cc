#include "engine/scheduler/wait_queue.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/rng.h"

namespace espalier {

namespace {

// A lower tier goes first; within a tier, order of arrival.
using TierFunction = int64_t (*)(const SequenceSpec&);
int64_t tier_of_arrival(const SequenceSpec&) { return 0; }
int64_t tier_of_output(const SequenceSpec& spec) { return -int64_t{spec.max_new_tokens}; }
int64_t tier_of_id_hash(const SequenceSpec& spec) {
  return static_cast<int64_t>(mix64(spec.id) >> 1);
}
int64_t tier_of_priority(const SequenceSpec& spec) { return -int64_t{spec.priority}; }

struct PolicyEntry {
  SchedulePolicy policy;
  std::string_view name;
  TierFunction tier;
};
constexpr PolicyEntry kPolicies[] = {
    {SchedulePolicy::kLpm, "lpm", tier_of_arrival},
    {SchedulePolicy::kDfsWeight, "dfs-weight", tier_of_arrival},
    {SchedulePolicy::kFcfs, "fcfs", tier_of_arrival},
    {SchedulePolicy::kLof, "lof", tier_of_output},
    {SchedulePolicy::kRandom, "random", tier_of_id_hash},
    {SchedulePolicy::kPriority, "priority", tier_of_priority},
};

constexpr bool indexed_by_policy() {
  for (size_t i = 0; i < std::size(kPolicies); ++i)
    if (kPolicies[i].policy != static_cast<SchedulePolicy>(i)) return false;
  return true;
}
static_assert(indexed_by_policy());

constexpr std::string_view kFairShares[] = {"none", "tenant", "priority"};

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

Result<FairShare> parse_fair_share(std::string_view name) {
  for (size_t i = 0; i < std::size(kFairShares); ++i)
    if (kFairShares[i] == name) return static_cast<FairShare>(i);
  return fail(invalid_argument("unknown fair share '{}'; known: none, tenant, priority", name));
}

WaitQueue::WaitQueue(const SchedulerConfig& config, const PrefixCache& cache)
    : config_(config), cache_(cache) {}

std::string WaitQueue::share_key(const SequenceSpec& spec) const {
  switch (config_.fair_share) {
    case FairShare::kNone:
      break;
    case FairShare::kTenant:
      return spec.tenant.empty() ? spec.cache_namespace : spec.tenant;
    case FairShare::kPriority:
      return std::to_string(spec.priority);
  }
  return {};
}

// A new or returning share has no claim on the past: it starts with the least service of the shares
// present.
WaitingShare& WaitQueue::share_of(const Sequence& sequence) {
  const std::string key = share_key(sequence.spec);
  const auto found = shares_.find(key);
  if (found != shares_.end()) return found->second;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [name, share] : shares_) least = std::min(least, share.service);
  WaitingShare& share = shares_[key];
  share.key = key;
  share.service = shares_.size() == 1 ? 0 : least;
  const SchedulePolicy policy = config_.policy;
  if (policy == SchedulePolicy::kDfsWeight)
    share.tree = std::make_unique<WaitingTree>(WaitingTree::Order::kDepthFirst, cache_);
  if (policy == SchedulePolicy::kLpm && cache_.radix_tree() != nullptr)
    share.tree = std::make_unique<WaitingTree>(WaitingTree::Order::kLongestMatch, cache_);
  return share;
}

void WaitQueue::add(Sequence& sequence) {
  WaitingShare& share = share_of(sequence);
  ++share.num_sequences;
  if (config_.fair_share == FairShare::kTenant) {
    share.weight = sequence.spec.share_weight;
    share.service_per_token = 1 / share.weight;
  }
  sequence.queue.share = &share;
  if (sequence.spec.num_generated > 0) return push_retracted(sequence);
  sequence.queue.overdue_at = share.num_arrived++ + config_.bypass_bound;
  const TierFunction tier = kPolicies[static_cast<size_t>(config_.policy)].tier;
  sequence.queue.own_rank = {tier(sequence.spec), num_pushed_++};
  push(sequence);
  sequence.queue.prev_arrived = share.newest;
  (share.newest != nullptr ? share.newest->queue.next_arrived : share.oldest) = &sequence;
  share.newest = &sequence;
}

void WaitQueue::left(Sequence& sequence) {
  WaitingShare& share = *std::exchange(sequence.queue.share, nullptr);
  if (--share.num_sequences > 0) return;
  shares_.erase(shares_.find(std::string(share.key)));
}

void WaitQueue::push(Sequence& sequence) {
  sequence.queue.rank = sequence.queue.own_rank;
  WaitingShare& share = *sequence.queue.share;
  ++size_;
  ++share.num_waiting;
  if (share.tree != nullptr) {
    share.tree->add(sequence);
  } else {
    share.ranked.insert(&sequence);
  }
}

void WaitQueue::requeue(Sequence& sequence) {
  sequence.state.move_to(SequenceState::kWaiting);
  sequence.num_computed = sequence.num_launched = 0;
  sequence.queue.match_version = sequence.queue.bound_version = QueueEntry::kNeverMatched;
  const bool was_preempted = std::exchange(sequence.preemption.pending, false);
  if (was_preempted && sequence.spec.num_generated == 0) {
    push_preempted(sequence);
  } else {
    push_retracted(sequence);
  }
}

void WaitQueue::push_retracted(Sequence& sequence) {
  sequence.queue.rank = {0, -num_pushed_++};
  sequence.queue.in_retracted = true;
  retracted_.insert(&sequence);
  ++size_;
}

// It returns to its position in the list of arrivals too. The walk is short: it came before most
// sequences that wait.
void WaitQueue::push_preempted(Sequence& sequence) {
  push(sequence);
  WaitingShare& share = *sequence.queue.share;
  --share.num_gone;
  Sequence* next = share.oldest;
  while (next != nullptr && next->queue.overdue_at < sequence.queue.overdue_at)
    next = next->queue.next_arrived;
  Sequence* const prev = next == nullptr ? share.newest : next->queue.prev_arrived;
  sequence.queue.prev_arrived = prev;
  sequence.queue.next_arrived = next;
  (prev != nullptr ? prev->queue.next_arrived : share.oldest) = &sequence;
  (next != nullptr ? next->queue.prev_arrived : share.newest) = &sequence;
}

void WaitQueue::remove(Sequence& sequence) {
  --size_;
  if (std::exchange(sequence.queue.in_retracted, false)) {
    retracted_.erase(&sequence);
    return;
  }
  WaitingShare& share = *sequence.queue.share;
  --share.num_waiting;
  if (share.tree != nullptr) {
    share.tree->remove(sequence);
  } else {
    share.ranked.erase(&sequence);
    std::erase(share.deferred, &sequence);
  }
  const bool lined_up = share.oldest == &sequence || sequence.queue.prev_arrived != nullptr;
  if (!lined_up) return;
  ++share.num_gone;
  Sequence* const prev = std::exchange(sequence.queue.prev_arrived, nullptr);
  Sequence* const next = std::exchange(sequence.queue.next_arrived, nullptr);
  (prev != nullptr ? prev->queue.next_arrived : share.oldest) = next;
  (next != nullptr ? next->queue.prev_arrived : share.newest) = prev;
}

void WaitQueue::on_stored(std::string_view cache_namespace, std::span<const TokenId> tokens) {
  if (size_ == 0 || config_.policy != SchedulePolicy::kLpm) return;
  for (auto& [key, share] : shares_)
    if (share.tree != nullptr) share.tree->on_stored(cache_namespace, tokens);
}

Sequence* WaitQueue::first_of(WaitingShare& share) {
  Sequence* const oldest = share.oldest;
  if (oldest != nullptr && is_overdue(*oldest)) return oldest;
  if (share.tree != nullptr) return share.tree->first();
  return share.ranked.empty() ? nullptr : *share.ranked.begin();
}

void WaitQueue::add_waiting_shares(std::set<const WaitingShare*>& shares) const {
  for (const auto& [key, share] : shares_)
    if (share.num_waiting > 0) shares.insert(&share);
}

Sequence* WaitQueue::first_retracted() const {
  const auto first = std::ranges::min_element(
      retracted_, {}, [](const Sequence* s) { return s->queue.share->service; });
  return first == retracted_.end() ? nullptr : *first;
}

Sequence* WaitQueue::next() {
  Sequence* const retracted = first_retracted();
  while (true) {
    WaitingShare* least = nullptr;
    for (auto& [key, share] : shares_)
      if (share.num_waiting > 0 && (least == nullptr || share.service < least->service) &&
          std::find(exhausted_.begin(), exhausted_.end(), &share) == exhausted_.end())
        least = &share;
    if (least == nullptr) return retracted;
    if (retracted != nullptr && retracted->queue.share->service <= least->service) return retracted;
    if (Sequence* const sequence = first_of(*least)) return sequence;
    exhausted_.push_back(least);  // all of it is deferred
  }
}

void WaitQueue::defer(Sequence& sequence, int32_t num_tokens) {
  WaitingShare& share = *sequence.queue.share;
  if (std::find(with_deferred_.begin(), with_deferred_.end(), &share) == with_deferred_.end())
    with_deferred_.push_back(&share);
  if (share.tree != nullptr) return share.tree->defer(sequence, num_tokens);
  share.ranked.erase(&sequence);
  share.deferred.push_back(&sequence);
}

void WaitQueue::end_round() {
  for (WaitingShare* share : with_deferred_) {
    if (share->tree != nullptr) share->tree->restore_deferred();
    share->ranked.insert(share->deferred.begin(), share->deferred.end());
    share->deferred.clear();
  }
  with_deferred_.clear();
  exhausted_.clear();
}

double WaitQueue::service_of(const std::string& share) const {
  const auto found = shares_.find(share);
  return found == shares_.end() ? 0 : found->second.service;
}

void WaitQueue::check_invariants() const {
  ESP_CHECK(exhausted_.empty() && with_deferred_.empty(), "a round has not ended");
  auto count = static_cast<int32_t>(retracted_.size());
  for (const Sequence* s : retracted_) ESP_CHECK(s->state == SequenceState::kWaiting);
  for (const auto& [key, share] : shares_) {
    ESP_CHECK(share.weight > 0);
    ESP_CHECK(share.num_sequences >= share.num_waiting && share.num_sequences > 0);
    if (share.tree != nullptr) {
      ESP_CHECK(share.tree->size() == share.num_waiting && share.ranked.empty());
      share.tree->check_invariants();
    } else {
      ESP_CHECK(static_cast<int32_t>(share.ranked.size()) == share.num_waiting);
    }
    count += share.num_waiting;
    const Sequence* prev = nullptr;
    int32_t num_lined_up = 0;
    for (const Sequence* s = share.oldest; s != nullptr; prev = s, s = s->queue.next_arrived) {
      ESP_CHECK(s->state == SequenceState::kWaiting && s->queue.share == &share);
      ESP_CHECK(s->queue.prev_arrived == prev);
      ESP_CHECK(prev == nullptr || prev->queue.overdue_at < s->queue.overdue_at);
      ++num_lined_up;
    }
    ESP_CHECK(share.newest == prev && num_lined_up <= share.num_waiting);
    ESP_CHECK(num_lined_up == share.num_arrived - share.num_gone);
  }
  ESP_CHECK(count == size_, "{} wait, {} counted", count, size_);
}

}  // namespace espalier
