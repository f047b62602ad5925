// Masks within a budget of tokens: which allowed tokens leave enough of the budget for the grammar
// to end.
//
// Every Earley set has a shortest text to its end, followed byte by byte along the least distances
// of the network (EndDistances), and the least number of tokens that spell this text. The text of a
// set depends on the set alone, so after the first token of such a spelling one token less is
// needed: a budget that suffices once suffices until the end. Checks of values and maxima of
// counters are not planned: where they refuse the planned byte, the number of bytes stands for the
// number of tokens.
//
// Thread safety: none; CompiledGrammar holds a lock. Ownership: borrows the recogniser and the
// trie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/automata/earley.h"
#include "grammar/automata/end_distances.h"
#include "grammar/masks/token_trie.h"

namespace espalier::grammar {

class BudgetMasks {
 public:
  BudgetMasks(EarleyRecogniser& earley, const TokenTrie& trie, EndDistances distances)
      : earley_(earley), trie_(trie), distances_(std::move(distances)) {}

  // Returns the tokens that complete the text; 0 where it may end.
  uint32_t tokens_to_end(SetId set);

  // Keeps in `words`, the mask of the set, the tokens behind which `tokens_left` - 1 tokens
  // complete the text; where there are none, those behind which the fewest do. `text` is what was
  // read so far; checks read it.
  void keep_within(SetId set, std::string_view text, uint32_t tokens_left,
                   std::span<uint32_t> words);

  // Returns the largest number of tokens left at which keep_within() may have an effect, for texts
  // that go on from this set with `tokens_left` tokens left.
  uint32_t next_check(SetId set, uint32_t tokens_left);

  size_t num_bytes() const;

 private:
  struct Step {  // of a shortest text
    uint32_t tokens = kUnknown;
    SetId next = EarleySets::kDead;  // kDead: the plan ends here
    uint8_t byte = 0;
  };
  static constexpr uint32_t kUnknown = ~uint32_t{0};
  static constexpr uint32_t kNone = EndDistances::kNone;

  uint32_t bytes_to_end(SetId set);
  uint32_t bytes_behind(const EarleyItem& item);
  uint32_t return_distance(ReturnId id);
  void settle_return(ReturnId id);
  Step& step_at(SetId set);
  bool plan_step(SetId set);
  void count_tokens(SetId set);
  template <typename Visit>
  void for_each_target(SetId set, std::string_view text, std::span<const uint32_t> words,
                       Visit visit);

  EarleyRecogniser& earley_;
  const TokenTrie& trie_;
  const EndDistances distances_;
  std::vector<Step> steps_;                       // [set]
  std::vector<uint32_t> returns_;                 // [return state] bytes to the end of the text
  std::unordered_map<SetId, uint32_t> need_max_;  // most tokens needed behind an allowed token
  // Scratch of one call.
  std::vector<ReturnId> pending_;
  std::vector<SetId> path_;
  std::vector<SetId> sets_;  // [depth]
  std::string text_;
  std::vector<uint32_t> needs_;  // [token]
};

}  // namespace espalier::grammar
