// Character classes that patterns seldom split. A mask tests a whole class once instead of every
// token made of its characters.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace espalier::grammar {

using CharClassSet = uint16_t;  // bit k for class k

// The classes: a-z; A-Z; 0-9; the space; each of "_-./", which names and paths contain; the other
// characters of URIs; the rest of ASCII that a JSON string holds unescaped; non-ASCII characters
// but white space; other white space.
inline constexpr int kNumCharClasses = 12;
inline constexpr CharClassSet kAllCharClasses = (1 << kNumCharClasses) - 1;
inline constexpr CharClassSet kAsciiCharClasses = (1 << 10) - 1;
inline constexpr CharClassSet kOtherBytes = 1 << kNumCharClasses;  // bytes outside every class

// The classes split into kinds: those of letters, digits and beyond ASCII are kinds themselves, and
// every other character of ASCII is one of its own.
inline constexpr int kNumCharKinds = 37;
int char_class_of_kind(int kind);
// The bytes of a kind within ASCII; none of one beyond it.
const std::vector<uint8_t>& ascii_of_kind(int kind);
// Removes the first character of the text and returns its kind, or returns kNumCharKinds and leaves
// the text as it is where no class has it. REQUIRES: the text is not empty.
int take_char_kind(std::string_view& text);

// Returns the classes of the text's characters; kOtherBytes is set where there is more in it.
CharClassSet char_classes_of(std::string_view text);

// A DFA over the bytes of one character of a class.
struct CharClassAutomaton {
  static constexpr uint8_t kStart = 0, kWhole = 0xfe, kDead = 0xff;
  std::vector<std::array<uint8_t, 256>> next;  // [state][byte]
};
const CharClassAutomaton& char_class_automaton(int kind);

}  // namespace espalier::grammar
