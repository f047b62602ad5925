// The tokens that may end a lexeme, by what they contain after its end; cached by the set that
// follows the lexeme.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "grammar/automata/earley_sets.h"
#include "grammar/automata/held_bytes.h"
#include "grammar/masks/token_trie.h"
#include "grammar/masks/token_walk.h"

namespace espalier::grammar {

// Not thread-safe. Borrows the walk, which no other walk may be using during a call.
class LexemeTails {
 public:
  explicit LexemeTails(TokenWalk& walk) : walk_(walk) {}

  // Tokens as indices of the tails' tokens.
  struct Found {
    // Whether tokens that end with the lexeme are allowed; else they are conditional.
    bool whole_ends = false;
    std::vector<uint32_t> allowed, conditional;
  };
  // `after`: the set behind the end of the lexeme, or kNeedsText. The result is valid until
  // clear().
  const Found& find(const LexemeMasks& masks, SetId after);
  void clear();
  size_t num_bytes() const { return held_bytes_of_map(found_) + list_bytes_; }

 private:
  struct Key {
    const LexemeMasks* masks;
    SetId after;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };

  TokenWalk& walk_;
  std::unordered_map<Key, Found, Hash> found_;
  size_t list_bytes_ = 0;  // of the lists in found_
};

}  // namespace espalier::grammar
