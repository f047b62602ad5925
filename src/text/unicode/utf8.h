// UTF-8, a character at a time, and the one rule by which invalid bytes become U+FFFD everywhere in
// this room: each maximal prefix of a well-formed sequence is replaced once (Unicode 15, section
// 3.9, "substitution of maximal subparts"; Rust's from_utf8_lossy, Python's errors="replace").
// The functions are pure and thread-safe; a Utf8Stream is used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

struct Utf8Char {
  char32_t code = 0;   // kReplacementCharacter where the bytes are invalid
  uint32_t size = 0;   // bytes consumed, at least 1
  bool valid = false;  // false: the bytes are invalid, or the text ends within a character
  bool cut = false;    // with !valid: the text ends here and more bytes could make a character
};

// The character at text[position]; position < text.size().
Utf8Char decode_utf8(std::string_view text, size_t position);

// The first byte at or after `position` that is not ASCII, or the text's end.
size_t skip_ascii(std::string_view text, size_t position);

void append_utf8(char32_t code, std::string& out);  // code: any scalar value
size_t utf8_length(char32_t code);                  // bytes, 1 to 4

bool is_valid_utf8(std::string_view text);
// The text with invalid bytes replaced.
std::string to_valid_utf8(std::string_view text);

// Makes valid UTF-8 of bytes that come in pieces: the concatenation of all output is
// to_valid_utf8 of the concatenation of all input. Holds back at most three bytes.
class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string& out);
  void flush(std::string& out);

 private:
  char pending_[4] = {};
  uint32_t pending_size_ = 0;
};

}  // namespace espalier
