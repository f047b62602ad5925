// The tokens that go on inside a string which they begin, or which they find begun: below a row of
// the trie behind an opening quote, thousands of tokens lead on alike wherever any string may
// stand. A walk takes them at once, as it does the runs of white space and digits (trie_walk.h).
//
// Thread safety: immutable after build(). Ownership: everything is held by value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "grammar/automata/lexeme.h"
#include "grammar/masks/trie_walk.h"
#include "seams/vocab_view.h"

namespace espalier::grammar {

// The tokens below one row, from a position between the characters of a lexeme. `run.whole` stay
// inside; `run.rests` are the others from behind the end of the lexeme on, where the tokens that
// end with it come first in token_ids, before the first node's.
struct StringRun {
  TokenRun run;
  std::vector<uint16_t> characters;  // [run.rests.token_ids] characters before the end
  uint32_t characters_max = 0;       // over all these tokens
};

// See the head of this file.
class StringRuns {
 public:
  // `all`: the trie of the tokens that `text_of` returns the bytes of, which outlive the call.
  void build(const TrieWalk& all, const std::function<std::string_view(TokenId)>& text_of);

  // Returns whether the row has runs, and the run of one lexeme. Row i + 1 is node i.
  bool has(uint32_t row) const { return row < at_.size() && at_[row] != 0; }
  const StringRun& at(uint32_t row, Lexeme lexeme) const {  // REQUIRES: has(row)
    return runs_[at_[row] - size_t{1}][static_cast<size_t>(lexeme)];
  }

 private:
  std::vector<uint16_t> at_;  // [row] 1 + index into runs_, or 0
  std::vector<std::array<StringRun, kNumLexemes>> runs_;
};

}  // namespace espalier::grammar
