// The `lower` functions of the table of keywords: each adds what a keyword requires to Constraints.
// They are listed here for keywords.cc alone. kInvalidArgument: the keyword's value is wrong.
#pragma once

#include "base/status.h"
#include "grammar/schema/constraints.h"

namespace espalier::grammar::lowering {

Status type(const KeywordUse& use);
Status enum_values(const KeywordUse& use);
Status constant(const KeywordUse& use);
Status not_enum(const KeywordUse& use);
Status pattern(const KeywordUse& use);        // and kNotPattern
Status format(const KeywordUse& use);         // and kNotFormat
Status numeric_bound(const KeywordUse& use);  // minimum, maximum and their exclusive forms
Status divisor(const KeywordUse& use);        // multipleOf, divisibleBy, kNotMultipleOf
Status count_bound(const KeywordUse& use);    // min and max of lengths, items and properties
Status required(const KeywordUse& use);
Status object_map(const KeywordUse& use);   // properties, patternProperties
Status of_objects(const KeywordUse& use);   // keywords that ObjectCompiler reads itself
Status of_arrays(const KeywordUse& use);    // keywords that ArrayCompiler reads itself
Status unevaluated(const KeywordUse& use);  // unevaluatedItems, unevaluatedProperties
Status unique_items(const KeywordUse& use);
Status inexpressible(const KeywordUse& use);

}  // namespace espalier::grammar::lowering
