#include "engine/constrained/token_healing.h"

#include <algorithm>

namespace espalier {

size_t num_tokens_to_heal(const TokensByBytes& tokens, std::span<const TokenId> prompt) {
  std::string text;
  size_t best = 0;
  for (size_t count = 1; count <= kHealedTokensMax && count < prompt.size(); ++count) {
    const std::string_view bytes = tokens.bytes_of(prompt[prompt.size() - count]);
    if (bytes.empty()) break;
    text.insert(0, bytes);
    const bool whole = (static_cast<uint8_t>(bytes[0]) & 0xc0) != 0x80;
    if (whole && !tokens.longer(text).empty()) best = count;
  }
  return best;
}

void fill_healing_mask(const TokensByBytes& tokens, std::string_view left,
                       grammar::Matcher* matcher, std::span<uint32_t> words) {
  std::ranges::fill(words, 0);
  const auto allow = [&](TokenId id) { words[static_cast<size_t>(id) / 32] |= 1u << (id % 32); };
  for (size_t size = 1; size <= left.size(); ++size)
    for (const TokenId id : tokens.equal(left.substr(0, size))) allow(id);
  int refused_byte = -1;  // tokens are sorted: those that go on with it are passed over
  for (const TokenId id : tokens.longer(left)) {
    const std::string_view rest = tokens.bytes_of(id).substr(left.size());
    if (matcher != nullptr) {
      if (static_cast<uint8_t>(rest[0]) == refused_byte) continue;
      if (!matcher->accept_bytes(rest.substr(0, 1))) {
        refused_byte = static_cast<uint8_t>(rest[0]);
        continue;
      }
      const bool more = rest.size() > 1;
      const bool fits = !more || matcher->accept_bytes(rest.substr(1));
      matcher->rollback(more && fits ? 2 : 1);
      if (!fits) continue;
    }
    allow(id);
  }
}

}  // namespace espalier
