// A trie over the bytes of a vocabulary's pieces, as a double array: which pieces does a text begin
// with?
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier {

// Immutable; thread-safe.
class PieceTrie {
 public:
  struct Piece {
    std::string_view text;
    int32_t value = 0;  // >= 0
  };
  PieceTrie() : PieceTrie(std::vector<Piece>()) {}
  // Empty pieces are left out; of equal ones the last counts.
  explicit PieceTrie(std::vector<Piece> pieces);

  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = ~0u;
  uint32_t child(uint32_t node, uint8_t byte) const {
    const uint32_t next = nodes_[node].base + byte;
    return nodes_[next].parent == node ? next : kNone;
  }
  int32_t value(uint32_t node) const { return nodes_[node].value; }  // -1: no piece ends here
  uint32_t walk(uint32_t node, std::string_view bytes) const;        // kNone: no piece goes there

  // Calls fn(size, value) for each piece that text[begin, end) begins with, the shortest first.
  template <typename Fn>
  void for_each_prefix(std::string_view text, size_t begin, Fn&& fn) const {
    uint32_t node = kRoot;
    for (size_t i = begin; i < text.size(); ++i) {
      node = child(node, static_cast<uint8_t>(text[i]));
      if (node == kNone) return;
      if (nodes_[node].value >= 0) fn(i + 1 - begin, nodes_[node].value);
    }
  }
  struct Match {
    size_t size = 0;  // 0: none
    int32_t value = -1;
  };
  Match longest(uint32_t node, std::string_view text, size_t begin) const;
  bool empty() const { return num_pieces_ == 0; }

 private:
  struct Node {
    uint32_t base = 0;
    uint32_t parent = kNone;
    int32_t value = -1;
  };
  struct Range {  // of sorted pieces that share their first `depth` bytes, those of `node`
    uint32_t node;
    size_t begin, end, depth;
  };
  void build(std::span<const Piece> pieces);
  uint32_t place(std::span<const uint8_t> bytes);

  std::vector<Node> nodes_;  // 256 unused ones at the end, so that any step stays inside
  size_t first_free_ = 1;    // while building: no free node before it is worth trying
  size_t num_pieces_ = 0;
};

}  // namespace espalier
