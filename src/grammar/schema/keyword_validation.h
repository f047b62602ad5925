// The `validate` functions of the table of keywords: each returns whether the instance satisfies
// one keyword. They are listed here for keywords.cc alone.
#pragma once

#include "grammar/schema/evaluator.h"

namespace espalier::grammar::validation {

bool reference(const KeywordEvaluation& at);
bool not_enum(const KeywordEvaluation& at);
bool type(const KeywordEvaluation& at);
bool enum_values(const KeywordEvaluation& at);
bool constant(const KeywordEvaluation& at);
bool numeric_bound(const KeywordEvaluation& at);
bool divisor(const KeywordEvaluation& at);
bool length(const KeywordEvaluation& at);  // minLength, maxLength
bool pattern(const KeywordEvaluation& at);
bool format(const KeywordEvaluation& at);
bool all_of(const KeywordEvaluation& at);
bool any_of(const KeywordEvaluation& at);
bool one_of(const KeywordEvaluation& at);
bool negated(const KeywordEvaluation& at);
bool condition(const KeywordEvaluation& at);
bool prefix_items(const KeywordEvaluation& at);
bool items(const KeywordEvaluation& at);  // with additionalItems where it is a list
bool contains(const KeywordEvaluation& at);
bool item_count(const KeywordEvaluation& at);
bool unique_items(const KeywordEvaluation& at);
bool unevaluated_items(const KeywordEvaluation& at);
bool required(const KeywordEvaluation& at);
bool property_count(const KeywordEvaluation& at);
bool property_names(const KeywordEvaluation& at);
bool properties(const KeywordEvaluation& at);
bool pattern_properties(const KeywordEvaluation& at);
bool additional_properties(const KeywordEvaluation& at);
bool dependencies(const KeywordEvaluation& at);
bool unevaluated_properties(const KeywordEvaluation& at);

}  // namespace espalier::grammar::validation
