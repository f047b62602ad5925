// The prefix caches of an engine: one, or with data-parallel attention one for each rank, which has
// pages of its own. Not thread-safe; used from the scheduler's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cache/prefix_cache.h"

namespace espalier {

class RankCaches {
 public:
  RankCaches() = default;
  // REQUIRES: at least one, all with the same number of pages of the same size.
  explicit RankCaches(std::vector<std::unique_ptr<PrefixCache>> caches)
      : caches_(std::move(caches)) {}

  int32_t size() const { return static_cast<int32_t>(caches_.size()); }
  PrefixCache& of(int32_t rank) const { return *caches_[static_cast<size_t>(rank)]; }
  PrefixCache& first() const { return *caches_.front(); }
  int32_t page_size() const { return first().page_size(); }

  // Of all ranks together.
  PrefixCacheSizes sizes() const;
  void flush() const {
    for (const auto& cache : caches_) cache->flush();
  }

 private:
  std::vector<std::unique_ptr<PrefixCache>> caches_;
};

}  // namespace espalier
