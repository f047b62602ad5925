// A vocabulary arranged for masks: the trie of its tokens' bytes in depth-first order, so that a
// walk is a scan and a refused prefix is a jump.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/automata/lexeme.h"
#include "grammar/masks/char_classes.h"
#include "seams/vocab_view.h"

namespace espalier::grammar {

struct TrieWalk {
  // Nodes in depth-first order; the root is not among them.
  struct Node {
    uint32_t skip = 0;          // index behind this node's subtree
    uint32_t tokens_begin = 0;  // into token_ids; the next node's is the end
    uint16_t depth = 0;         // bytes before this node's
    uint8_t byte = 0;
  };
  std::vector<Node> nodes;         // and one more behind the last
  std::vector<TokenId> token_ids;  // tokens by the node that their last byte is
  int32_t depth_max = 0;           // longest token, bytes
  // The children of the root, then those of each node: their bytes, in order, and which they are.
  std::vector<uint32_t> children_begin;  // [0: the root, else node + 1], and one more
  std::vector<uint8_t> child_bytes;
  std::vector<uint32_t> children;
};

// What tokens do from one state of a lexeme.
struct LexemeMasks {
  // Those that stay inside, ordered by the characters that they begin, and as bits.
  std::vector<TokenId> inside_ids;
  std::vector<uint16_t> inside_characters;  // [inside_ids]
  std::vector<uint32_t> inside;
  // Those that end the lexeme: what they have after its end. Tokens that end with it come first in
  // token_ids, before the first node's.
  TrieWalk tails;
  std::vector<uint16_t> tail_characters;  // [tails.token_ids] characters before the end
  uint32_t num_whole_ends() const { return tails.nodes[0].tokens_begin; }
  std::vector<uint32_t> inside_or_end;  // and those that end with the lexeme, as bits
  uint32_t characters_max = 0;          // of all these tokens
};

// Immutable, shared by all grammars of a model; thread-safe to read. Copies the vocabulary's bytes.
class TokenTrie {
 public:
  explicit TokenTrie(const VocabView& vocab);

  // Every token with bytes.
  const TrieWalk& all() const { return all_; }

  // Tokens that are whole characters of a JSON string's inside, no quote, backslash or control
  // character: most of any vocabulary. A state that such text does not change allows them all at
  // once and walks only the rest.
  const std::vector<uint32_t>& string_inside_mask() const { return string_inside_mask_; }
  const TrieWalk& not_string_inside() const { return not_string_inside_; }

  // The other tokens are such text (maybe none) and a rest that begins where it ends: at a quote, a
  // backslash, a control character, or bytes that are no character. Rests are few: a state that the
  // text does not change walks them alone, whatever came before.
  const TrieWalk& rests() const { return rests_; }
  // By the characters before them, for states that count: entries beyond the last have none.
  const std::vector<TrieWalk>& rests_after() const { return rests_after_; }
  // Sets the tokens of string_inside_mask() that have at most `characters`.
  void add_string_inside(size_t characters, std::span<uint32_t> words) const;
  // The most characters that any token has before its rest or its end.
  size_t inside_characters_max() const { return inside_by_characters_.size(); }

  // Tokens that are made of these kinds of characters alone (REQUIRES: none but kAllCharKinds),
  // made when first asked for; and a way to those of at most `bytes`.
  const std::vector<uint32_t>& of_char_classes(CharClassSet kinds) const;
  void add_of_char_classes(CharClassSet kinds, size_t bytes, std::span<uint32_t> words) const;
  // [node of all()] the kinds that the tokens at the node and below it are made of.
  const std::vector<CharClassSet>& char_classes_below() const { return char_classes_below_; }

  // [state of the lexeme's automaton]
  const std::vector<LexemeMasks>& lexeme(Lexeme lexeme) const {
    return lexemes_[static_cast<size_t>(lexeme)];
  }
  // The tokens that stay inside a string, between its characters, with at most `characters` more:
  // [characters], as far as there are masks; see lexeme() beyond.
  const std::vector<std::vector<uint32_t>>& string_up_to() const { return string_up_to_; }

  int32_t vocab_size() const { return vocab_size_; }
  int32_t words_per_mask() const { return (vocab_size_ + 31) / 32; }
  std::string_view bytes(TokenId id) const;  // empty: never allowed by a grammar
  // The token's place among all by their bytes.
  uint32_t rank(TokenId id) const { return ranks_[static_cast<size_t>(id)]; }
  std::span<const TokenId> eos_ids() const { return eos_ids_; }
  bool is_eos(TokenId id) const;

 private:
  void file_by_char_classes();
  void make_lexeme(Lexeme lexeme);
  LexemeMasks masks_from(const LexemeAutomaton& automaton, uint8_t from) const;

  int32_t vocab_size_ = 0;
  std::string text_;
  std::vector<uint32_t> offsets_;  // [vocab_size + 1]
  std::vector<TokenId> eos_ids_;
  std::vector<uint32_t> ranks_;  // [token]
  TrieWalk all_, not_string_inside_, rests_;
  std::vector<TrieWalk> rests_after_;
  // [n - 1]: tokens of n characters; and the masks of up to n of them, for the first of these
  std::vector<std::vector<TokenId>> inside_by_characters_;
  std::vector<std::vector<uint32_t>> inside_up_to_;
  std::vector<uint32_t> string_inside_mask_;
  std::unordered_map<CharClassSet, std::vector<TokenId>> by_char_classes_;  // shortest first
  std::vector<CharClassSet> char_classes_below_;
  mutable std::mutex of_char_classes_mutex_;
  mutable std::unordered_map<CharClassSet, std::unique_ptr<const std::vector<uint32_t>>>
      of_char_classes_;
  std::array<std::vector<LexemeMasks>, kNumLexemes> lexemes_;
  std::vector<std::vector<uint32_t>> string_up_to_;
};

}  // namespace espalier::grammar
