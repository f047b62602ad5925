// Jump-forward: where a grammar leaves one continuation, the bytes that must come are tokenised as
// the tokenizer would tokenise the whole output, and need not be sampled (the SGLang paper,
// appendix B.2, which tokenised them alone and so changed outputs).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/constrained/tokens_by_bytes.h"
#include "grammar/grammar.h"

namespace espalier {

// Not thread-safe: it keeps buffers. What it borrows outlives it.
class JumpForward {
 public:
  JumpForward(const Tokenizer& tokenizer, const TokensByBytes& tokens)
      : tokenizer_(tokenizer), tokens_(tokens) {}

  // Of an output's last so many tokens the boundary's tokens are judged.
  static constexpr size_t kWindowMax = 32;
  static constexpr size_t kForcedBytesMax = 512;  // at one time; the rest comes with the next token

  // Appends to `forced` the tokens that `matcher` forces after `output` (the last tokens of what it
  // has read, all of them or at least kWindowMax). They are canonical: encoding the text of output
  // and forced tokens gives these tokens. A token that a longer one could still replace, whatever
  // the grammar lets follow, is left out. Nothing where output itself is not canonical at its end.
  // The matcher is as it was afterwards.
  void append_forced(grammar::Matcher& matcher, std::span<const TokenId> output,
                     std::vector<TokenId>& forced);

  // Where the continuations are few (keys, enums, booleans): appends to `choices` the tokens that
  // canonical outputs go on with, each once, in order. All other tokens that the grammar takes lead
  // to outputs that are not canonical. Nothing where there are more ways, or some way's token is
  // not certain yet, or output itself is not canonical. The matcher is as it was afterwards.
  void append_choices(grammar::Matcher& matcher, std::span<const TokenId> output,
                      std::vector<TokenId>& choices);

  // Whether behind each of the choices tokens are forced or the text ends. The matcher is as it was
  // afterwards.
  bool forces_behind_all(grammar::Matcher& matcher, std::span<const TokenId> output,
                         std::span<const TokenId> choices);

 private:
  // The length of output's end that it takes; -1: the end is not canonical.
  int32_t encode_behind_window(std::span<const TokenId> output, std::string_view bytes);
  bool encode_behind(std::span<const TokenId> output, std::string_view bytes);
  struct Way {
    std::string text;
    TokenId token = -1;   // that a canonical output has next, whatever follows the text
    bool leaves = false;  // there is none: with this text the output is not canonical
    std::string next;     // bytes that may follow, where they are not determined yet
  };
  Way continuation(grammar::Matcher& matcher, std::span<const TokenId> output, std::string text);
  bool leaves_output(grammar::Matcher& matcher, std::span<const TokenId> output);
  bool spells_text() const;
  void add_next_bytes(grammar::Matcher& matcher, std::string& next) const;
  size_t num_certain(grammar::Matcher& matcher, size_t num_known);
  bool limit_by_tokens_from(grammar::Matcher& matcher, size_t begin, size_t& certain);
  std::string_view bytes_of(TokenId id) const { return tokens_.bytes_of(id); }

  const Tokenizer& tokenizer_;
  const TokensByBytes& tokens_;
  std::string text_;          // the window's bytes and the forced ones
  std::vector<TokenId> ids_;  // of text_
  std::string probe_;
  std::vector<std::string> ways_;
  std::vector<TokenId> way_output_, way_forced_;
};

}  // namespace espalier
