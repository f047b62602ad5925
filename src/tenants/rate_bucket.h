// A token bucket of a minute's worth. Pure: time comes with each call.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace espalier {

// So many a minute: the level rises evenly up to a minute's worth. Not thread-safe.
class RateBucket {
 public:
  // per_minute: 0 for no limit. A changed limit keeps the part that is filled.
  void set_limit(int64_t per_minute, TimePoint now);
  int64_t limit() const { return limit_; }
  int64_t remaining(TimePoint now);  // at least 0
  // Until `amount` can be taken; zero: now. An amount above a minute's worth needs a full bucket.
  Duration wait_for(int64_t amount, TimePoint now);
  Duration until_full(TimePoint now) { return wait_for(limit_, now); }
  // May take more than there is; negative amounts give back.
  void take(int64_t amount, TimePoint now);

 private:
  void refill(TimePoint now);

  int64_t limit_ = 0;
  double level_ = 0;
  TimePoint filled_at_{};
};

}  // namespace espalier
