// A vocabulary's tokens in the order of their bytes: which of them begin with a text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace espalier {

// Immutable; the tokenizer outlives it.
class TokensByBytes {
 public:
  explicit TokensByBytes(const Tokenizer& tokenizer) : bytes_(tokenizer.vocab().token_bytes) {
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
      if (!bytes_of(id).empty()) sorted_.push_back(id);
    std::sort(sorted_.begin(), sorted_.end(),
              [this](TokenId a, TokenId b) { return bytes_of(a) < bytes_of(b); });
    std::string_view last;
    shared_.reserve(sorted_.size());
    for (const TokenId id : sorted_) {
      const auto same = std::ranges::mismatch(last, bytes_of(id)).in1 - last.begin();
      shared_.push_back(static_cast<uint16_t>(std::min<std::ptrdiff_t>(same, kSharedMax)));
      last = bytes_of(id);
    }
  }

  // Empty: a token without bytes, as special ones are.
  std::string_view bytes_of(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < bytes_.size() ? bytes_[static_cast<size_t>(id)]
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

  // Walks the bytes that these tokens have behind `text`, as down a trie. step(byte) advances by
  // one byte; where it returns false, tokens with that beginning are skipped. back(count) takes
  // back `count` steps. found(token) is called at the end of each token; false ends the walk. All
  // steps are taken back at the end.
  template <typename Step, typename Back, typename Found>
  void walk_longer(std::string_view text, Step step, Back back, Found found) const {
    const std::span<const TokenId> all = longer(text);
    const auto begin = static_cast<size_t>(all.data() - sorted_.data()), end = begin + all.size();
    size_t taken = 0;
    for (size_t i = begin; i < end;) {
      const size_t kept = i == begin ? 0 : std::min(taken, shared_[i] - text.size());
      if (taken > kept) back(taken - kept);
      const std::string_view rest = bytes_of(sorted_[i]).substr(text.size());
      for (taken = kept; taken < rest.size() && step(rest[taken]);) ++taken;
      if (taken == rest.size()) {
        if (!found(sorted_[i])) break;
        ++i;
      } else {
        i = behind(i, end, text.size() + taken + 1);
      }
    }
    if (taken > 0) back(taken);
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
  static constexpr std::ptrdiff_t kSharedMax = 0xffff;

  // The first of i + 1 to end that has fewer than `bytes` bytes in common with i. Found by one
  // letter there may be thousands: a block at a time.
  size_t behind(size_t i, size_t end, size_t bytes) const {
    constexpr size_t kBlock = 64;
    const auto least = static_cast<uint16_t>(std::min<size_t>(bytes, kSharedMax));
    for (++i; i + kBlock <= end; i += kBlock) {
      uint16_t fewest = least;
      for (size_t k = 0; k < kBlock; ++k) fewest = std::min(fewest, shared_[i + k]);
      if (fewest < least) break;
    }
    while (i < end && shared_[i] >= least) ++i;
    return i;
  }

  const std::span<const std::string_view> bytes_;  // the tokenizer's
  std::vector<TokenId> sorted_;
  std::vector<uint16_t> shared_;  // [sorted_] bytes in common with the one before, at the beginning
};

}  // namespace espalier
