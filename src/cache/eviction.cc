#include "cache/eviction.h"

#include <limits>

namespace espalier {

namespace {

using RankFunction = EvictionRank (*)(const NodeUse&);

EvictionRank rank_lru(const NodeUse& use) { return {0, use.last_use}; }
EvictionRank rank_lfu(const NodeUse& use) { return {use.num_uses, use.last_use}; }
EvictionRank rank_fifo(const NodeUse& use) { return {0, use.created}; }
EvictionRank rank_mru(const NodeUse& use) {
  return {0, std::numeric_limits<uint64_t>::max() - use.last_use};
}
EvictionRank rank_slru(const NodeUse& use) {
  return {use.num_uses >= 2 ? uint64_t{1} : uint64_t{0}, use.last_use};
}
// Adding 2^31 keeps the order of int32 in an unsigned tier.
EvictionRank rank_priority(const NodeUse& use) {
  return {static_cast<uint64_t>(int64_t{use.priority} + (int64_t{1} << 31)), use.last_use};
}

struct PolicyEntry {
  EvictionPolicy policy;
  std::string_view name;
  RankFunction rank;
};
constexpr PolicyEntry kPolicies[] = {
    {EvictionPolicy::kLru, "lru", rank_lru},
    {EvictionPolicy::kLfu, "lfu", rank_lfu},
    {EvictionPolicy::kFifo, "fifo", rank_fifo},
    {EvictionPolicy::kMru, "mru", rank_mru},
    {EvictionPolicy::kSlru, "slru", rank_slru},
    {EvictionPolicy::kPriority, "priority", rank_priority},
};

constexpr bool indexed_by_policy() {
  for (size_t i = 0; i < std::size(kPolicies); ++i)
    if (kPolicies[i].policy != static_cast<EvictionPolicy>(i)) return false;
  return true;
}
static_assert(indexed_by_policy());

const PolicyEntry& entry_of(EvictionPolicy policy) {
  return kPolicies[static_cast<size_t>(policy)];
}

}  // namespace

Result<EvictionPolicy> parse_eviction_policy(std::string_view name) {
  std::string known;
  for (const PolicyEntry& entry : kPolicies) {
    if (entry.name == name) return entry.policy;
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  return fail(invalid_argument("unknown eviction policy '{}'; known: {}", name, known));
}

std::string_view eviction_policy_name(EvictionPolicy policy) { return entry_of(policy).name; }

EvictionRank eviction_rank(EvictionPolicy policy, const NodeUse& use) {
  return entry_of(policy).rank(use);
}

}  // namespace espalier
