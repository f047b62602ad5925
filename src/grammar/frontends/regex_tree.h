// The syntax trees of regular expressions, and their parser.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/ir.h"

namespace espalier::grammar {

struct RegexTree {
  enum class Kind { kEmpty, kChars, kSequence, kChoice, kRepeat, kTextStart, kTextEnd, kLookahead };
  Kind kind = Kind::kEmpty;
  std::vector<CodeRange> chars;     // of kChars, normalised
  std::vector<RegexTree> children;  // of kSequence and kChoice; one of kRepeat and kLookahead
  int32_t min = 0, max = 0;         // of kRepeat; max may be kUnbounded
  bool wanted = false;              // of kLookahead: (?=...) and not (?!...)
  // Whether the tree contains an anchor or a look-ahead, which depend on where they stand.
  bool anchored = false;
};

// Makes a tree of another kind than kChars from its children.
RegexTree regex_tree(RegexTree::Kind kind, std::vector<RegexTree> children = {});
// Makes a tree of one character out of the ranges, in any order.
RegexTree regex_chars(std::vector<CodeRange> ranges);

// Parses a pattern; regex.h says what is supported. kInvalidArgument names the offset and the
// mistake. With `single_quantifiers` a quantifier behind a quantifier is refused.
Result<RegexTree> parse_regex_tree(std::string_view pattern, bool single_quantifiers);

}  // namespace espalier::grammar
