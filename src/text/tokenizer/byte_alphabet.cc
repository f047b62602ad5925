#include "text/tokenizer/byte_alphabet.h"

#include <array>

#include "text/unicode/utf8.h"

namespace espalier {
namespace {

// Printable bytes spell themselves; the 68 others follow from U+0100 on, in order.
constexpr bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> characters{};
  std::array<int16_t, 0x144> bytes{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.bytes) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t code = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.characters[byte] = code;
    alphabet.bytes[code] = static_cast<int16_t>(byte);
  }
  return alphabet;
}
constexpr Alphabet kByteAlphabet = make_alphabet();

// The byte that a character spells, or -1.
int byte_of(char32_t code) {
  return code < kByteAlphabet.bytes.size() ? kByteAlphabet.bytes[code] : -1;
}

}  // namespace

bool append_spelled_bytes(std::string_view spelled, std::string& out) {
  const size_t size_before = out.size();
  out.resize(size_before + spelled.size());
  char* to = out.data() + size_before;
  for (size_t i = 0; i < spelled.size(); ++i) {
    char32_t code = static_cast<uint8_t>(spelled[i]);
    if (code >= 0x80) {
      // The alphabet ends below U+0144: two bytes of UTF-8, or none of its characters.
      const auto second = static_cast<uint8_t>(i + 1 < spelled.size() ? spelled[i + 1] : 0);
      const bool valid = code >= 0xC2 && code <= 0xDF && (second & 0xC0) == 0x80;
      code = valid ? (code & 0x1F) << 6 | (second & 0x3F) : 0x10FFFF;
      ++i;
    }
    const int byte = byte_of(code);
    if (byte < 0) {
      out.resize(size_before);
      return false;
    }
    *to++ = static_cast<char>(byte);
  }
  out.resize(static_cast<size_t>(to - out.data()));
  return true;
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes)
    append_utf8(kByteAlphabet.characters[static_cast<uint8_t>(byte)], out);
  return out;
}

}  // namespace espalier
