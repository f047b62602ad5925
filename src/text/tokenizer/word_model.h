// Turns one word, a part of text that the pre-tokeniser did not cut, into tokens.
#pragma once

#include <string_view>
#include <vector>

#include "seams/vocab_view.h"

namespace espalier {

// Immutable; thread-safe.
class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the tokens of `word`, which is not empty.
  virtual void encode_word(std::string_view word, std::vector<TokenId>& out) const = 0;
};

}  // namespace espalier
