// Non-deterministic automata under construction, and what is done to them: removing empty moves,
// determinising, minimising. Symbols are byte ranges and calls of rules. Internal to
// transition_network.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// Edges carry a byte range, or a call (call >= 0), or nothing (an empty move). Those of a state
// stand together in one list: automata are made when texts reach them, so making one allocates
// little.
struct Nfa {
  struct Edge {
    uint8_t low = 0, high = 0;
    bool is_empty = false;
    int32_t call = -1;
    NodeId target = 0;
  };
  struct State {
    uint32_t edges_begin = 0, edges_end = 0;
    bool final = false;
  };
  std::vector<State> states;
  std::vector<Edge> edges;
  NodeId start = 0;

  NodeId add() {
    states.emplace_back();
    return static_cast<NodeId>(states.size() - 1);
  }
  // The edges of a state are added between these two, of one state at a time.
  void begin_edges(NodeId state) { states[state].edges_begin = end_of_edges(); }
  void end_edges(NodeId state) { states[state].edges_end = end_of_edges(); }
  std::span<const Edge> edges_of(NodeId state) const {
    return {edges.data() + states[state].edges_begin, edges.data() + states[state].edges_end};
  }
  std::span<Edge> edges_of(NodeId state) {
    return {edges.data() + states[state].edges_begin, edges.data() + states[state].edges_end};
  }

 private:
  uint32_t end_of_edges() const { return static_cast<uint32_t>(edges.size()); }
};

// For each state those with an edge to it, by counting.
struct Sources {
  std::vector<uint32_t> begins;  // [state], and one more
  std::vector<NodeId> states;

  explicit Sources(const Nfa& nfa) : begins(nfa.states.size() + 2, 0), states(nfa.edges.size()) {
    for (const Nfa::Edge& edge : nfa.edges) ++begins[edge.target + 2];
    for (size_t s = 2; s < begins.size(); ++s) begins[s] += begins[s - 1];
    for (NodeId s = 0; s < nfa.states.size(); ++s) {
      for (const Nfa::Edge& edge : nfa.edges_of(s)) states[begins[edge.target + 1]++] = s;
    }
  }
  std::span<const NodeId> of(NodeId state) const {
    return {states.data() + begins[state], states.data() + begins[state + 1]};
  }
};

// Joins neighbouring byte ranges that lead to the same state, among the edges from the `from`th on,
// which are in order.
void join_ranges(std::vector<Nfa::Edge>& edges, size_t from);

inline constexpr NodeId kUnnamed = ~NodeId{0};

// Edges of these calls are the counter's.
inline constexpr int32_t kTickCall = 1 << 30;
inline constexpr int32_t kEnoughCall = kTickCall + 1;

// What a rule is in nfa_of: the number of a call, or kInlineRule.
inline constexpr int32_t kInlineRule = -1;
inline constexpr int32_t kNeverRule = -2;  // it matches nothing

// Asked after each step of what takes long, with about the nanoseconds that it took: looks at the
// clock now and then.
class WorkClock {
 public:
  explicit WorkClock(const GrammarLimits& limits) : limits_(limits) {}
  // Whether the caller should leave with whatever it has.
  bool ended_by(size_t work) {
    done_ += work + 8;
    if (done_ < kBetweenLooks) return false;
    done_ = 0;
    return limits_.interrupted();
  }

 private:
  static constexpr size_t kBetweenLooks = 1 << 16;
  const GrammarLimits& limits_;
  size_t done_ = 0;
};

// The automaton of `expr`, without empty moves. A rule that does not become a call is written out
// where it stands (REQUIRES: it does not recurse). Where more than `exact_max` states remain, some
// empty moves may: where parts that may be left out follow each other, all ways past them would be
// a square of edges.
Nfa nfa_of(const Ir& ir, ExprId expr, const std::function<int32_t(RuleId)>& call_of,
           const GrammarLimits& limits, size_t exact_max = ~size_t{0});

// The automaton of a deterministic graph, as it stands; and back, with the start as state 0.
Nfa nfa_of_graph(const Ir::Graph& graph);
Ir::Graph graph_of(const Nfa& dfa);

// Whether `expr` is such a graph.
inline bool is_deterministic_graph(const Ir& ir, ExprId expr) {
  return ir.node(expr).op == Ir::Op::kGraph && ir.graph_of(expr).deterministic;
}

// What follows, and nfa_of, leaves with an automaton of no meaning once limits.interrupted(); the
// caller asks limits.check_time().

// The same language without empty moves, unreachable states, or states from which no final state
// can be reached (calls count as passable). A state that would have more than `edges_max` edges
// keeps empty moves to where the further ones begin.
Nfa without_empty_moves(const Nfa& nfa, const GrammarLimits& limits, size_t edges_max = ~size_t{0});

// The deterministic automaton (calls are symbols like any other), or nothing when it would pass
// `states_max`.
std::optional<Nfa> determinised(const Nfa& nfa, size_t states_max, const GrammarLimits& limits);

// The minimal form of a deterministic automaton.
Nfa minimised(const Nfa& dfa, const GrammarLimits& limits);

}  // namespace espalier::grammar
