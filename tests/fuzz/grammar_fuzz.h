// What every fuzzed grammar must stand: compiled within its limits or refused, and followed a
// little.
#pragma once

#include <cstdint>
#include <string_view>

#include "grammar/conformance.h"
#include "grammar/grammar.h"

namespace espalier::fuzz {

inline void follow(const grammar::GrammarSpec& spec, std::string_view steps) {
  static const auto trie = grammar::byte_trie();
  grammar::GrammarLimits limits;
  limits.compile_seconds_max = 0.05;
  limits.nodes_max = 100'000;
  limits.earley_sets_max = 20'000;
  const auto compiled = compile_grammar(spec, trie, limits);
  if (!compiled) return;
  grammar::Matcher matcher(*compiled);
  std::vector<uint32_t> words(static_cast<size_t>(trie->words_per_mask()));
  const bool judged = !(*compiled)->network().checks.empty();
  for (const char c : steps.substr(0, 24)) {
    const bool any = matcher.fill_mask(words);
    if (matcher.exhausted()) return;
    if (!any) {
      ESP_CHECK(judged || matcher.can_end(), "stuck");  // the byte vocabulary has no end token
      return;
    }
    const std::string forced = matcher.forced_bytes(16);
    if (!forced.empty()) {
      ESP_CHECK(matcher.accept_bytes(forced), "forced bytes are refused");
      matcher.rollback(1);
    }
    // The byte if it may come, else the next one above it that may.
    auto byte = static_cast<uint8_t>(c);
    while ((words[byte / 32] >> (byte % 32) & 1) == 0) ++byte;
    ESP_CHECK(matcher.accept_token(byte), "the mask allows what is refused");
  }
}

}  // namespace espalier::fuzz
