// Operations on regular languages that expressions do not have: intersection and difference. What
// two keywords of a schema both ask of a string is computed here, once, at compile time.
#pragma once

#include <optional>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// Expressions of texts that `a` and `b` both match, or `a` and not `b`. REQUIRES: no recursive
// rules inside. kResourceExhausted when an automaton passes limits.dfa_nodes_max.
Result<ExprId> intersection(Ir& ir, ExprId a, ExprId b, const GrammarLimits& limits);
Result<ExprId> difference(Ir& ir, ExprId a, ExprId b, const GrammarLimits& limits);

// The minimal deterministic form of `expr`, as a graph: equal languages get automata of one shape.
Result<ExprId> canonical(Ir& ir, ExprId expr, const GrammarLimits& limits);

// How many ticks the texts of `expr` have.
struct TickProfile {
  uint32_t least = 0;
  std::optional<uint32_t> most;  // nothing: any number
  bool even = false;  // wherever it stands, it can end after any number from the least one on
};
Result<TickProfile> tick_profile(Ir& ir, ExprId expr, const GrammarLimits& limits);

bool matches_nothing(const Ir& ir, ExprId expr);  // for results of the three above

}  // namespace espalier::grammar
