// A synthetic vocabulary for tests of masks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "grammar/masks/token_trie.h"

namespace espalier::grammar {

// Many short tokens over JSON's characters, and long ones of every kind: text, escapes, quotes
// inside text, control characters, partial characters.
inline std::shared_ptr<const TokenTrie> made_up_vocabulary(uint64_t seed) {
  Rng rng(seed);
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  const std::vector<std::string> parts = {"a",
                                          "b",
                                          "na",
                                          "me",
                                          "id",
                                          "key",
                                          " ",
                                          "  ",
                                          "x1",
                                          "0",
                                          "12",
                                          "7",
                                          "-",
                                          ".",
                                          "\"",
                                          "\":",
                                          "\",",
                                          "\"}",
                                          "\"]",
                                          "\\",
                                          "\\n",
                                          "n",
                                          "\\u0",
                                          "04",
                                          "\n",
                                          "\t",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "true",
                                          "fa",
                                          "null",
                                          "\xC3",
                                          "\xA9",
                                          "\xC3\xA9",
                                          "\xE2\x82",
                                          "\xAC",
                                          "\xF0\x9F\x98\x80",
                                          "\xF0",
                                          "z",
                                          "_",
                                          "q"};
  for (int i = 0; i < 6000; ++i) {
    std::string token;
    for (int64_t n = rng.between(2, 6); n > 0; --n) token += parts[rng.below(parts.size())];
    tokens.push_back(token);
  }
  tokens.emplace_back("<end>");
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  VocabView view;
  view.token_bytes = views;
  view.eos_ids = view.special_ids = {static_cast<TokenId>(tokens.size() - 1)};
  return std::make_shared<const TokenTrie>(view);
}

}  // namespace espalier::grammar
