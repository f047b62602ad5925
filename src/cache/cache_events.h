// What the prefix cache has come to hold and what it has given up, in order, for whoever mirrors
// it: a router, an observer. The log keeps the last events; readers come with the number of the
// first that they have not seen, each at its own pace, and one that comes too late is told to
// forget what it knows.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "seams/cache_event.h"

namespace espalier {

// The name of a page of `tokens` after the page `parent` (0: none).
uint64_t hash_of_page(std::string_view cache_namespace, uint64_t parent,
                      std::span<const TokenId> tokens);

// Thread-safe. At its bound the oldest event is overwritten.
class CacheEventLog {
 public:
  explicit CacheEventLog(size_t num_events_max) : ring_(num_events_max) {}  // at least 1

  void push(CacheEvent event);  // its number is given here

  // Events from number `from` on (0 is 1), at most so many. A number that is yet to come, of
  // another process's log say, counts as having missed everything.
  CacheEvents read(uint64_t from, size_t num_events_max) const;

  uint64_t num_events() const;       // so far
  uint64_t num_overwritten() const;  // of them

 private:
  mutable std::mutex mutex_;
  std::vector<CacheEvent> ring_;  // event n lies at (n - 1) % size
  uint64_t last_ = 0;             // number
};

}  // namespace espalier
