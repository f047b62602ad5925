// The masks of a grammar: which tokens of a vocabulary lead on from a state of the recogniser.
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

// Makes masks and keeps them. Not thread-safe, but for fill_known(): CompiledGrammar guards it.
class MaskCache {
 public:
  // Both borrowed; the recogniser reaches as far as the vocabulary's longest token.
  MaskCache(EarleyRecogniser& earley, const TokenTrie& trie);

  // Writes the mask of the state into trie.words_per_mask() words. False: no token is allowed.
  // `text`: what was read so far; looked at where the grammar has checks.
  bool fill(SetId set, std::string_view text, std::span<uint32_t> words);

  // The same of a mask that is kept and does not depend on the text, else nothing. For any thread,
  // beside one that calls the others.
  std::optional<bool> fill_known(SetId set, std::span<uint32_t> words) const;

  size_t num_kept() const { return kept_.size(); }
  size_t num_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }  // any thread

 private:
  // A mask that is kept: one of the vocabulary's or another's, or words, or nothing; and what
  // differs.
  struct Mask {
    const std::vector<uint32_t>* base = nullptr;  // the vocabulary's, or words of another mask
    std::vector<uint32_t> words;
    std::vector<uint32_t> changes;  // in order: token * 2, and 1 to allow it
    // Tokens amid which a check looks at the text, by their bytes: tried at each fill, whatever the
    // rest says of them.
    std::vector<TokenId> asked;
    bool empty = true;  // but for these
    bool partial =
        false;  // made, in part at least, when the recogniser was exhausted: not to be used

    void allow(TokenId token) { changes.push_back(static_cast<uint32_t>(token) * 2 + 1); }
    void refuse(TokenId token) { changes.push_back(static_cast<uint32_t>(token) * 2); }
    // Those at begin to end of the walk's tokens.
    void ask(const TrieWalk& tokens, uint32_t begin, uint32_t end) {
      asked.insert(asked.end(), tokens.token_ids.begin() + begin, tokens.token_ids.begin() + end);
    }
  };
  // Which tokens may come that end a lexeme, as indices of its tails' tokens.
  struct Found {
    bool whole_ends = false;  // those that end with it; else they are among the asked ones
    std::vector<uint32_t> allowed, asked;
  };
  // Tokens that a state allows behind the end of a lexeme.
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
  mutable std::shared_mutex kept_mutex_;  // held to change kept_, and by others to read it
  std::unordered_map<SetId, Mask> kept_;
  std::atomic<size_t> kept_bytes_ = 0;
  std::unordered_map<TailKey, Found, TailHash> tails_;
  std::unordered_map<SetId, SetId> next_inside_;
  std::unordered_map<uint64_t, bool> stays_inside_;  // by node and kind of place
  TokenWalk walk_;
  std::vector<uint32_t> scratch_;  // a mask's words
  // Bytes of each kind of characters, of those that the grammar does not tell apart one.
  struct CharClassEdge {
    uint8_t from, byte, to;
  };
  std::array<std::vector<CharClassEdge>, kNumCharClasses> char_class_edges_;
  std::vector<std::pair<uint8_t, SetId>> amid_;  // places amid a character, and states
  std::vector<SetId> absorbing_;                 // states found by absorbed(), each once
  std::vector<uint32_t> absorb_rounds_;          // [state] the last search that found it
  uint32_t absorb_round_ = 0;
};

}  // namespace espalier::grammar
