// Look-aheads of regular expressions, (?=...) and (?!...), compiled away: an expression in which
// they are marked becomes a minimal DFA of the same language.
//
// Thread safety: functions of one Ir are not thread-safe.
#pragma once

#include <span>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// A look-ahead stands in an expression as a reference to `marker`, which has no body. There the
// rest of the text is one of `language` (`wanted`), or none of it.
struct Lookahead {
  RuleId marker = 0;
  ExprId language = 0;  // without look-aheads
  bool wanted = true;
};

// Returns the texts of `expr` as a deterministic graph. Each state holds the states of the
// expression with the automata of the look-aheads that are under way, so any nesting and repetition
// of them is exact. REQUIRES: `expr` has no rules but markers of `lookaheads`. kResourceExhausted:
// more than limits.dfa_nodes_max states, or a million pairs of states in them.
Result<ExprId> resolve_lookaheads(Ir& ir, ExprId expr, std::span<const Lookahead> lookaheads,
                                  const GrammarLimits& limits);

}  // namespace espalier::grammar
