// Choices among rules that begin alike (tools, objects told apart by a first constant).
#pragma once

#include <functional>
#include <span>

#include "grammar/ir.h"

namespace espalier::grammar {

// A choice of `ways` where those that are rules with the same first parts share them: a text is at
// one place until they differ, and what comes after that is a rule that is made when a text reaches
// it, one for all ways that go on alike. `is_made`: whether a rule's body will stay as it is.
ExprId left_factored_choice(Ir& ir, std::span<const ExprId> alternatives,
                            const std::function<bool(RuleId)>& is_made);

}  // namespace espalier::grammar
