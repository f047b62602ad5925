// Lexemes that JSON grammars share: quoted strings and keys. Their automata are built once for the
// process and enter grammars unchanged, with tagged states, so that a vocabulary can compute the
// masks inside them before any grammar is compiled. Everything here is immutable after its first
// use and thread-safe, but for functions that take an Ir.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "grammar/ir.h"

namespace espalier::grammar {

enum class Lexeme : uint8_t {
  kString,  // any JSON string: RFC 8259, without lone \u surrogates
  kKey,  // as serialisers write keys: escapes only where they are required, and the shortest ones
};
inline constexpr size_t kNumLexemes = 2;

// A state of a lexeme as a non-zero number. `counted`: each character ticks the counter of its
// rule.
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

// A minimal DFA over bytes.
struct LexemeAutomaton {
  static constexpr uint8_t kDead = 0xff;
  static constexpr uint8_t kStart = 0;         // before the opening quote
  uint8_t inside = 0;                          // between characters
  uint8_t end = 0;                             // after the closing quote; no edge leaves it
  std::vector<std::array<uint8_t, 256>> next;  // [state][byte]
  std::vector<Ir::Arc> arcs;                   // the same, sorted by state and byte
};
const LexemeAutomaton& lexeme_automaton(Lexeme lexeme);

// Returns the lexeme's texts as a deterministic graph with tags.
ExprId lexeme(Ir& ir, Lexeme lexeme);
// Returns strings with a tick for each character and kEnough before their end
// (IrRules::set_counter).
ExprId counted_string(Ir& ir);
// Returns all keys except `names`, which are quoted as serialisers write them.
ExprId other_keys(Ir& ir, std::vector<std::string> names);

// Returns one character as serialisers write it: itself, or the shortest escape where one is
// required.
ExprId serialised_char(Ir& ir, const std::vector<CodeRange>& ranges);

}  // namespace espalier::grammar
