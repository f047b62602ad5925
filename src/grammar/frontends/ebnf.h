// EBNF in the GBNF dialect of llama.cpp and xgrammar, and grammars in Lark's syntax (lark.h):
//   root  ::= "answer: " item ("," item)*     # a comment
//   item  ::= [a-z]{2,5}
//  "\"" [^"]* "\""
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// Adds the grammar's rules to `ir` and returns the rule named `root`; of a grammar in Lark's
// syntax, `start`. Literals and classes accept the escapes \n \t \r \b \f \\ \" \' \[ \] \- \xHH
// \uHHHH \UHHHHHHHH. Repetition is * + ? {m} {m,} {,n} {m,n}, after optional white space on the
// same line.
// `.` is any character. A rule's body continues to the next line that begins a rule.
// `limits` bound the schemas within a grammar. kInvalidArgument names the line and the mistake: an
// undefined rule, a rule defined twice, and so on.
Result<RuleId> parse_ebnf(Ir& ir, std::string_view text, std::string_view root = "root",
                          const GrammarLimits& limits = {});

}  // namespace espalier::grammar
