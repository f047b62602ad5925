// CacheEventLog: the last events of the prefix cache (pages stored and removed), in order, for
// mirrors of it in a router or an observer. A reader states the number of the first event that it
// has not seen. Where that event has been overwritten, the reader gets a kCleared first and starts
// over.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "seams/cache_event.h"

namespace espalier {

// Thread-safe; owns the events. At its bound the oldest event is overwritten.
class CacheEventLog {
 public:
  explicit CacheEventLog(size_t num_events_max) : ring_(num_events_max) {}  // at least 1

  void push(CacheEvent event);  // assigns the event's number

  // Events from number `from` on (0 is 1), at most num_events_max. A number above the
  // last one (of another process's log, say) counts as having missed everything.
  CacheEvents read(uint64_t from, size_t num_events_max) const;

  uint64_t num_events() const;       // pushed up to now
  uint64_t num_overwritten() const;  // of num_events()

 private:
  mutable std::mutex mutex_;
  std::vector<CacheEvent> ring_;  // event n lies at (n - 1) % size
  uint64_t last_ = 0;             // number
};

}  // namespace espalier
