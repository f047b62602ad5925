// A cache of encoded words and their tokens. It is lock-free and bounded, and never evicts, because
// the most frequent words of a text occur early. When it is full, other words are encoded anew.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "seams/vocab_view.h"

namespace espalier {

// Thread-safe.
class WordCache {
 public:
  WordCache();
  ~WordCache();

  static constexpr size_t kWordBytesMax = 48;
  static constexpr size_t kTokensMax = 16;

  // Appends the tokens of `word` if it is known. `hash` is hash_of(word).
  bool find(std::string_view word, uint64_t hash, std::vector<TokenId>& out) const;
  void insert(std::string_view word, uint64_t hash, const TokenId* ids, size_t num_ids);
  static uint64_t hash_of(std::string_view word);

 private:
  struct Entry;
  // 2^17 entries of at most 128 bytes: 16 MiB when full of the largest, 6 MiB in practice.
  static constexpr size_t kNumSlots = 1 << 17;
  static constexpr size_t kProbes = 4;

  std::unique_ptr<std::array<std::atomic<const Entry*>, kNumSlots>> slots_;
};

}  // namespace espalier
