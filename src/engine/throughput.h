// Output tokens a second over the last few seconds, from counts in buckets of time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/clock.h"

namespace espalier {

// Not thread-safe. No allocation.
class ThroughputWindow {
 public:
  static constexpr Duration kBucket = std::chrono::milliseconds(250);
  static constexpr int64_t kBuckets = 20;  // 5 seconds

  void add(TimePoint now, int64_t count) {
    Bucket& b = buckets_[static_cast<size_t>(index(now) % kBuckets)];
    if (b.index != index(now)) b = {.index = index(now)};
    b.count += count;
  }

  // Over the time since the oldest tokens in the window, at least one bucket; 0 when it has none.
  double per_second(TimePoint now) const {
    int64_t count = 0, oldest = index(now);
    for (const Bucket& b : buckets_) {
      if (b.count == 0 || b.index <= index(now) - kBuckets) continue;
      count += b.count;
      oldest = std::min(oldest, b.index);
    }
    const Duration span = now.time_since_epoch() - oldest * kBucket;
    return static_cast<double>(count) / to_seconds(std::max(span, kBucket));
  }

 private:
  struct Bucket {
    int64_t index = -1;
    int64_t count = 0;
  };
  static int64_t index(TimePoint t) { return t.time_since_epoch() / kBucket; }
  std::array<Bucket, kBuckets> buckets_;
};

}  // namespace espalier
