// Which id stands in prompts for a picture: the same for equal files and another for each other
// one, so that the radix tree shares what equal pictures have computed and nothing else.
//
// All positions of a picture have its key. Which of its rows a position holds follows from the
// positions before it, for the picture's number of rows follows from its contents: two prompts that
// are equal up to a position hold the same row there.
//
// Contents are compared by their SHA-256 digests and numbers are never given twice, so a client
// cannot construct a picture that stands for another's. Numbers are of this process alone:
// a cache that outlives it must not hold such keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>

#include "base/sha256.h"
#include "seams/forward_batch.h"

namespace espalier {

// Thread-safe. Memory is bounded: a picture that was not requested in the last `capacity` others
// gets a new key, so what is cached of it is computed anew.
class SpanKeys {
 public:
  using Digest = Sha256::Digest;
  static constexpr size_t kCapacity = size_t{1} << 18;

  explicit SpanKeys(size_t capacity = kCapacity, TokenId first = kFirstSpanKey)
      : capacity_(capacity), next_(first) {}

  // Nothing once all numbers are used up.
  std::optional<TokenId> key_of(const Digest& digest);

 private:
  struct Known {
    TokenId key = -1;
    std::list<const Digest*>::iterator used;  // its entry of used_
  };

  const size_t capacity_;
  std::mutex mutex_;
  int64_t next_;
  std::map<Digest, Known> known_;
  std::list<const Digest*> used_;  // of known_'s keys, the last used first
};

}  // namespace espalier
