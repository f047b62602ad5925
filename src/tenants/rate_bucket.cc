#include "tenants/rate_bucket.h"

#include <algorithm>
#include <cmath>

namespace espalier {

// A token bucket that holds a minute's worth: it fills evenly, and a tenant that was idle may use a
// minute at once. The level may be negative where more was taken than was there.
void RateBucket::refill(TimePoint now) {
  const double gained = static_cast<double>(limit_) * to_seconds(now - filled_at_) / 60;
  level_ = std::min(static_cast<double>(limit_), level_ + gained);
  filled_at_ = now;
}

// Another limit keeps the share that is filled, so reloading the file neither refills a bucket that
// was used up nor empties a full one.
void RateBucket::set_limit(int64_t per_minute, TimePoint now) {
  const double filled = limit_ == 0 ? 1 : (refill(now), level_ / static_cast<double>(limit_));
  limit_ = per_minute;
  level_ = filled * static_cast<double>(limit_);
  filled_at_ = now;
}

int64_t RateBucket::remaining(TimePoint now) {
  refill(now);
  return std::max<int64_t>(0, static_cast<int64_t>(std::floor(level_)));
}

// An amount beyond the limit waits for a full bucket and then leaves it below zero: a large request
// is delayed, but it is never refused for ever.
Duration RateBucket::wait_for(int64_t amount, TimePoint now) {
  if (limit_ == 0) return Duration::zero();
  refill(now);
  const double missing = static_cast<double>(std::min(amount, limit_)) - level_;
  if (missing <= 1e-6) return Duration::zero();
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(missing * 60 / static_cast<double>(limit_)));
}

void RateBucket::take(int64_t amount, TimePoint now) {
  if (limit_ == 0) return;
  refill(now);
  level_ = std::min(static_cast<double>(limit_), level_ - static_cast<double>(amount));
}

}  // namespace espalier
