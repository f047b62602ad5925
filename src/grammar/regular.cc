#include "grammar/regular.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "grammar/nfa.h"

namespace espalier::grammar {
namespace {

constexpr NodeId kNone = ~NodeId{0};

Result<Nfa> dfa_of(const Ir& ir, ExprId expr, const GrammarLimits& limits) {
  ESP_RETURN_IF_ERROR(limits.check_time());
  const Nfa nfa = nfa_of(ir, expr, [](RuleId) { return kInlineRule; });
  std::optional<Nfa> dfa = determinised(nfa, limits.dfa_nodes_max);
  if (!dfa) {
    return fail(error(StatusCode::kResourceExhausted,
                      "a pattern needs more than {} automaton states", limits.dfa_nodes_max));
  }
  return minimised(*dfa);
}

ExprId graph_of(Ir& ir, const Nfa& dfa) {
  Ir::Graph graph;
  graph.num_states = static_cast<uint32_t>(dfa.states.size());
  // The start is state 0: swap it with whoever is.
  const auto name = [&](NodeId id) { return id == dfa.start ? 0 : id == 0 ? dfa.start : id; };
  for (NodeId from = 0; from < dfa.states.size(); ++from) {
    std::map<NodeId, ByteSet> moves;
    for (const Nfa::Edge& edge : dfa.states[from].edges) {
      for (int b = edge.low; b <= edge.high; ++b) moves[edge.target].set(static_cast<size_t>(b));
    }
    for (const auto& [to, set] : moves)
      graph.edges.push_back({name(from), ir.bytes(set), name(to)});
    if (dfa.states[from].final) graph.finals.push_back(name(from));
  }
  return ir.graph(std::move(graph));
}

NodeId step(const Nfa& dfa, NodeId from, int byte) {
  if (from == kNone) return kNone;
  for (const Nfa::Edge& edge : dfa.states[from].edges) {
    if (edge.low <= byte && byte <= edge.high) return edge.target;
  }
  return kNone;
}

// Both automata side by side. `wanted` says which pairs of ends count; a pair whose first is dead
// is dead in both operations.
template <typename Wanted>
Result<ExprId> product(Ir& ir, ExprId a, ExprId b, const GrammarLimits& limits, bool second_may_die,
                       Wanted wanted) {
  ESP_ASSIGN_OR_RETURN(const Nfa x, dfa_of(ir, a, limits));
  ESP_ASSIGN_OR_RETURN(const Nfa y, dfa_of(ir, b, limits));
  Nfa out;
  std::map<std::pair<NodeId, NodeId>, NodeId> index;
  std::vector<std::pair<NodeId, NodeId>> pairs;
  const auto id_of = [&](NodeId p, NodeId q) {
    const auto [it, added] = index.try_emplace({p, q}, static_cast<NodeId>(pairs.size()));
    if (added) {
      pairs.emplace_back(p, q);
      out.add();
      out.states.back().final = wanted(x.states[p].final, q != kNone && y.states[q].final);
    }
    return it->second;
  };
  out.start = id_of(x.start, y.start);
  for (NodeId current = 0; current < pairs.size(); ++current) {
    if (pairs.size() > limits.dfa_nodes_max) {
      return fail(error(StatusCode::kResourceExhausted,
                        "patterns together need more than {} automaton states",
                        limits.dfa_nodes_max));
    }
    const auto [p, q] = pairs[current];
    for (const Nfa::Edge& edge : x.states[p].edges) {
      for (int low = edge.low; low <= edge.high;) {
        const NodeId q_next = step(y, q, low);
        int high = low;
        while (high < edge.high && step(y, q, high + 1) == q_next) ++high;
        if (q_next != kNone || second_may_die) {
          const NodeId to = id_of(edge.target, q_next);
          out.states[current].edges.push_back(
              {.low = static_cast<uint8_t>(low), .high = static_cast<uint8_t>(high), .target = to});
        }
        low = high + 1;
      }
    }
  }
  return graph_of(ir, minimised(without_empty_moves(out)));
}

}  // namespace

Result<ExprId> intersection(Ir& ir, ExprId a, ExprId b, const GrammarLimits& limits) {
  if (a == b) return a;
  return product(ir, a, b, limits, false, [](bool x, bool y) { return x && y; });
}

Result<ExprId> difference(Ir& ir, ExprId a, ExprId b, const GrammarLimits& limits) {
  if (b == ir.never()) return a;
  return product(ir, a, b, limits, true, [](bool x, bool y) { return x && !y; });
}

Result<ExprId> canonical(Ir& ir, ExprId expr, const GrammarLimits& limits) {
  ESP_ASSIGN_OR_RETURN(const Nfa dfa, dfa_of(ir, expr, limits));
  return graph_of(ir, dfa);
}

bool matches_nothing(const Ir& ir, ExprId expr) { return expr == ir.never(); }

}  // namespace espalier::grammar
