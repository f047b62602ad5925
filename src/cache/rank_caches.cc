#include "cache/rank_caches.h"

namespace espalier {

PrefixCacheSizes RankCaches::sizes() const {
  PrefixCacheSizes sum = first().sizes();
  for (size_t i = 1; i < caches_.size(); ++i) {
    const PrefixCacheSizes one = caches_[i]->sizes();
    sum.total += one.total;
    sum.free += one.free;
    sum.evictable += one.evictable;
    sum.protected_ += one.protected_;
    if (caches_[i]->has_window()) sum.window_available += one.window_available;
  }
  return sum;
}

}  // namespace espalier
