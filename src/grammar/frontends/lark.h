// Grammars in the Lark syntax that llguidance takes:
//   start: greeting NAME ("," NAME)*
//   greeting: "hello" | "hi"i
//   NAME: /[A-Z][a-z]+/
//   %ignore " "
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// Returns whether the text is written as Lark grammars are (`name:` or a directive comes first) and
// not as EBNF (`name ::=`).
bool is_lark(std::string_view text);

// Adds the grammar's rules to `ir` and returns the rule `start`. Supported: rules (lower case) and
// terminals (upper case), alternatives, groups, [optional parts], * + ? ~n ~n..m {m,n}, strings and
// regular expressions with the flags i and s, ranges ("a".."z"), %ignore, %import of common.NAME,
// aliases and priorities, which are read and say nothing here, and comments. Of llguidance's
// additions: %llguidance {}, %json {...} and %lark {...} in a rule, and the attributes of rules
// that change no text (lark_parts.h). Ignored text may stand behind every terminal of a rule, not
// within %json and %lark. Terminals are matched as the grammar has them and not by the longest
// match. REQUIRES: valid UTF-8. kInvalidArgument names the line and the mistake; kUnimplemented
// names what is not supported: templates, other attributes, special tokens and other directives.
Result<RuleId> parse_lark(Ir& ir, std::string_view text, const GrammarLimits& limits);

}  // namespace espalier::grammar
