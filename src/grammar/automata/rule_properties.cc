#include "grammar/automata/rule_properties.h"

#include <algorithm>

#include "grammar/automata/nfa.h"

namespace espalier::grammar {
namespace {

// Returns whether edges for which `passes` holds lead from the start of a graph to a final state.
template <typename Passes>
bool reaches_final(const Ir::Graph& graph, Passes passes) {
  std::vector<std::vector<uint32_t>> next(graph.num_states);
  for (const Ir::Arc& arc : graph.arcs) {
    if (arc.symbol != Ir::Arc::Symbol::kBytes) next[arc.from].push_back(arc.to);
  }
  for (const Ir::GraphEdge& edge : graph.edges) {
    if (passes(edge.expr)) next[edge.from].push_back(edge.to);
  }
  std::vector<bool> seen(graph.num_states, false);
  std::vector<uint32_t> stack = {0};
  seen[0] = true;
  while (!stack.empty()) {
    const uint32_t state = stack.back();
    stack.pop_back();
    for (uint32_t to : next[state]) {
      if (!seen[to]) stack.push_back(to);
      seen[to] = true;
    }
  }
  return std::ranges::any_of(graph.finals, [&](uint32_t state) { return seen[state]; });
}

}  // namespace

// Computes the least fixed point of a property of rule bodies that depends on the property of
// other rules.
template <typename Holds>
Status RuleProperties::find_in_rules(std::vector<bool>& rules, Holds holds) {
  rules.assign(ir_.rules().size(), false);
  WorkClock clock(limits_);
  for (bool changed = true; changed;) {
    changed = false;
    known_.assign(ir_.size(), Known::kNothing);
    for (RuleId rule : plan_.finished()) {
      if (clock.ended_by(200)) return limits_.check_time();
      if (rules[rule] || !holds(ir_.rules()[rule].body)) continue;
      rules[rule] = true;
      changed = plan_.recursive();  // without recursion one pass suffices
    }
    if (clock.ended_by(ir_.size())) return limits_.check_time();
  }
  return limits_.check_time();
}

template <typename Find>
bool RuleProperties::remembered(ExprId expr, Find find) {
  if (known_[expr] != Known::kNothing) return known_[expr] == Known::kTrue;
  const bool found = find(ir_.node(expr));
  known_[expr] = found ? Known::kTrue : Known::kFalse;
  return found;
}

// Returns whether some text matches.
bool RuleProperties::is_productive(ExprId expr) {
  return remembered(expr, [&](const Ir::Node& node) {
    const auto inner = [&](ExprId child) { return is_productive(child); };
    switch (node.op) {
      case Ir::Op::kNever:
        return false;
      case Ir::Op::kEmpty:
      case Ir::Op::kBytes:
      case Ir::Op::kTick:
      case Ir::Op::kEnough:
        return true;
      case Ir::Op::kSequence:
        return std::ranges::all_of(ir_.children(expr), inner);
      case Ir::Op::kChoice:
        return std::ranges::any_of(ir_.children(expr), inner);
      case Ir::Op::kRepeat:
        return node.min == 0 || is_productive(ir_.children(expr)[0]);
      case Ir::Op::kGraph:
        return ir_.graph_of(expr).deterministic || reaches_final(ir_.graph_of(expr), inner);
      case Ir::Op::kRule:
        return bool{productive_[node.first]};
    }
    return false;
  });
}

// Returns whether the empty text matches; counters are ignored.
bool RuleProperties::is_nullable(ExprId expr) {
  return remembered(expr, [&](const Ir::Node& node) {
    const auto inner = [&](ExprId child) { return is_nullable(child); };
    switch (node.op) {
      case Ir::Op::kNever:
      case Ir::Op::kBytes:
        return false;
      case Ir::Op::kEmpty:
      case Ir::Op::kTick:
      case Ir::Op::kEnough:
        return true;
      case Ir::Op::kSequence:
        return std::ranges::all_of(ir_.children(expr), inner);
      case Ir::Op::kChoice:
        return std::ranges::any_of(ir_.children(expr), inner);
      case Ir::Op::kRepeat:
        return node.min == 0 || is_nullable(ir_.children(expr)[0]);
      case Ir::Op::kGraph:
        return reaches_final(ir_.graph_of(expr), inner);
      case Ir::Op::kRule:
        return bool{nullable_[node.first]};
    }
    return false;
  });
}

Status RuleProperties::find_productive() {
  return find_in_rules(productive_, [this](ExprId body) { return is_productive(body); });
}

Status RuleProperties::find_nullable() {
  return find_in_rules(nullable_, [this](ExprId body) { return is_nullable(body); });
}

}  // namespace espalier::grammar
