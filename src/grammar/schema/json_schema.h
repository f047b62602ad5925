// JSON Schema (drafts 4 to 2020-12) as a grammar. Every keyword is enforced, or the schema is
// refused with the JSON pointer of the keyword; none is ignored silently.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"
#include "grammar/schema/json_syntax.h"

namespace espalier::grammar {

// A schema document that references may resolve to, with its absolute address.
struct SchemaText {
  std::string uri, text;
  friend bool operator==(const SchemaText&, const SchemaText&) = default;
};

struct SchemaOptions {
  bool any_order = false;         // properties in any order, each once; else in declared order
  bool whole_fractions = false;   // whether 1.0 is an integer, as the specification says
  bool formats_annotate = false;  // whether `format` only annotates
  std::string draft;  // for schemas without $schema, as in "draft2019-09"; default 2020-12
  std::vector<SchemaText> documents;  // documents that remote references may resolve to
  friend bool operator==(const SchemaOptions&, const SchemaOptions&) = default;
};

// Adds the language of the schema's instances to `ir`. Properties come in declared order,
// undeclared ones after them (see SchemaOptions::any_order). keywords.cc lists the supported
// keywords. kInvalidArgument: the schema is wrong; kUnimplemented: a keyword is not supported where
// it stands; kResourceExhausted: it is too large. Not thread-safe with respect to `ir`.
Result<ExprId> parse_json_schema(Ir& ir, std::string_view schema, Whitespace whitespace,
                                 const SchemaOptions& options, const GrammarLimits& limits);

}  // namespace espalier::grammar
