// Masks by a walk of the kinds of tokens' characters (char_class_trie.h) instead of their bytes.
// Where the characters of one kind lead to different sets, the bytes of the tokens that go on with
// one are walked.
//
// Thread safety: none. Ownership: borrows the search, the trie and the walk, which no other walk
// may be using during a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "grammar/automata/earley.h"
#include "grammar/automata/held_bytes.h"
#include "grammar/masks/char_class_search.h"
#include "grammar/masks/stored_mask.h"
#include "grammar/masks/token_trie.h"
#include "grammar/masks/token_walk.h"

namespace espalier::grammar {

// See the head of this file.
class CharClassWalk {
 public:
  CharClassWalk(CharClassSearch& search, const TokenTrie& trie, TokenWalk& walk)
      : search_(search), trie_(trie), walk_(walk) {}

  // Makes the mask of the set, in which all tokens of the classes `kinds` lead on, and tokens of
  // other classes than `live` only behind the end of a string.
  void fill(SetId set, CharClassSet kinds, CharClassSet live, StoredMask& mask);
  size_t num_bytes() const {
    return held_bytes(words_) + held_bytes(path_) + held_bytes(marked_) + held_bytes(asked_);
  }

 private:
  void visit_nodes(SetId set, CharClassSet kinds, uint64_t wanted);
  void add_tokens_of(uint32_t node, SetId at, CharClassSet kinds);
  void mark_below(uint32_t node, uint64_t wanted);
  bool any_marked(uint32_t begin, uint32_t end) const;
  void walk_marked(SetId set);
  void store(StoredMask& mask);

  CharClassSearch& search_;
  const TokenTrie& trie_;
  TokenWalk& walk_;
  // Of the mask under way.
  std::vector<uint32_t> words_;
  CharClassSet allowed_ = 0;  // classes of the tokens that lead on
  std::vector<TokenId> asked_;
  std::vector<SetId> path_;       // [depth]
  std::vector<uint64_t> marked_;  // bits by rank: tokens whose bytes are walked
  bool any_marked_ = false;
};

}  // namespace espalier::grammar
