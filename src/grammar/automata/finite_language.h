// Enumeration of small finite languages. Pure; reads the Ir only.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "grammar/ir.h"

namespace espalier::grammar {

// Returns the texts of `expr`, sorted; nothing when there are more than `texts_max`, or infinitely
// many, or when a rule has a check or a counter. REQUIRES: the bodies of all rules that it names
// are set.
std::optional<std::vector<std::string>> finite_language(const Ir& ir, ExprId expr,
                                                        size_t texts_max);

}  // namespace espalier::grammar
