// Finite automata under construction: Thompson's construction, epsilon removal, subset construction
// and minimisation. Symbols are byte ranges and calls of rules. Internal to automata/. All
// functions are pure and thread-safe. Long computations return early with a meaningless automaton
// once limits.interrupted(); the caller then calls limits.check_time().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// An edge carries a byte range, a call (call >= 0), or nothing (epsilon). The edges of a state are
// contiguous in one list, since automata are built while texts are matched and must allocate
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
  // The edges of one state are added between begin_edges() and end_edges(), one state at a time.
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

// The predecessors of each state, by counting sort.
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

// Joins adjacent byte ranges with the same target among the sorted edges from index `from` on.
void join_ranges(std::vector<Nfa::Edge>& edges, size_t from);

inline constexpr NodeId kUnnamed = ~NodeId{0};

// Call numbers that stand for the counter's symbols.
inline constexpr int32_t kTickCall = 1 << 30;
inline constexpr int32_t kEnoughCall = kTickCall + 1;

// How nfa_of treats a rule: as the number of a call, or inlined.
inline constexpr int32_t kInlineRule = -1;
inline constexpr int32_t kNeverRule = -2;  // the rule matches nothing

// Checks the limits while long work runs: `work` is roughly the nanoseconds that a step took, and
// the limits are consulted once in a while.
class WorkClock {
 public:
  explicit WorkClock(const GrammarLimits& limits) : limits_(limits) {}
  // Returns whether the caller should stop.
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

// Returns the automaton of `expr` without epsilon edges. A rule that is no call is inlined
// (REQUIRES: it does not recurse). With more than `exact_max` states some epsilon edges may remain:
// where many optional parts follow each other, removing them all would square the number of edges.
Nfa nfa_of(const Ir& ir, ExprId expr, const std::function<int32_t(RuleId)>& call_of,
           const GrammarLimits& limits, size_t exact_max = ~size_t{0});

// Converts a deterministic graph to an automaton, and back with the start as state 0.
Nfa nfa_of_graph(const Ir::Graph& graph);
Ir::Graph graph_of(const Nfa& dfa);

// Returns whether `expr` is a deterministic graph.
inline bool is_deterministic_graph(const Ir& ir, ExprId expr) {
  return ir.node(expr).op == Ir::Op::kGraph && ir.graph_of(expr).deterministic;
}

// Returns the same language without epsilon edges, unreachable states, or states from which no
// final state can be reached (calls count as passable). A state that would have more than
// `edges_max` edges keeps epsilon edges to where the further ones begin.
Nfa without_empty_moves(const Nfa& nfa, const GrammarLimits& limits, size_t edges_max = ~size_t{0});

// Returns the deterministic automaton (calls are ordinary symbols), or nothing when it would exceed
// `states_max`.
std::optional<Nfa> determinised(const Nfa& nfa, size_t states_max, const GrammarLimits& limits);

// Returns the minimal form of a deterministic automaton.
Nfa minimised(const Nfa& dfa, const GrammarLimits& limits);

}  // namespace espalier::grammar
