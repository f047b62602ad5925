// Draft tokens from earlier answers of a grammar: what followed the same automaton state and the
// same last tokens before. A forward verifies them together; they change no answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/constrained/jump_forward.h"
#include "engine/scheduler/scheduler.h"
#include "grammar/grammar.h"

namespace espalier {

// The token that was drawn last at each position, in a table of fixed size; what shares an entry
// drives out the other. Not thread-safe.
class DrawnTokens {
 public:
  static constexpr size_t kEntries = size_t{1} << 14;  // 256 KiB

  // -1: it was not drawn there twice running.
  TokenId likely(uint64_t place) const;
  void learn(uint64_t place, TokenId token);

 private:
  struct Entry {
    uint64_t place = 0;
    TokenId token = -1;
    int32_t confidence = 0;  // how often it was right of late, at most kConfidenceMax
  };
  static constexpr int32_t kConfident = 1, kConfidenceMax = 3;
  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

// Not thread-safe: it keeps buffers. What it borrows outlives it.
class DraftHistory {
 public:
  explicit DraftHistory(JumpForward& jump) : jump_(jump) {}

  // A token that was drawn behind `output` (the last tokens of what the matcher has read). `scope`:
  // what is learnt in one is not known in another; a grammar is one at least.
  void learn(uint64_t scope, const grammar::Matcher& matcher, std::span<const TokenId> output,
             TokenId token);

  // Appends likely tokens, and what each of them forces, up to the first that is not known. The
  // matcher is as it was afterwards.
  void append(uint64_t scope, grammar::Matcher& matcher, std::span<const TokenId> output,
              DraftTokens& draft);

  // Appends the tokens of `chain` that the matcher takes, up to the first that it does not. With
  // `forces` each is followed by what it forces, in place of what the chain has there.
  void append_chain(grammar::Matcher& matcher, std::span<const TokenId> output,
                    std::span<const TokenId> chain, bool forces, DraftTokens& draft);

  // Whether `least` tokens are likely to be drawn in a row.
  bool any(uint64_t scope, grammar::Matcher& matcher, std::span<const TokenId> output,
           int32_t least);

 private:
  static uint64_t place_of(uint64_t scope, const grammar::Matcher& matcher,
                           std::span<const TokenId> output);
  void begin(std::span<const TokenId> output);
  // next(): the token behind output_, or -1.
  template <typename Next>
  void walk(grammar::Matcher& matcher, bool forces, DraftTokens& draft, const Next& next);

  JumpForward& jump_;
  DrawnTokens drawn_;
  std::vector<TokenId> output_, forced_;
};

}  // namespace espalier
