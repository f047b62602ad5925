// The automata that JSON grammars share: quoted strings. They are made once for the process and
// enter grammars as they are, their states tagged, so that a vocabulary can know the masks inside
// them before any grammar comes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "grammar/ir.h"

namespace espalier::grammar {

enum class Lexeme : uint8_t {
  kString,  // any JSON string: RFC 8259, lone \u surrogates excepted
  kKey,     // as serialisers write it: escapes where they must be, the shortest ones
};
inline constexpr size_t kNumLexemes = 2;

// A state of a lexeme, as a number that is not 0. `counted`: each character ticks its rule's
// counter.
struct LexemeTag {
  Lexeme lexeme = Lexeme::kString;
  bool counted = false;
  uint8_t state = 0;
};
constexpr uint16_t to_number(LexemeTag tag) {
  const auto kind = static_cast<uint16_t>(static_cast<int>(tag.lexeme) * 2 + (tag.counted ? 1 : 0));
  return static_cast<uint16_t>((kind + 1) << 8 | tag.state);
}
constexpr LexemeTag to_tag(uint16_t number) {
  const int kind = (number >> 8) - 1;
  return {static_cast<Lexeme>(kind / 2), kind % 2 == 1, static_cast<uint8_t>(number & 0xff)};
}

// Deterministic and minimal; immutable.
struct LexemeAutomaton {
  static constexpr uint8_t kDead = 0xff;
  static constexpr uint8_t kStart = 0;         // before the quote that opens
  uint8_t inside = 0;                          // between characters
  uint8_t end = 0;                             // after the quote that closes: nothing follows
  std::vector<std::array<uint8_t, 256>> next;  // [state][byte]
  std::vector<Ir::Arc> arcs;                   // the same, sorted by state and byte
};
const LexemeAutomaton& lexeme_automaton(Lexeme lexeme);

// Its texts, as a deterministic graph with tags.
ExprId lexeme(Ir& ir, Lexeme lexeme);
// Strings with a tick for each character and kEnough before their end (Ir::set_counter).
ExprId counted_string(Ir& ir);
// The keys that are none of `names`, which are quoted as serialisers write them.
ExprId other_keys(Ir& ir, std::vector<std::string> names);

// A character as serialisers write it: itself, or the shortest escape where it needs one.
ExprId serialised_char(Ir& ir, const std::vector<CodeRange>& ranges);

}  // namespace espalier::grammar
