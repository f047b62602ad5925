#include "server/dialects/token_text.h"

#include <algorithm>

namespace espalier::server {
namespace {

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Of a token whose bytes the text does not have. Bytes that are no UTF-8 have become U+FFFD, at the
// first token that holds some of them; another text is taken to be as long as the bytes.
size_t length_of_other_text(std::string_view rest, std::string_view bytes) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  const auto common = static_cast<size_t>(std::ranges::mismatch(rest, bytes).in1 - rest.begin());
  size_t length = common;
  while (rest.substr(length).starts_with(kReplacement)) length += kReplacement.size();
  if (length > common) return length;
  return continues_character(bytes.front()) ? 0 : std::min(bytes.size(), rest.size());
}

}  // namespace

std::optional<size_t> token_length_in(std::string_view rest, std::string_view bytes,
                                      TokenPlace place) {
  if (rest.starts_with(bytes)) return bytes.size();
  if (place.first && bytes.starts_with(' ') && !rest.starts_with(' ')) bytes.remove_prefix(1);
  if (rest.starts_with(bytes)) return bytes.size();
  if (bytes.starts_with(rest)) {
    if (place.complete) return rest.size();
    return std::nullopt;
  }
  return place.special ? 0 : length_of_other_text(rest, bytes);
}

size_t whole_characters(std::string_view text, size_t num_bytes) {
  if (num_bytes >= text.size()) return text.size();
  while (num_bytes > 0 && continues_character(text[num_bytes])) --num_bytes;
  return num_bytes;
}

}  // namespace espalier::server
