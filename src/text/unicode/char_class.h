// The classes of characters that tokenizers split by, pinned to Unicode 16.0 (what Oniguruma in
// Hugging Face's tokenizers and Rust's regex in tiktoken have), not to the system's libraries.
// Thread-safe: the table is written once, when it is first asked for.
#pragma once

#include <cstdint>

namespace espalier {

enum CharClass : uint8_t {
  kOther = 0,             // symbols, controls, unassigned
  kUpper = 1 << 0,        // Lu, Lt
  kLower = 1 << 1,        // Ll
  kOtherLetter = 1 << 2,  // Lm, Lo
  kMark = 1 << 3,         // M
  kDecimal = 1 << 4,      // Nd
  kOtherNumber = 1 << 5,  // Nl, No
  kPunctuation = 1 << 6,  // P
  kSpace = 1 << 7,        // White_Space

  kLetter = kUpper | kLower | kOtherLetter,  // \p{L}
  kNumber = kDecimal | kOtherNumber,         // \p{N}
};

namespace internal {
const uint8_t* char_class_table();  // [0x110000]
}

// The table is a megabyte, of which a text touches the pages of its scripts.
class CharClasses {
 public:
  CharClasses() : table_(internal::char_class_table()) {}
  uint8_t of(char32_t code) const { return table_[code]; }  // code <= 0x10FFFF
  bool is(char32_t code, uint8_t classes) const { return (table_[code] & classes) != 0; }

 private:
  const uint8_t* table_;
};

// \w of Rust's regular expressions: Alphabetic, M, Nd, Pc, Join_Control.
bool is_word_character(char32_t code);

}  // namespace espalier
