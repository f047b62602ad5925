// Where the last few tokens of a text occurred before: the continuation of the latest occurrence is
// a draft of what comes next. One index holds a request's own text, another the server's recent
// answers.
//
// n-grams of five lengths stand for all: the longest of them that occurred before gives 0.98 of the
// tokens a step that the longest match of a suffix automaton gives (bench/ngram_orders.py), in
// constant time.
//
// Bounded: it keeps the last `capacity` tokens and a direct-mapped table of four times as many
// entries, 36 bytes a token, all allocated at construction. An entry that two n-grams share holds
// the later one; find() compares tokens, so a collision loses a draft and never gives a wrong
// match. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "seams/vocab_view.h"

namespace espalier {

class NgramIndex {
 public:
  static constexpr int32_t kOrders[] = {2, 3, 5, 8, 16};  // tokens of n-grams, rising
  static constexpr int32_t kMatchMax = 16;                // tokens that a match is compared over

  explicit NgramIndex(size_t capacity);  // tokens; rounded up to a power of two, at least 32

  // `scope`: what is appended in one is not found in another.
  void append(uint64_t scope, TokenId token);
  void end_text() { push(-1); }  // no match and no continuation crosses it

  struct Match {
    int64_t next = -1;   // position of the token behind the earlier occurrence; -1: there is none
    int32_t length = 0;  // tokens that agree before it, at most kMatchMax
  };
  // The latest earlier occurrence of the longest n-gram at the end of `context` that has one.
  Match find(uint64_t scope, std::span<const TokenId> context) const;

  // The token at a position; -1 where a text ends, or the position is not kept.
  TokenId at(int64_t position) const;
  int64_t size() const { return size_; }    // positions so far, those that are not kept too
  std::span<const TokenId> recent() const;  // the last tokens, at most kMatchMax
  size_t capacity() const { return tokens_.size(); }

 private:
  struct Entry {
    uint32_t check = 0;  // of the n-gram's hash
    uint32_t next = 0;   // position behind it, modulo 2^32
  };
  void push(TokenId token);
  Match match_at(uint64_t hash, int32_t order, std::span<const TokenId> context) const;
  static constexpr size_t kNumOrders = std::size(kOrders);
  // Of the n-grams at the end of `last`, one for each order that it is long enough for.
  struct Hashes {
    std::array<uint64_t, kNumOrders> values;
    size_t count = 0;
  };
  static Hashes hashes_of(uint64_t scope, std::span<const TokenId> last);

  std::vector<TokenId> tokens_;  // [capacity], a ring by position
  std::vector<Entry> entries_;   // [4 * capacity]
  std::vector<TokenId> recent_;  // up to 4 * kMatchMax: the last ones count
  int64_t size_ = 0;
};

}  // namespace espalier
