// Which unused leaf of the radix tree goes first. A policy is one line in a table: how a node's use
// becomes its rank.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

enum class EvictionPolicy : uint8_t {
  kLru,       // least recently used
  kLfu,       // least often used, then least recently
  kFifo,      // oldest
  kMru,       // most recently used
  kSlru,      // segmented: what was used once before what was used again; least recently in each
  kPriority,  // lowest priority of those that used it, then least recently
};

// "lru", "lfu", "fifo", "mru", "slru", "priority"; else kInvalidArgument with the list.
Result<EvictionPolicy> parse_eviction_policy(std::string_view name);
std::string_view eviction_policy_name(EvictionPolicy policy);

// What the tree knows of a node's use. Times are the tree's own count of operations.
struct NodeUse {
  uint64_t created = 0;
  uint64_t last_use = 0;
  uint64_t num_uses = 0;
  int32_t priority = 0;  // highest of its users
};

// Lowest goes first.
struct EvictionRank {
  uint64_t tier = 0;
  uint64_t time = 0;
  friend auto operator<=>(const EvictionRank&, const EvictionRank&) = default;
};

EvictionRank eviction_rank(EvictionPolicy policy, const NodeUse& use);

}  // namespace espalier
