// Regular expressions: the regular subset that ECMA-262 and Python's re share, lowered to the IR
// with a configurable encoding of characters.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

struct RegexOptions {
  // False: the whole text matches, as in SGLang's `regex`. True: some part of it does, as in JSON
  // Schema's `pattern`.
  bool search = false;
  // Rejects a quantifier behind a quantifier, as ECMA-262 does; by default a** equals (?:a*)*.
  bool single_quantifiers = false;
  // Encodes one character out of normalised ranges; UTF-8 by default. JSON strings also accept
  // escapes.
  std::function<ExprId(Ir&, const std::vector<CodeRange>&)> encode;
  // Bound the automata of look-aheads.
  GrammarLimits limits = {};
};

// Supported: literals, . [...] [^...] \d \D \w \W \s \S \p{..} \P{..} (general categories) and the
// usual escapes; (...) (?:...) (?P<n>...) (?<n>...) (?i:...) (?s:...); | ;
// * + ? {m} {m,} {m,n} {,n}, also lazy, which has the same language; ^ and $ (and \A \Z \z) as the
// ends of the text, wherever they stand; (?i) and (?s) at the start. \d, \w and \s are ASCII as in
// ECMA-262 without /u (\s includes Unicode's spaces). `.` is any character but \n, and with (?s)
// any. (?=...) and (?!...) anywhere, which make the result one DFA. Rejected by name:
// back-references, look-behind, \b \B, possessive and atomic groups, conditionals, other inline
// flags. kResourceExhausted: look-aheads or anchors need more automaton states than the limits
// allow. kInvalidArgument names the character offset and the mistake.
Result<ExprId> parse_regex(Ir& ir, std::string_view pattern, const RegexOptions& options = {});

}  // namespace espalier::grammar
