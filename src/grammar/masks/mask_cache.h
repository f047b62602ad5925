// The masks of one grammar: which tokens of a vocabulary lead on from an Earley set.
//
// A new mask is made in the cheapest way that applies: from masks that the vocabulary holds (inside
// lexemes, strings and character classes), from masks of other sets, or by a walk of the trie.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/automata/earley.h"
#include "grammar/automata/earley_positions.h"
#include "grammar/masks/char_class_search.h"
#include "grammar/masks/char_class_walk.h"
#include "grammar/masks/lexeme_tails.h"
#include "grammar/masks/stored_mask.h"
#include "grammar/masks/string_insides.h"
#include "grammar/masks/token_trie.h"
#include "grammar/masks/token_walk.h"

namespace espalier::grammar {

// Computes masks and caches them. Not thread-safe except for fill_known() and num_bytes();
// CompiledGrammar holds a lock for the rest.
class MaskCache {
 public:
  // Borrows both. The recogniser's reach is the vocabulary's longest token.
  MaskCache(EarleyRecogniser& earley, const TokenTrie& trie);

  // Writes the mask of the set into trie.words_per_mask() words. Returns false when no token is
  // allowed. `text` is what was read so far; checks read it.
  bool fill(SetId set, std::string_view text, std::span<uint32_t> words);

  // Returns the tokens of the set's mask whose verdict the text decides. REQUIRES: fill() was the
  // last call, with this set.
  std::span<const TokenId> conditional(SetId set);

  // Writes a cached mask that does not depend on the text; returns nothing when there is none. Any
  // thread may call it beside one that calls the other functions.
  std::optional<bool> fill_known(SetId set, std::span<uint32_t> words) const;

  // Makes the mask inside a closed rule at this node unless a walk makes it fast enough; returns
  // whether it did. Masks of sets at the node then cost what follows the rule.
  bool make_ahead(NodeId node);
  // The set's mask, made unless it is known. Valid until the next call of a function that is not
  // const.
  const StoredMask& made(SetId set) { return mask_of(earley_.canonical(set)); }
  // Drops the masks that an exhausted recogniser has made, and what was found on the way to them.
  // REQUIRES: it is exhausted no more.
  void drop_unusable();

  size_t num_kept() const { return kept_.size(); }
  size_t num_bytes() const {  // held; any thread
    return kept_bytes_.load(std::memory_order_relaxed) +
           search_bytes_.load(std::memory_order_relaxed);
  }

 private:
  void make(SetId set, StoredMask& mask);
  bool try_conditional(const StoredMask& mask, SetId set, std::string_view text,
                       std::span<uint32_t> words);
  void walk_into(const TrieWalk& walk, SetId from, WalkSteps steps, StoredMask& mask);
  // The ways to make a mask. Each returns false, and leaves the mask as it is, where it does not
  // apply.
  bool by_lexeme(SetId set, StoredMask& mask);
  bool by_pattern(SetId from, StoredMask& mask);
  bool inside_string(SetId set, StoredMask& mask);
  bool by_difference(SetId set, StoredMask& mask);
  bool by_staying_inside(SetId set, StoredMask& mask);
  bool by_char_classes(SetId set, StoredMask& mask);
  bool by_parts(SetId set, StoredMask& mask);
  bool by_closed_rule(SetId set, StoredMask& mask);

  bool is_wide(const EarleyPosition& position) const;
  bool leads_to_wide(const EarleyPosition& from);
  const StoredMask& mask_of(SetId set);
  const StoredMask* known_inside(SetId set);
  const StoredMask& keep(SetId set, StoredMask mask);

  EarleyRecogniser& earley_;
  const TokenTrie& trie_;
  EarleyPositions positions_;
  mutable std::shared_mutex kept_mutex_;  // held to change kept_, and by other threads to read it
  std::unordered_map<SetId, StoredMask> kept_;
  std::atomic<size_t> kept_bytes_ = 0;
  std::atomic<size_t> search_bytes_ = 0;  // of what is known of tails, insides and positions
  TokenWalk walk_;
  TokenComparison comparison_;
  LexemeTails tails_;
  StringInsides insides_;
  CharClassSearch char_classes_;
  CharClassWalk class_walk_;
  std::vector<uint32_t> scratch_;  // words of one mask
};

}  // namespace espalier::grammar
