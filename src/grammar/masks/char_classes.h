// Kinds of characters that patterns seldom tell apart: what a mask asks of a state once for all
// tokens that are made of them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace espalier::grammar {

using CharClassSet = uint16_t;  // a set: bit k for kind k

// a to z, A to Z, 0 to 9, the space, each of "_-./" (names and paths have them), what else
// addresses may hold, all else in ASCII that a JSON string holds as it is, other characters but
// white space, other white space.
inline constexpr int kNumCharClasses = 12;
inline constexpr CharClassSet kAllCharClasses = (1 << kNumCharClasses) - 1;
inline constexpr CharClassSet kAsciiCharClasses = (1 << 10) - 1;
inline constexpr CharClassSet kOtherBytes = 1 << kNumCharClasses;  // what is none of them

// Those that a text is made of; kOtherBytes where there is more in it.
CharClassSet char_classes_of(std::string_view text);

// One character of a kind: a deterministic automaton over its bytes.
struct CharClassAutomaton {
  static constexpr uint8_t kStart = 0, kWhole = 0xfe, kDead = 0xff;
  std::vector<std::array<uint8_t, 256>> next;  // [state][byte]
};
const CharClassAutomaton& char_class_automaton(int kind);

}  // namespace espalier::grammar
