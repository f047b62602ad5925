// What the prefix cache stores and removes, for a mirror of it in another component: a router or an
// observer. Plain data; owns what it contains.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "seams/page_name.h"
#include "seams/vocab_view.h"

namespace espalier {

// Pages bear their stable names (page_name.h), so equal prefixes have equal names in every replica
// of a model.
struct CacheEvent {
  enum class Type : uint8_t {
    kStored,   // these pages can be reused, in the order of their tokens
    kRemoved,  // these cannot any more
    kCleared,  // nothing is cached; a reader that has missed events gets this one first
  };
  // Where the pages are: on the device, or as copies in the host's memory, whose events state the
  // pages' names alone.
  enum class Medium : uint8_t { kDevice, kHost };
  Type type = Type::kCleared;
  Medium medium = Medium::kDevice;  // of kCleared: everywhere
  uint64_t number = 0;              // 1, 2, 3 ...
  std::vector<PageName> pages;
  PageName parent;              // kStored: the page before the first; empty: it begins a prefix
  std::vector<TokenId> tokens;  // kStored: of these pages
  std::string cache_namespace;  // kStored
  std::string adapter;          // kStored: the name of the LoRA adapter; empty: none
};

// The answer to a reader that has seen all events before one.
struct CacheEvents {
  std::vector<CacheEvent> events;
  uint64_t next = 1;        // the first number of the reader's next call
  uint64_t num_missed = 0;  // they were overwritten; then the first event is a kCleared
};

}  // namespace espalier
