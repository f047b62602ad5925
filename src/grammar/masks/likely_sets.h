// The Earley sets that texts of a grammar are likely to reach, found before a text reaches them, so
// that their masks can be made ahead: a search from the start along the tokens that a tokenizer may
// choose. Sets that only unusual spellings reach are left out, and those behind several choices
// among most of the vocabulary, as in values that a schema leaves free.
//
// Thread safety: none; the caller holds the grammar's lock. Ownership: borrows everything.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "grammar/automata/earley.h"
#include "grammar/automata/earley_positions.h"
#include "grammar/masks/mask_cache.h"
#include "grammar/masks/token_trie.h"
#include "grammar/masks/token_walk.h"

namespace espalier::grammar {

// See the head of this file.
class LikelySets {
 public:
  LikelySets(EarleyRecogniser& earley, const TokenTrie& trie, MaskCache& masks);

  // Makes the mask of the next set and finds the sets behind its tokens. Returns false when all
  // have one. REQUIRES: the recogniser is in a trial (EarleyClosure::begin_trial()).
  bool make_next();

 private:
  // A text is more likely to reach a set behind fewer free choices; sets behind more than the most
  // are left out.
  static constexpr size_t kFreeChoicesMax = 1;
  struct Reached {
    EarleyPosition position;
    size_t num_choices;  // on the way there
  };
  // What follows a set, for what a token costs there.
  struct Place {
    SetId set = EarleySets::kDead;
    size_t num_choices = 0;       // before the set
    bool is_wide = false;         // the samples stand for most tokens
    bool is_any_value = false;    // any JSON value may begin
    bool has_departures = false;  // some tokens lead elsewhere than most do
    EarleyPosition usual;         // that most letters lead to and stay at, if there is one
  };

  std::optional<Place> take_next();
  void read_mask(Place& place);
  void list_allowed();
  void list_tokens(Place& place);
  void list_departures(Place& place);
  EarleyPosition usual_position(SetId set);
  void drop_parts_of_words();
  size_t choices_of(const Place& place, TokenId token, const EarleyPosition& to) const;
  void follow_tokens_from(const Place& place);
  void add(SetId set, size_t num_choices);

  EarleyRecogniser& earley_;
  const TokenTrie& trie_;
  MaskCache& masks_;
  EarleyPositions positions_;
  TokenComparison comparison_;
  // Representatives whose mask is still to be made, by the free choices before them.
  std::array<std::deque<SetId>, kFreeChoicesMax + 1> open_;
  std::unordered_set<SetId> seen_;  // representatives that were ever in open_
  // Scratch of one call.
  std::vector<uint32_t> words_;
  std::vector<TokenId> tokens_;   // to be followed, sorted by bytes in the end
  std::vector<Reached> reached_;  // behind tokens, each once
};

}  // namespace espalier::grammar
