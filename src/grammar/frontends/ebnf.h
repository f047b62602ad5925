// EBNF in the GBNF dialect that users of llama.cpp and xgrammar write:
//   root  ::= "answer: " item ("," item)*     # a comment
//   item  ::= [a-z]{2,5} | "\"" [^"]* "\""
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// Adds the grammar's rules to `ir` and returns the rule named `root`. Literals and classes take the
// escapes \n \t \r \\ \" \' \[ \] \- \xHH \uHHHH \UHHHHHHHH; repetition is * + ? {m} {m,} {m,n};
// `.` is any character. A rule's body goes on to the next line that begins a rule.
// kInvalidArgument names the line and what is wrong: an undefined rule, a rule defined twice, ...
Result<RuleId> parse_ebnf(Ir& ir, std::string_view text, std::string_view root = "root");

}  // namespace espalier::grammar
