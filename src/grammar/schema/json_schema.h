// JSON Schema (drafts 4 to 2020-12) as a grammar: enforced, or refused with the JSON pointer to
// what is not supported; never silently dropped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"
#include "grammar/schema/json_syntax.h"

namespace espalier::grammar {

// A schema document that references may lead to, by its absolute address.
struct SchemaText {
  std::string uri, text;
  friend bool operator==(const SchemaText&, const SchemaText&) = default;
};

struct SchemaOptions {
  bool any_order = false;             // properties in any order, each once; else in declared order
  bool whole_fractions = false;       // 1.0 is an integer too, as the specification has it
  bool formats_annotate = false;      // `format` says nothing about what is valid
  std::string draft;                  // "draft2019-09": of schemas without $schema; else 2020-12
  std::vector<SchemaText> documents;  // what remote references may lead to
  friend bool operator==(const SchemaOptions&, const SchemaOptions&) = default;
};

// Properties come in the order in which they are declared, undeclared ones after them.
// Supported: type, enum, const, minimum, maximum and their exclusive forms, multipleOf, minLength,
// maxLength, pattern, format (the standard ones; unknown formats annotate), items, prefixItems,
// additionalItems, contains, minItems, maxItems, properties, required, additionalProperties,
// patternProperties, propertyNames, minProperties, maxProperties, dependencies, dependentRequired,
// dependentSchemas, allOf, anyOf, oneOf (exclusive), not, if/then/else, and $ref within the
// document.
Result<ExprId> parse_json_schema(Ir& ir, std::string_view schema, Whitespace whitespace,
                                 const SchemaOptions& options, const GrammarLimits& limits);

}  // namespace espalier::grammar
