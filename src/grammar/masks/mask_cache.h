// The masks of one grammar: which tokens of a vocabulary lead on from an Earley set.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/automata/earley.h"
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

  // Writes a cached mask that does not depend on the text; returns nothing when there is none. Any
  // thread may call it beside one that calls the other functions.
  std::optional<bool> fill_known(SetId set, std::span<uint32_t> words) const;

  size_t num_kept() const { return kept_.size(); }
  size_t num_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }  // any thread

 private:
  // A stored mask: a base (a mask of the vocabulary or of another set, or own words, or none) and
  // the differences from it.
  struct Mask {
    // a mask of the vocabulary, or the words of another mask
    const std::vector<uint32_t>* base = nullptr;
    std::vector<uint32_t> words;
    std::vector<uint32_t> changes;  // sorted: token * 2 + (1 to allow it)
    // Conditional tokens, sorted by their bytes: a check reads the text within them, so they are
    // tried at each fill, whatever the rest of the mask holds.
    std::vector<TokenId> asked;
    bool empty = true;     // apart from the conditional tokens
    bool partial = false;  // computed, at least partly, by an exhausted recogniser; unusable

    void allow(TokenId token) { changes.push_back(static_cast<uint32_t>(token) * 2 + 1); }
    void refuse(TokenId token) { changes.push_back(static_cast<uint32_t>(token) * 2); }
    // Adds the walk's tokens [begin, end).
    void ask(const TrieWalk& tokens, uint32_t begin, uint32_t end) {
      asked.insert(asked.end(), tokens.token_ids.begin() + begin, tokens.token_ids.begin() + end);
    }
  };
  // The tokens that may end a lexeme, as indices of the tails' tokens.
  struct Found {
    // whether tokens that end with the lexeme are allowed; else they are among the conditional ones
    bool whole_ends = false;
    std::vector<uint32_t> allowed, asked;
  };
  // The set behind the end of a lexeme; its allowed tokens are cached under it.
  struct TailKey {
    const LexemeMasks* masks;
    SetId after;
    friend bool operator==(const TailKey&, const TailKey&) = default;
  };
  struct TailHash {
    size_t operator()(const TailKey& key) const;
  };

  void make(SetId set, Mask& mask);
  bool ask(const Mask& mask, SetId set, std::string_view text, std::span<uint32_t> words);
  template <typename At, typename Step, typename Use>
  void along(std::span<const TokenId> tokens, const At& from, Step step, Use use);
  void walk_into(const TrieWalk& walk, SetId from, TokenWalk::Steps steps, Mask& mask);
  static bool leads_on(SetId to) {
    return to != EarleyRecogniser::kDead && to != EarleyRecogniser::kNeedsText;
  }
  SetId step(SetId from, int byte) {
    return earley_.step_without_text(from, static_cast<uint8_t>(byte));
  }
  bool inside_successors(SetId set, std::vector<SetId>& out);
  SetId next_inside(SetId set);
  bool stays_inside(NodeId start);
  bool inside_ends(SetId set);
  bool by_lexeme(SetId set, Mask& mask);
  const Found& tails_of(const LexemeMasks& masks, SetId after);
  bool inside_string(SetId set, Mask& mask);
  bool by_difference(SetId set, Mask& mask);
  bool by_staying_inside(SetId set, Mask& mask);
  bool is_wide(SetId set);
  bool by_char_classes(SetId set, Mask& mask);
  void make_char_class_edges();
  CharClassSet absorbed(SetId set, size_t& characters);
  bool lead_by_char_class(int kind, SetId from, bool& any);
  bool by_parts(SetId set, Mask& mask);
  bool by_closed_rule(SetId set, Mask& mask);
  const Mask& mask_of(SetId set);
  void add_part(const Mask& part, Mask& mask);
  const Mask& keep(SetId set, Mask mask);
  const Mask* known_inside(SetId set);
  void write(const Mask& mask, std::span<uint32_t> words) const;
  void settle(Mask& mask);
  size_t size_of(const Mask& mask) const;

  EarleyRecogniser& earley_;
  const TokenTrie& trie_;
  mutable std::shared_mutex kept_mutex_;  // held to change kept_, and by other threads to read it
  std::unordered_map<SetId, Mask> kept_;
  std::atomic<size_t> kept_bytes_ = 0;
  std::unordered_map<TailKey, Found, TailHash> tails_;
  std::unordered_map<SetId, SetId> next_inside_;
  std::unordered_map<uint64_t, bool> stays_inside_;  // by node and kind of position
  TokenWalk walk_;
  std::vector<uint32_t> scratch_;  // words of one mask
  // The bytes of each character class, one of those that the grammar does not distinguish.
  struct CharClassEdge {
    uint8_t from, byte, to;
  };
  std::array<std::vector<CharClassEdge>, kNumCharClasses> char_class_edges_;
  std::vector<std::pair<uint8_t, SetId>> amid_;  // positions inside a character, and sets
  std::vector<SetId> absorbing_;                 // sets found by absorbed(), each once
  std::vector<uint32_t> absorb_rounds_;          // [set] the last search that found it
  uint32_t absorb_round_ = 0;
};

}  // namespace espalier::grammar
