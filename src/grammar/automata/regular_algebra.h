// Operations on regular languages that expressions lack: intersection and difference by product
// automata. The schema compiler uses them for what two keywords both require of a string. Not
// thread-safe with respect to the Ir.
#pragma once

#include <optional>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// Return the texts that match `a` and `b`, or `a` and not `b`. REQUIRES: no recursive rules inside.
// kResourceExhausted when an automaton exceeds limits.dfa_nodes_max.
Result<ExprId> intersection(Ir& ir, ExprId a, ExprId b, const GrammarLimits& limits);
Result<ExprId> difference(Ir& ir, ExprId a, ExprId b, const GrammarLimits& limits);

// Returns the minimal DFA of `expr` as a graph: equal languages get isomorphic graphs.
Result<ExprId> canonical(Ir& ir, ExprId expr, const GrammarLimits& limits);

// How many ticks the texts of `expr` have.
struct TickProfile {
  uint32_t least = 0;
  std::optional<uint32_t> most;  // nothing: unbounded
  // from any state the text can end after any number of ticks from the least one on
  bool even = false;
};
Result<TickProfile> tick_profile(Ir& ir, ExprId expr, const GrammarLimits& limits);

bool matches_nothing(const Ir& ir, ExprId expr);  // for results of the functions above

}  // namespace espalier::grammar
