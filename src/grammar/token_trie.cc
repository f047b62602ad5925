#include "grammar/token_trie.h"

#include <algorithm>

#include "grammar/unicode.h"

namespace espalier::grammar {
namespace {

bool string_inside(std::string_view text) {
  const bool plain = std::ranges::none_of(
      text, [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; });
  return plain && valid_utf8(text);
}

class Builder {
 public:
  explicit Builder(const TokenTrie& trie) : trie_(trie) {}

  TrieWalk build(std::vector<TokenId> ids) {
    std::sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
      const auto x = trie_.bytes(a), y = trie_.bytes(b);
      return x != y ? x < y : a < b;
    });
    TrieWalk walk;
    std::vector<uint32_t> open;  // nodes of the path to the last token
    std::string_view last;
    for (TokenId id : ids) {
      const std::string_view text = trie_.bytes(id);
      size_t common = 0;
      while (common < last.size() && common < text.size() && last[common] == text[common]) ++common;
      close(walk, open, common);
      for (size_t depth = common; depth < text.size(); ++depth) {
        open.push_back(static_cast<uint32_t>(walk.nodes.size()));
        walk.nodes.push_back({.tokens_begin = static_cast<uint32_t>(walk.token_ids.size()),
                              .depth = static_cast<uint16_t>(depth),
                              .byte = static_cast<uint8_t>(text[depth])});
      }
      walk.token_ids.push_back(id);
      walk.depth_max = std::max(walk.depth_max, static_cast<int32_t>(text.size()));
      last = text;
    }
    close(walk, open, 0);
    walk.nodes.push_back({.skip = static_cast<uint32_t>(walk.nodes.size()),
                          .tokens_begin = static_cast<uint32_t>(walk.token_ids.size())});
    return walk;
  }

 private:
  static void close(TrieWalk& walk, std::vector<uint32_t>& open, size_t keep) {
    for (; open.size() > keep; open.pop_back()) {
      walk.nodes[open.back()].skip = static_cast<uint32_t>(walk.nodes.size());
    }
  }
  const TokenTrie& trie_;
};

}  // namespace

TokenTrie::TokenTrie(const VocabView& vocab)
    : vocab_size_(vocab.vocab_size()), eos_ids_(vocab.eos_ids) {
  constexpr size_t kTokenBytesMax = 4096;  // a longer token is never allowed
  offsets_.reserve(static_cast<size_t>(vocab_size_) + 1);
  offsets_.push_back(0);
  for (TokenId id = 0; id < vocab_size_; ++id) {
    const std::string_view token = vocab.token_bytes[static_cast<size_t>(id)];
    const bool special = std::ranges::binary_search(vocab.special_ids, id) || is_eos(id);
    if (!special && token.size() <= kTokenBytesMax) text_ += token;
    offsets_.push_back(static_cast<uint32_t>(text_.size()));
  }
  std::vector<TokenId> ids, others;
  string_inside_mask_.assign(static_cast<size_t>(words_per_mask()), 0);
  for (TokenId id = 0; id < vocab_size_; ++id) {
    if (bytes(id).empty()) continue;
    ids.push_back(id);
    if (string_inside(bytes(id))) {
      string_inside_mask_[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    } else {
      others.push_back(id);
    }
  }
  all_ = Builder(*this).build(std::move(ids));
  not_string_inside_ = Builder(*this).build(std::move(others));
}

std::string_view TokenTrie::bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size_) return {};
  const auto i = static_cast<size_t>(id);
  return std::string_view(text_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

bool TokenTrie::is_eos(TokenId id) const { return std::ranges::binary_search(eos_ids_, id); }

}  // namespace espalier::grammar
