// What llguidance adds to Lark's syntax, and the library guidance writes: options of a grammar,
// attributes of rules, and schemas and grammars within rules.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/frontends/grammar_text.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// Takes the object behind %llguidance. Options that change what a grammar accepts are refused.
Status take_options(GrammarText& text);

// Takes the attributes of a rule, `[capture="x", temperature=0.5]`, from the bracket on. A capture
// names a part of the answer to whom reads it, and a temperature changes no set of texts, so both
// say nothing here. Others do and are refused by name: max_tokens, stop, suffix, lazy and so on.
Status take_attributes(GrammarText& text);

// Takes the schema behind %json, with white space as in schemas of requests. A member x-guidance
// says nothing here.
Result<ExprId> take_json(Ir& ir, GrammarText& text, const GrammarLimits& limits);

// Takes the grammar in braces behind %lark and returns its text.
Result<std::string_view> take_braces(GrammarText& text);

}  // namespace espalier::grammar
