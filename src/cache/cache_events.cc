#include "cache/cache_events.h"

#include <algorithm>
#include <utility>

namespace espalier {

void CacheEventLog::push(CacheEvent event) {
  std::lock_guard lock(mutex_);
  event.number = ++last_;
  ring_[(last_ - 1) % ring_.size()] = std::move(event);
}

CacheEvents CacheEventLog::read(uint64_t from, size_t num_events_max) const {
  std::lock_guard lock(mutex_);
  CacheEvents out;
  uint64_t next = std::max<uint64_t>(from, 1);
  const uint64_t oldest = last_ < ring_.size() ? 1 : last_ - ring_.size() + 1;
  if (next > last_ + 1) {
    out.num_missed = last_;
    next = oldest;
    out.events.push_back({.number = oldest - 1});
  } else if (next < oldest) {
    out.num_missed = oldest - next;
    next = oldest;
    out.events.push_back({.number = oldest - 1});
  }
  for (; next <= last_ && out.events.size() < num_events_max; ++next)
    out.events.push_back(ring_[(next - 1) % ring_.size()]);
  out.next = next;
  return out;
}

uint64_t CacheEventLog::num_events() const {
  std::lock_guard lock(mutex_);
  return last_;
}

uint64_t CacheEventLog::num_overwritten() const {
  std::lock_guard lock(mutex_);
  return last_ < ring_.size() ? 0 : last_ - ring_.size();
}

}  // namespace espalier
