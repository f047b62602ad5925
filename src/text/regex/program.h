// Regular expressions as one nondeterministic automaton over classes of characters.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/regex/char_set.h"
#include "text/regex/syntax.h"

namespace espalier {

// Divides all characters into classes whose members no set of a program distinguishes.
class Alphabet {
 public:
  // Every set is a union of classes, and so are line ends and word characters.
  explicit Alphabet(std::span<const CharSet> sets);

  // A class is one of [0, size()).
  uint32_t class_of(uint32_t code) const { return code < 128 ? ascii_[code] : find(code); }
  uint32_t size() const { return num_classes_; }
  uint32_t sample(uint32_t char_class) const { return samples_[char_class]; }  // a member of it

 private:
  uint32_t find(uint32_t code) const;
  std::vector<uint32_t> starts_;   // ascending: where another class begins
  std::vector<uint32_t> classes_;  // [starts_]
  std::vector<uint32_t> samples_;  // [class]
  std::array<uint32_t, 128> ascii_{};
  uint32_t num_classes_ = 0;
};

// Thompson's construction (1968). Immutable.
struct RegexProgram {
  enum class Op : uint8_t { kChar, kSplit, kAssertion, kMatch };
  struct State {
    Op op = Op::kMatch;
    RegexAssertion assertion = RegexAssertion::kTextBegin;  // kAssertion
    uint32_t set = 0;                                       // kChar: index into `members`
    uint32_t next = 0, other = 0;                           // other: of kSplit
    uint32_t pattern = 0;                                   // kMatch: which pattern has matched
  };
  std::vector<State> states;
  std::vector<uint32_t> starts;  // [pattern]
  Alphabet alphabet{{}};
  std::vector<std::vector<bool>> members;  // [set][class]
};

// States of all patterns of one program.
inline constexpr size_t kProgramStatesMax = 8192;

// kInvalidArgument names the pattern that is refused, as parse_regex_syntax does, or is the one
// with which the program has more than kProgramStatesMax states.
Result<RegexProgram> compile_program(std::span<const std::string> patterns);

}  // namespace espalier
