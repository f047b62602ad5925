#include "engine/sampling/token_counts.h"

#include <algorithm>

#include "base/rng.h"

namespace espalier {

void TokenCounts::reset(std::span<const TokenId> prompt_ids, std::span<const TokenId> output_ids) {
  entries_.clear();
  std::fill(buckets_.begin(), buckets_.end(), -1);
  for (TokenId id : prompt_ids) entry(id);
  for (TokenId id : output_ids) add_output(id);
}

TokenCounts::Entry& TokenCounts::entry(TokenId id) {
  if (buckets_.size() < 2 * (entries_.size() + 1))
    rehash(std::max<size_t>(64, 2 * buckets_.size()));
  const size_t wrap = buckets_.size() - 1;
  for (size_t b = mix64(static_cast<uint64_t>(id)) & wrap;; b = (b + 1) & wrap) {
    if (buckets_[b] < 0) {
      buckets_[b] = static_cast<int32_t>(entries_.size());
      return entries_.emplace_back(Entry{.id = id});
    }
    if (Entry& e = entries_[static_cast<size_t>(buckets_[b])]; e.id == id) return e;
  }
}

void TokenCounts::rehash(size_t buckets) {
  buckets_.assign(buckets, -1);
  for (size_t i = 0; i < entries_.size(); ++i) {
    size_t b = mix64(static_cast<uint64_t>(entries_[i].id)) & (buckets - 1);
    while (buckets_[b] >= 0) b = (b + 1) & (buckets - 1);
    buckets_[b] = static_cast<int32_t>(i);
  }
}

}  // namespace espalier
