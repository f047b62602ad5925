// Tokens that are added to a vocabulary, such as "<|eot|>". They are found in a text before the
// text is normalised and cut, each by its own rules.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "seams/vocab_view.h"

namespace espalier {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;      // left out by decode(), and by encode() without parse_special
  bool normalized = false;   // searched in the normalised text, in its normalised form
  bool single_word = false;  // not within a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
};

// Finds added tokens: at each place the longest that matches there. Immutable; thread-safe.
class AddedTokenMatcher {
 public:
  // `tokens` outlives the matcher; `contents` are what is searched for, one for each token. Empty
  // ones are never found.
  AddedTokenMatcher(std::span<const AddedToken* const> tokens,
                    std::span<const std::string> contents);

  struct Part {
    std::string_view text;
    const AddedToken* token = nullptr;  // null: text between tokens
  };
  // Appends the parts of `text`, empty ones left out. Linear in the text for tokens of bounded
  // length. Special tokens stay text without `parse_special`.
  void split(std::string_view text, bool parse_special, std::vector<Part>& parts) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    const AddedToken* token = nullptr;
    std::vector<std::pair<uint8_t, uint32_t>> children;  // sorted by byte
  };
  struct Hit {
    size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };
  void add(const AddedToken* token, std::string_view content);
  uint32_t child_of(uint32_t node, uint8_t byte) const;  // 0: none
  Hit find(std::string_view text, size_t position) const;

  std::vector<Node> nodes_;                    // a trie; node 0 is its root
  std::array<uint32_t, 256> root_children_{};  // 0: none
};

}  // namespace espalier
