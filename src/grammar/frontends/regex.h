// Regular expressions: the common subset of ECMA-262 and Python's re that is regular. Lowered to
// the grammar's representation, one character encoding at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/ir.h"

namespace espalier::grammar {

struct RegexOptions {
  // False: the whole text matches, as SGLang's `regex`. True: some part of it does, as in JSON
  // Schema's `pattern`.
  bool search = false;
  // How one character out of normalised ranges is written; UTF-8 by default. JSON strings write
  // escapes as well.
  std::function<ExprId(Ir&, const std::vector<CodeRange>&)> encode;
};

// A pattern that begins with ^ and a look-ahead, as two that both must hold: `rest` matches, and
// `ahead` does exactly if `wanted`. Nothing where it has another shape.
struct LookaheadParts {
  std::string rest, ahead;
  bool wanted = true;
};
std::optional<LookaheadParts> split_lookahead(std::string_view pattern);

// Supported: literals, . [...] [^...] \d \D \w \W \s \S \p{..} \P{..} (general categories) and the
// usual escapes; (...) (?:...) (?P<n>...) (?<n>...); | ; * + ? {m} {m,} {m,n} {,n}, lazy forms read
// as greedy (for matching they are the same); ^ and $ (and \A \Z \z) as the text's ends, wherever
// they stand; (?i) at the start. \d, \w and \s are ASCII's, as in ECMA-262 without /u (\s with
// Unicode's spaces). . is any character but \n. Refused by name: back-references, look-around, \b
// \B, possessive and atomic groups, conditionals, other inline flags. kInvalidArgument names the
// character offset and what is wrong there.
Result<ExprId> parse_regex(Ir& ir, std::string_view pattern, const RegexOptions& options = {});

}  // namespace espalier::grammar
