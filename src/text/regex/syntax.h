// The syntax of stop expressions: the part of RE2's that needs no backtracking, as a tree.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/regex/char_set.h"

namespace espalier {

// A condition on the characters before and behind a position.
enum class RegexAssertion : uint8_t {
  kTextBegin,
  kTextEnd,  // of the text so far
  kLineBegin,
  kLineEnd,
  kWordBoundary,
  kNoWordBoundary,
};

// The root is the last node; children come before their parents.
struct RegexTree {
  enum class Kind : uint8_t { kEmpty, kChar, kAssertion, kSequence, kAlternatives, kRepeat };
  static constexpr int32_t kUnbounded = -1;
  struct Node {
    Kind kind = Kind::kEmpty;
    CharSet set;                                               // kChar; empty: nothing matches
    RegexAssertion assertion = RegexAssertion::kTextBegin;     // kAssertion
    int32_t repeat_min = 0, repeat_max = kUnbounded;           // kRepeat, of the one child
    std::vector<int32_t> children;
  };
  std::vector<Node> nodes;
};

// Supported, with RE2's meaning: literals, . [...] [[:alpha:]] \d \s \w \p{..} (general categories)
// and their negations, \a \f \n \r \t \v \ooo \xHH \x{HHHH} \Q..\E, (...) (?:...) (?P<n>...)
// (?<n>...) (?flags) (?flags:...) with flags i, m, s, U, alternatives, * + ? {m} {m,} {m,n} and
// their lazy forms, ^ $ \A \z \b \B. kInvalidArgument states the byte and the reason for all else,
// as back-references and look-around.
Result<RegexTree> parse_regex_syntax(std::string_view pattern);

}  // namespace espalier
