// Left factoring of choices whose alternatives begin alike, such as tools, or objects that differ
// in a first constant.
#pragma once

#include <functional>
#include <span>

#include "grammar/ir.h"

namespace espalier::grammar {

// Returns a choice of `alternatives` in which rules with equal leading parts share them. A text is
// then in one Earley item until the alternatives differ, and what follows becomes a rule that is
// built when a text first reaches it, one for all alternatives that continue alike. `is_made`
// returns whether a rule's body is final.
ExprId left_factored_choice(Ir& ir, std::span<const ExprId> alternatives,
                            const std::function<bool(RuleId)>& is_made);

}  // namespace espalier::grammar
