// Which tokens a request has seen, for its penalties.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "seams/vocab_view.h"

namespace espalier {

// A set of tokens with how often each is in the output. Memory and scans are of the tokens seen,
// not of the vocabulary. Not thread-safe.
class TokenCounts {
 public:
  struct Entry {
    TokenId id = -1;
    int32_t output_count = 0;  // 0: in the prompt only
  };

  void reset(std::span<const TokenId> prompt_ids, std::span<const TokenId> output_ids);
  void add_output(TokenId id) { ++entry(id).output_count; }
  std::span<const Entry> entries() const { return entries_; }  // in order of first sight

 private:
  Entry& entry(TokenId id);
  void rehash(size_t buckets);

  std::vector<Entry> entries_;
  std::vector<int32_t> buckets_;  // index into entries_ or -1; a power of two, at most half full
};

}  // namespace espalier
