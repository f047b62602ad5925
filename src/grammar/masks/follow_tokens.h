// Follows tokens from a position, each byte once where tokens begin alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/masks/token_trie.h"

namespace espalier::grammar {

// Follows tokens in the order of their bytes, each from where the previous token differs. `step`
// maps (position, bytes before, byte) to the next position, or to nothing. `use` gets each token,
// the positions after each of its bytes as far as it leads on, and whether that is to its end.
template <typename At, typename Step, typename Use>
void follow_tokens(const TokenTrie& trie, std::span<const TokenId> tokens, const At& from,
                   Step step, Use use) {
  std::vector<At> path = {from};  // [byte of `last`] the position after it, as far as it leads on
  std::string_view last;
  for (const TokenId token : tokens) {
    const std::string_view bytes = trie.bytes(token);
    const auto [differs, _] = std::ranges::mismatch(last.substr(0, path.size() - 1), bytes);
    path.resize(static_cast<size_t>(differs - last.begin()) + 1, from);
    while (path.size() <= bytes.size()) {
      const std::optional<At> to =
          step(path.back(), bytes.substr(0, path.size() - 1), bytes[path.size() - 1]);
      if (!to) break;
      path.push_back(*to);
    }
    use(token, path, path.size() == bytes.size() + 1);
    last = bytes;
  }
}

}  // namespace espalier::grammar
