#include "grammar/masks/char_class_trie.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace espalier::grammar {
namespace {

// A token as the kinds of its first characters, and how many bytes these have.
struct Spelled {
  std::string path;
  size_t rest_begin = 0;
  std::string_view text;
  TokenId id = 0;
  uint32_t rank = 0;
  bool has_rest() const { return rest_begin < text.size(); }
};

Spelled spelled(TokenId id, uint32_t rank, std::string_view text) {
  Spelled out{.path = {}, .rest_begin = 0, .text = text, .id = id, .rank = rank};
  for (std::string_view rest = text; !rest.empty();) {
    const int kind = take_char_kind(rest);
    if (kind == kNumCharKinds) break;
    out.path.push_back(static_cast<char>(kind));
    out.rest_begin = text.size() - rest.size();
  }
  return out;
}

bool path_before(const Spelled& a, const Spelled& b) {
  if (a.path != b.path) return a.path < b.path;
  if (a.has_rest() != b.has_rest()) return b.has_rest();
  return a.text != b.text ? a.text < b.text : a.id < b.id;
}

}  // namespace

void CharClassTrie::build(std::span<const TokenId> tokens,
                          const std::function<std::string_view(TokenId)>& text_of,
                          std::span<const uint8_t> class_sets, size_t words) {
  std::vector<Spelled> sorted;
  for (uint32_t i = 0; i < tokens.size(); ++i)
    sorted.push_back(spelled(tokens[i], i, text_of(tokens[i])));
  std::ranges::sort(sorted, path_before);
  std::vector<uint32_t> open = {0};  // nodes on the path to the last token
  const auto close = [&](size_t keep) {
    for (; open.size() > keep; open.pop_back())
      nodes_[open.back()].skip = static_cast<uint32_t>(nodes_.size());
  };
  nodes_.emplace_back();
  std::string_view last;
  for (size_t i = 0; i < sorted.size();) {
    const std::string_view path = sorted[i].path;
    const auto common = static_cast<size_t>(std::ranges::mismatch(path, last).in1 - path.begin());
    close(common + 1);
    for (size_t depth = common; depth < path.size(); ++depth) {
      Node node = nodes_[open.back()];
      node.kind = static_cast<uint8_t>(path[depth]);
      node.path_classes |= static_cast<CharClassSet>(1 << char_class_of_kind(node.kind));
      node.depth = static_cast<uint16_t>(depth + 1);
      node.tokens_begin = node.rests_begin = static_cast<uint32_t>(token_ids_.size());
      node.rests = -1;
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(node);
    }
    depth_max_ = std::max(depth_max_, static_cast<uint16_t>(path.size()));
    Node& node = nodes_[open.back()];
    std::unordered_map<TokenId, std::string_view> rests;
    std::vector<TokenId> rest_ids;
    for (; i < sorted.size() && sorted[i].path == path; ++i) {
      token_ids_.push_back(sorted[i].id);
      ranks_.push_back(sorted[i].rank);
      if (!sorted[i].has_rest()) continue;
      rest_ids.push_back(sorted[i].id);
      rests.emplace(sorted[i].id, sorted[i].text.substr(sorted[i].rest_begin));
    }
    node.rests_begin = static_cast<uint32_t>(token_ids_.size() - rest_ids.size());
    if (!rest_ids.empty()) {
      node.rests = static_cast<int32_t>(rests_.size());
      rests_.push_back(
          build_plain_walk(std::move(rest_ids), [&](TokenId id) { return rests.at(id); }));
    }
    last = path;
  }
  close(0);
  const auto end = static_cast<uint32_t>(token_ids_.size());
  nodes_.push_back(
      {.skip = static_cast<uint32_t>(nodes_.size()), .tokens_begin = end, .rests_begin = end});
  add_class_sets(class_sets);
  add_masks(words);
}

void CharClassTrie::add_class_sets(std::span<const uint8_t> class_sets) {
  for (const uint32_t rank : ranks_) class_set_numbers_.push_back(class_sets[rank]);
  for (uint32_t i = 0; i + 1 < nodes_.size(); ++i) {
    for (const uint8_t number : class_sets_below(i)) nodes_[i].class_sets |= uint64_t{1} << number;
  }
}

void CharClassTrie::add_masks(size_t words) {
  constexpr size_t kMany = 256;  // as many single bits cost as much as the words of a mask
  for (uint32_t i = 0; i + 1 < nodes_.size(); ++i) {
    if (whole(i).size() < kMany) continue;
    std::vector<uint32_t> mask(words, 0);
    add_whole(i, mask);
    nodes_[i].mask = static_cast<int32_t>(masks_.size());
    masks_.push_back(std::move(mask));
  }
}

void CharClassTrie::add_whole(uint32_t node, std::span<uint32_t> words) const {
  if (const int32_t number = nodes_[node].mask; number >= 0) {
    const std::vector<uint32_t>& mask = masks_[static_cast<size_t>(number)];
    for (size_t i = 0; i < mask.size(); ++i) words[i] |= mask[i];
    return;
  }
  for (const TokenId id : whole(node))
    words[static_cast<size_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
}

void CharClassTrie::add_of(CharClassSet classes, std::span<uint32_t> words) const {
  for (uint32_t i = 1; i + 1 < nodes_.size();) {
    const bool within = (nodes_[i].path_classes & ~classes) == 0;
    if (within) add_whole(i, words);
    i = within ? i + 1 : nodes_[i].skip;
  }
}

}  // namespace espalier::grammar
