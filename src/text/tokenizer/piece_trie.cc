#include "text/tokenizer/piece_trie.h"

#include <algorithm>

namespace espalier {
namespace {

constexpr size_t kBytes = 256;
// A search for a place gives up a region that is nearly full after this many nodes that are taken.
constexpr size_t kTriesMax = 512;

}  // namespace

PieceTrie::PieceTrie(std::vector<Piece> pieces) {
  std::erase_if(pieces, [](const Piece& piece) { return piece.text.empty(); });
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.text < b.text; });
  num_pieces_ = pieces.size();
  nodes_.resize(kBytes + 1);
  nodes_[kRoot].parent = kRoot;  // taken; no step leads to it, since bases are above 0
  build(pieces);
  nodes_.resize(nodes_.size() + kBytes);
}

void PieceTrie::build(std::span<const Piece> pieces) {
  std::vector<Range> ranges = {{kRoot, 0, pieces.size(), 0}};
  std::vector<uint8_t> bytes;
  std::vector<Range> parts;
  while (!ranges.empty()) {
    Range range = ranges.back();
    ranges.pop_back();
    while (range.begin < range.end && pieces[range.begin].text.size() == range.depth) {
      nodes_[range.node].value = pieces[range.begin++].value;
    }
    bytes.clear();
    parts.clear();
    for (size_t i = range.begin; i < range.end; ++i) {
      const auto byte = static_cast<uint8_t>(pieces[i].text[range.depth]);
      if (bytes.empty() || bytes.back() != byte) {
        bytes.push_back(byte);
        parts.push_back({0, i, i, range.depth + 1});
      }
      parts.back().end = i + 1;
    }
    if (bytes.empty()) {
      nodes_[range.node].base = 1;
      continue;
    }
    const uint32_t base = place(bytes);
    nodes_[range.node].base = base;
    for (size_t i = 0; i < bytes.size(); ++i) {
      parts[i].node = base + bytes[i];
      nodes_[parts[i].node].parent = range.node;
      ranges.push_back(parts[i]);
    }
  }
}

// A base, above 0, whose nodes for all `bytes` are free.
uint32_t PieceTrie::place(std::span<const uint8_t> bytes) {
  size_t num_taken = 0;
  for (size_t first = std::max<size_t>(first_free_, bytes[0] + size_t{1});; ++first) {
    const size_t base = first - bytes[0];
    if (base + kBytes >= nodes_.size()) nodes_.resize(nodes_.size() * 2);
    if (nodes_[first].parent != kNone) {
      ++num_taken;
      continue;
    }
    const bool fits = std::all_of(bytes.begin(), bytes.end(), [&](uint8_t byte) {
      return nodes_[base + byte].parent == kNone;
    });
    if (!fits) {
      ++num_taken;
      continue;
    }
    if (num_taken > kTriesMax) first_free_ = first;
    return static_cast<uint32_t>(base);
  }
}

uint32_t PieceTrie::walk(uint32_t node, std::string_view bytes) const {
  for (const char byte : bytes) {
    if (node == kNone) break;
    node = child(node, static_cast<uint8_t>(byte));
  }
  return node;
}

PieceTrie::Match PieceTrie::longest(uint32_t node, std::string_view text, size_t begin) const {
  Match match;
  for (size_t i = begin; i < text.size() && node != kNone; ++i) {
    node = child(node, static_cast<uint8_t>(text[i]));
    if (node != kNone && nodes_[node].value >= 0) match = {i + 1 - begin, nodes_[node].value};
  }
  return match;
}

}  // namespace espalier
