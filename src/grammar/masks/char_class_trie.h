// The tokens of a vocabulary by the kinds of the characters (char_classes.h) that they begin with.
// Where all characters of a kind lead to one position, as in most patterns, a walk of this trie
// stands for a walk of the tokens' bytes, and it has a twentieth of the nodes.
//
// Thread safety: immutable after build(). Ownership: everything is held by value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/masks/char_classes.h"
#include "grammar/masks/trie_walk.h"
#include "seams/vocab_view.h"

namespace espalier::grammar {

// See the head of this file.
class CharClassTrie {
 public:
  // The path to a node spells kinds. Nodes are in depth-first order behind the root, node 0.
  struct Node {
    uint64_t class_sets = 0;    // bits of the class sets of the tokens at and below the node
    uint32_t skip = 0;          // index behind the subtree
    uint32_t tokens_begin = 0;  // tokens whose whole text spells the path, then those with a rest
    uint32_t rests_begin = 0;   // the next node's tokens_begin is the end
    int32_t rests = -1;         // index into the walks of rests, where there are some
    int32_t mask = -1;          // index into the masks of whole tokens, where there are many
    uint16_t depth = 0;         // the number of kinds on the path
    CharClassSet path_classes = 0;  // the classes on the path
    uint8_t kind = 0;               // the last kind on the path
  };

  // `text_of` returns the bytes of a token, which outlive the call; `class_sets` holds the
  // number of each token's class set, below 64; masks have `words` words.
  void build(std::span<const TokenId> tokens,
             const std::function<std::string_view(TokenId)>& text_of,
             std::span<const uint8_t> class_sets, size_t words);

  const std::vector<Node>& nodes() const { return nodes_; }  // and one sentinel behind the last
  uint16_t depth_max() const { return depth_max_; }
  std::span<const TokenId> whole(uint32_t node) const {
    return {token_ids_.data() + nodes_[node].tokens_begin,
            token_ids_.data() + nodes_[node].rests_begin};
  }
  // The other tokens of the node, from behind the path on: they go on with bytes of no class, such
  // as a quote. REQUIRES: it has some.
  const TrieWalk& rests(uint32_t node) const {
    return rests_[static_cast<size_t>(nodes_[node].rests)];
  }
  // All tokens at and below the node by their index in the list that build() got, and the numbers
  // of their class sets.
  std::span<const uint32_t> ranks_below(uint32_t node) const {
    return {ranks_.data() + nodes_[node].tokens_begin,
            ranks_.data() + nodes_[nodes_[node].skip].tokens_begin};
  }
  std::span<const uint8_t> class_sets_below(uint32_t node) const {
    return {class_set_numbers_.data() + nodes_[node].tokens_begin, ranks_below(node).size()};
  }
  // Sets the whole tokens of the node in a mask.
  void add_whole(uint32_t node, std::span<uint32_t> words) const;
  // Sets the tokens that are made of these classes alone.
  void add_of(CharClassSet classes, std::span<uint32_t> words) const;

 private:
  void add_masks(size_t words);
  void add_class_sets(std::span<const uint8_t> class_sets);

  std::vector<Node> nodes_;
  std::vector<TokenId> token_ids_;
  std::vector<uint32_t> ranks_;             // [token_ids_]
  std::vector<uint8_t> class_set_numbers_;  // [token_ids_]
  std::vector<TrieWalk> rests_;
  std::vector<std::vector<uint32_t>> masks_;
  uint16_t depth_max_ = 0;
};

}  // namespace espalier::grammar
