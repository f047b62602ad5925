// A vocabulary arranged for masks: the trie of its tokens' bytes, and the masks inside strings and
// character classes, which no grammar has to compute.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/automata/lexeme.h"
#include "grammar/masks/char_class_trie.h"
#include "grammar/masks/char_classes.h"
#include "grammar/masks/string_runs.h"
#include "grammar/masks/trie_walk.h"
#include "seams/vocab_view.h"

namespace espalier::grammar {

// What the tokens do from one state of a lexeme.
struct LexemeMasks {
  // Tokens that stay inside, sorted by the number of characters that they begin, and as a mask.
  std::vector<TokenId> inside_ids;
  std::vector<uint16_t> inside_characters;  // [inside_ids]
  std::vector<uint32_t> inside;
  // Tokens that end the lexeme, by what they contain after its end. Tokens that end with it come
  // first in token_ids, before the first node's.
  TrieWalk tails;
  std::vector<uint16_t> tail_characters;  // [tails.token_ids] characters before the end
  uint32_t num_whole_ends() const { return tails.nodes[0].tokens_begin; }
  std::vector<uint32_t> inside_or_end;  // plus the tokens that end with the lexeme, as a mask
  uint32_t characters_max = 0;          // over all these tokens
};

// The vocabulary of one model, shared by all its grammars. Immutable and thread-safe. Copies the
// vocabulary's bytes.
class TokenTrie {
 public:
  explicit TokenTrie(const VocabView& vocab);

  // Every token that has bytes.
  const TrieWalk& all() const { return all_; }
  const StringRuns& string_runs() const { return string_runs_; }  // of all()

  // Tokens of whole characters that stand unescaped inside a JSON string (no quote, backslash or
  // control character): most of any vocabulary. A position that such text leaves unchanged allows
  // them at once and walks only the others.
  const std::vector<uint32_t>& string_inside_mask() const { return string_inside_mask_; }
  const TrieWalk& not_string_inside() const { return not_string_inside_; }
  // [node of not_string_inside()] the most characters that stand before a quote or a control
  // character, where the rest of a token at or below the node begins with one; kAnyCharacters where
  // some rest begins with a backslash or with bytes that are no character.
  const std::vector<uint16_t>& characters_before_rest() const { return characters_before_rest_; }
  static constexpr uint16_t kAnyCharacters = 0xffff;

  // The other tokens are such text, possibly empty, and a rest that begins at a quote, a backslash,
  // a control character, or bytes that are no character. There are few distinct rests; a position
  // that the text leaves unchanged walks them alone.
  const TrieWalk& rests() const { return rests_; }
  // Rests by the number of characters before them, for positions that count; entries beyond the
  // last have none.
  const std::vector<TrieWalk>& rests_after() const { return rests_after_; }
  // Sets the tokens of string_inside_mask() that have at most `characters` characters.
  void add_string_inside(size_t characters, std::span<uint32_t> words) const;
  // The largest number of characters that a token has before its rest or its end.
  size_t inside_characters_max() const { return inside_by_characters_.size(); }

  // Every token that has bytes, by the classes of its characters.
  const CharClassTrie& classes() const { return classes_; }
  // The tokens made of these character classes alone, computed on first use and kept; null where
  // kClassMasksBytesMax are kept already, for clients' patterns choose the classes. REQUIRES of
  // both: a subset of kAllCharClasses. add_char_classes() sets these tokens' bits.
  const std::vector<uint32_t>* of_char_classes(CharClassSet kinds) const;
  void add_char_classes(CharClassSet kinds, std::span<uint32_t> words) const {
    classes_.add_of(kinds, words);
  }
  static constexpr size_t kClassMasksBytesMax = size_t{8} << 20;
  // The sets of classes that tokens consist of are numbered; those behind the 63 that most tokens
  // have share the last number. Returns the bits of all sets but those within `inner` and those
  // that have a class outside of `outer` and not kOtherBytes: behind such bytes, a string's closing
  // quote among them, any class may follow.
  uint64_t class_sets_between(CharClassSet inner, CharClassSet outer) const;

  // [state of the lexeme's automaton]
  const std::vector<LexemeMasks>& lexeme(Lexeme lexeme) const {
    return lexemes_[static_cast<size_t>(lexeme)];
  }
  // [characters] the tokens that stay inside a string, between its characters, with at most that
  // many more characters; for larger numbers see lexeme()
  const std::vector<std::vector<uint32_t>>& string_up_to() const { return string_up_to_; }

  // Tokens that stand for all others where most may follow, as inside a string, sorted by bytes:
  // short ones with a quote and without letters, digits and backslashes; one letter of each case
  // and one digit; each other character of ASCII, also behind a space. Of these three a sample is
  // free: it stands for other tokens.
  std::span<const TokenId> samples() const { return samples_; }
  bool is_free_sample(TokenId token) const;

  int32_t vocab_size() const { return vocab_size_; }
  int32_t words_per_mask() const { return (vocab_size_ + 31) / 32; }
  std::string_view bytes(TokenId id) const;  // empty: no grammar ever allows it
  // The rank of the token in the order of all tokens' bytes.
  uint32_t rank(TokenId id) const { return ranks_[static_cast<size_t>(id)]; }
  std::span<const TokenId> eos_ids() const { return eos_ids_; }
  bool is_eos(TokenId id) const;

 private:
  void measure_rests();
  void arrange_by_char_classes();
  void list_samples();
  void make_string_up_to();
  void make_lexeme(Lexeme lexeme);
  LexemeMasks masks_from(const LexemeAutomaton& automaton, uint8_t from) const;

  int32_t vocab_size_ = 0;
  std::string text_;
  std::vector<uint32_t> offsets_;  // [vocab_size + 1]
  std::vector<TokenId> eos_ids_;
  std::vector<uint32_t> ranks_;  // [token]
  TrieWalk all_, not_string_inside_, rests_;
  std::vector<uint16_t> characters_before_rest_;
  std::vector<TrieWalk> rests_after_;
  // [n - 1]: tokens of n characters; and masks of up to n characters for the first of these
  std::vector<std::vector<TokenId>> inside_by_characters_;
  std::vector<std::vector<uint32_t>> inside_up_to_;
  std::vector<uint32_t> string_inside_mask_;
  std::vector<TokenId> samples_;
  CharClassTrie classes_;
  StringRuns string_runs_;
  std::vector<std::pair<CharClassSet, uint8_t>> class_sets_;  // and the number of each
  struct ClassMasks {
    std::mutex mutex;
    std::unordered_map<CharClassSet, std::unique_ptr<const std::vector<uint32_t>>> by_classes;
  };
  mutable ClassMasks class_masks_;
  std::array<std::vector<LexemeMasks>, kNumLexemes> lexemes_;
  std::vector<std::vector<uint32_t>> string_up_to_;
};

}  // namespace espalier::grammar
