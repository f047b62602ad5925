// A vocabulary's tokens in the order of their bytes: which of them begin with a text.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace espalier {

// Immutable; the tokenizer outlives it.
class TokensByBytes {
 public:
  explicit TokensByBytes(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
      if (!bytes_of(id).empty()) sorted_.push_back(id);
    std::sort(sorted_.begin(), sorted_.end(),
              [this](TokenId a, TokenId b) { return bytes_of(a) < bytes_of(b); });
  }

  // Empty: a token without bytes, as special ones are.
  std::string_view bytes_of(TokenId id) const {
    const auto& bytes = tokenizer_.vocab().token_bytes;
    return id >= 0 && static_cast<size_t>(id) < bytes.size() ? bytes[static_cast<size_t>(id)]
                                                             : std::string_view();
  }

  // Tokens longer than `text` that begin with it, sorted by their bytes.
  std::span<const TokenId> longer(std::string_view text) const {
    const auto begin =
        std::upper_bound(sorted_.begin(), sorted_.end(), text,
                         [this](std::string_view t, TokenId id) { return t < bytes_of(id); });
    const auto end = std::partition_point(
        begin, sorted_.end(), [&](TokenId id) { return bytes_of(id).starts_with(text); });
    return {begin, end};
  }

  // All tokens with exactly these bytes.
  std::span<const TokenId> equal(std::string_view text) const {
    const auto begin =
        std::lower_bound(sorted_.begin(), sorted_.end(), text,
                         [this](TokenId id, std::string_view t) { return bytes_of(id) < t; });
    const auto end = std::partition_point(begin, sorted_.end(),
                                          [&](TokenId id) { return bytes_of(id) == text; });
    return {begin, end};
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<TokenId> sorted_;
};

}  // namespace espalier
