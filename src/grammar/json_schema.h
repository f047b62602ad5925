// JSON Schema (drafts 4 to 2020-12) as a grammar: enforced, or refused with the JSON pointer to
// what is not supported; never silently dropped.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/automaton.h"
#include "grammar/ir.h"
#include "grammar/json.h"

namespace espalier::grammar {

// Properties come in the order in which they are declared, undeclared ones after them.
// Supported: type, enum, const, minimum, maximum and their exclusive forms, multipleOf, minLength,
// maxLength, pattern, format (the standard ones; unknown formats annotate), items, prefixItems,
// additionalItems, contains, minItems, maxItems, properties, required, additionalProperties,
// patternProperties, propertyNames, minProperties, maxProperties, dependencies, dependentRequired,
// dependentSchemas, allOf, anyOf, oneOf (exclusive), not, if/then/else, and $ref within the
// document.
Result<ExprId> parse_json_schema(Ir& ir, std::string_view schema, Whitespace whitespace,
                                 const GrammarLimits& limits);

}  // namespace espalier::grammar
