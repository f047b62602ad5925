// What the prefix cache has come to hold and what it has given up, for whoever mirrors it: a
// router, an observer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "seams/vocab_view.h"

namespace espalier {

// A page is named by the hash of all tokens up to its end and of its namespace, so equal prefixes
// have equal names in every replica.
struct CacheEvent {
  enum class Type : uint8_t {
    kStored,   // these pages can be reused, in the order of their tokens
    kRemoved,  // these cannot any more
    kCleared,  // nothing is cached; also told to a reader that has missed events
  };
  Type type = Type::kCleared;
  uint64_t number = 0;           // 1, 2, 3 ...
  std::vector<uint64_t> hashes;  // of pages
  uint64_t parent_hash = 0;      // kStored: of the page before the first; 0: it begins a prefix
  std::vector<TokenId> tokens;   // kStored: of these pages
  std::string cache_namespace;   // kStored
};

// What a reader gets that has seen all events before one.
struct CacheEvents {
  std::vector<CacheEvent> events;
  uint64_t next = 1;        // ask from here the next time
  uint64_t num_missed = 0;  // they were overwritten; then the first event is a kCleared
};

}  // namespace espalier
