#include "grammar/automata/nfa.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/rng.h"

namespace espalier::grammar {
namespace {

// Sort key: by call, then by bytes.
int64_t order_of(const Nfa::Edge& e) { return int64_t{e.call} << 16 | e.low << 8 | e.high; }

bool edge_less(const Nfa::Edge& a, const Nfa::Edge& b) {
  const int64_t first = order_of(a), second = order_of(b);
  return first < second || (first == second && a.target < b.target);
}

bool edge_equal(const Nfa::Edge& a, const Nfa::Edge& b) {
  return !edge_less(a, b) && !edge_less(b, a);
}

// Sorts the last edges of the list, which belong to one state, and drops duplicates.
void sort_edges(std::vector<Nfa::Edge>& edges, size_t from) {
  const auto unordered = [](const Nfa::Edge& a, const Nfa::Edge& b) { return !edge_less(a, b); };
  const auto begin = edges.begin() + static_cast<std::ptrdiff_t>(from);
  if (std::adjacent_find(begin, edges.end(), unordered) == edges.end()) return;
  std::sort(begin, edges.end(), edge_less);
  edges.erase(std::unique(begin, edges.end(), edge_equal), edges.end());
}

// Keeps the states with keep[s], renumbered in order.
Nfa restricted(const Nfa& nfa, const std::vector<bool>& keep) {
  std::vector<NodeId> renamed(nfa.states.size(), 0);
  Nfa out;
  for (NodeId s = 0; s < nfa.states.size(); ++s) {
    if (keep[s]) renamed[s] = out.add();
  }
  for (NodeId s = 0; s < nfa.states.size(); ++s) {
    if (!keep[s]) continue;
    const NodeId made = renamed[s];
    out.states[made].final = nfa.states[s].final;
    out.begin_edges(made);
    for (Nfa::Edge edge : nfa.edges_of(s)) {
      if (!keep[edge.target]) continue;
      edge.target = renamed[edge.target];
      out.edges.push_back(edge);
    }
    out.end_edges(made);
  }
  out.start = renamed[nfa.start];
  return out;
}

// Returns the states from which a final state can be reached; the start always counts.
std::vector<bool> productive(const Nfa& nfa) {
  const Sources sources(nfa);
  std::vector<bool> seen(nfa.states.size(), false);
  std::vector<NodeId> stack;
  for (NodeId s = 0; s < nfa.states.size(); ++s) {
    if (!nfa.states[s].final) continue;
    seen[s] = true;
    stack.push_back(s);
  }
  while (!stack.empty()) {
    const NodeId s = stack.back();
    stack.pop_back();
    for (const NodeId source : sources.of(s)) {
      if (seen[source]) continue;
      seen[source] = true;
      stack.push_back(source);
    }
  }
  seen[nfa.start] = true;
  return seen;
}

// Drops states from which no final state can be reached. REQUIRES: all states are reachable.
Nfa useful(Nfa nfa) {
  const std::vector<bool> keep = productive(nfa);
  return std::ranges::find(keep, false) != keep.end() ? restricted(nfa, keep) : std::move(nfa);
}

int32_t call_of_symbol(Ir::Arc::Symbol symbol) {
  switch (symbol) {
    case Ir::Arc::Symbol::kBytes:
      break;
    case Ir::Arc::Symbol::kTick:
      return kTickCall;
    case Ir::Arc::Symbol::kEnough:
      return kEnoughCall;
  }
  return -1;
}

// Thompson's construction. Edges are kept in the order of their construction and grouped by state
// at the end.
class Emitter {
 public:
  Emitter(const Ir& ir, const std::function<int32_t(RuleId)>& call_of, const GrammarLimits& limits)
      : ir_(ir), call_of_(call_of), clock_(limits) {}

  Nfa emit_all(ExprId expr) {
    Nfa nfa;
    nfa.start = add();
    const NodeId end = emit(expr, nfa.start);
    nfa.states.resize(num_states_);
    nfa.states[end].final = true;
    for (const Made& made : made_) ++nfa.states[made.from].edges_end;
    uint32_t sum = 0;
    for (Nfa::State& state : nfa.states) {
      sum += state.edges_end;
      state.edges_begin = state.edges_end = sum - state.edges_end;
    }
    nfa.edges.resize(made_.size());
    for (const Made& made : made_) nfa.edges[nfa.states[made.from].edges_end++] = made.edge;
    return nfa;
  }

 private:
  struct Made {
    NodeId from;
    Nfa::Edge edge;
  };

  NodeId add() { return num_states_++; }
  void add_edge(NodeId from, const Nfa::Edge& edge) { made_.push_back({from, edge}); }
  void empty_move(NodeId from, NodeId to) { add_edge(from, {.is_empty = true, .target = to}); }

  // Adds states that match `expr` from `from` and returns the state after the match. No edge made
  // here leads back into `from`, so alternatives may share it.
  NodeId emit(ExprId expr, NodeId from) {
    stopped_ = stopped_ || clock_.ended_by(0);
    if (stopped_) return from;
    const Ir::Node& node = ir_.node(expr);
    switch (node.op) {
      case Ir::Op::kNever:
        return add();
      case Ir::Op::kEmpty:
        return from;
      case Ir::Op::kBytes:
        return emit_bytes(ir_.byte_set(expr), from);
      case Ir::Op::kSequence:
        for (ExprId child : ir_.children(expr)) from = emit(child, from);
        return from;
      case Ir::Op::kChoice: {
        const NodeId to = add();
        for (ExprId child : ir_.children(expr)) empty_move(emit(child, from), to);
        return to;
      }
      case Ir::Op::kRepeat:
        return emit_repeat(node, ir_.children(expr)[0], from);
      case Ir::Op::kGraph:
        return emit_graph(ir_.graph_of(expr), from);
      case Ir::Op::kTick:
        return emit_call(kTickCall, from);
      case Ir::Op::kEnough:
        return emit_call(kEnoughCall, from);
      case Ir::Op::kRule: {
        const int32_t call = call_of_(node.first);
        if (call == kNeverRule) return add();
        if (call == kInlineRule) return emit(ir_.rules()[node.first].body, from);
        return emit_call(call, from);
      }
    }
    return from;
  }

  NodeId emit_call(int32_t call, NodeId from) {
    const NodeId to = add();
    add_edge(from, {.call = call, .target = to});
    return to;
  }

  NodeId emit_bytes(const ByteSet& set, NodeId from) {
    const NodeId to = add();
    for (size_t low = set._Find_first(); low < 256;) {
      size_t high = low;
      while (high < 255 && set[high + 1]) ++high;
      add_edge(
          from,
          {.low = static_cast<uint8_t>(low), .high = static_cast<uint8_t>(high), .target = to});
      low = set._Find_next(high);
    }
    return to;
  }

  NodeId emit_repeat(const Ir::Node& repeat, ExprId child, NodeId from) {
    for (int32_t i = 0; i < repeat.min && !stopped_; ++i) from = emit(child, from);
    if (repeat.max == kUnbounded) {
      const NodeId loop = add();
      empty_move(from, loop);
      empty_move(emit(child, loop), loop);
      return loop;
    }
    const NodeId to = add();
    for (int32_t i = repeat.min; i < repeat.max && !stopped_; ++i) {
      empty_move(from, to);
      from = emit(child, from);
    }
    empty_move(from, to);
    return to;
  }

  NodeId emit_graph(const Ir::Graph& graph, NodeId from) {
    const NodeId first = num_states_;
    num_states_ += graph.num_states;
    empty_move(from, first);
    for (const Ir::Arc& arc : graph.arcs) {
      add_edge(first + arc.from, {.low = arc.low,
                                  .high = arc.high,
                                  .call = call_of_symbol(arc.symbol),
                                  .target = first + arc.to});
    }
    for (const Ir::GraphEdge& edge : graph.edges) {
      empty_move(emit(edge.expr, first + edge.from), first + edge.to);
    }
    const NodeId to = add();
    for (uint32_t final : graph.finals) empty_move(first + final, to);
    return to;
  }

  const Ir& ir_;
  const std::function<int32_t(RuleId)>& call_of_;
  WorkClock clock_;
  bool stopped_ = false;
  NodeId num_states_ = 0;
  std::vector<Made> made_;
};

}  // namespace

void join_ranges(std::vector<Nfa::Edge>& edges, size_t from) {
  size_t kept = from;
  for (size_t i = from; i < edges.size(); ++i) {
    const Nfa::Edge e = edges[i];
    Nfa::Edge* const last = kept > from ? &edges[kept - 1] : nullptr;
    if (last != nullptr && e.call < 0 && last->call < 0 && last->target == e.target &&
        last->high + 1 == e.low) {
      last->high = e.high;
    } else {
      edges[kept++] = e;
    }
  }
  edges.resize(kept);
}

Nfa nfa_of(const Ir& ir, ExprId expr, const std::function<int32_t(RuleId)>& call_of,
           const GrammarLimits& limits, size_t exact_max) {
  // Automata of fewer states are cheap whatever the number of their edges.
  constexpr size_t kSmall = 2000;
  // Up to so many edges of a state, and so many in total, no epsilon edge is kept.
  constexpr size_t kEdgesMax = 64, kEdgesInAll = 8'000'000;
  const Nfa emitted = Emitter(ir, call_of, limits).emit_all(expr);
  const size_t count = emitted.states.size();
  if (count <= std::max(kSmall, exact_max) || exact_max == ~size_t{0})
    return without_empty_moves(emitted, limits);
  Nfa out =
      without_empty_moves(emitted, limits, std::clamp<size_t>(kEdgesInAll / count, 4, kEdgesMax));
  if (out.states.size() > exact_max) return out;
  return without_empty_moves(emitted, limits);
}

Nfa nfa_of_graph(const Ir::Graph& graph) {
  Nfa nfa;
  nfa.states.resize(graph.num_states);
  for (uint32_t final : graph.finals) nfa.states[final].final = true;
  for (const Ir::Arc& arc : graph.arcs) ++nfa.states[arc.from].edges_end;
  uint32_t sum = 0;
  for (Nfa::State& state : nfa.states) {
    sum += state.edges_end;
    state.edges_begin = state.edges_end = sum - state.edges_end;
  }
  nfa.edges.resize(graph.arcs.size());
  for (const Ir::Arc& arc : graph.arcs) {
    nfa.edges[nfa.states[arc.from].edges_end++] = {
        .low = arc.low, .high = arc.high, .call = call_of_symbol(arc.symbol), .target = arc.to};
  }
  return nfa;
}

Ir::Graph graph_of(const Nfa& dfa) {
  Ir::Graph graph;
  graph.deterministic = true;
  graph.num_states = static_cast<uint32_t>(dfa.states.size());
  // The start becomes state 0 by swapping numbers.
  const auto name = [&](NodeId id) { return id == dfa.start ? 0 : id == 0 ? dfa.start : id; };
  for (NodeId i = 0; i < dfa.states.size(); ++i) {
    const NodeId from = name(i);
    for (const Nfa::Edge& edge : dfa.edges_of(from)) {
      const auto symbol = edge.call == kTickCall     ? Ir::Arc::Symbol::kTick
                          : edge.call == kEnoughCall ? Ir::Arc::Symbol::kEnough
                                                     : Ir::Arc::Symbol::kBytes;
      graph.arcs.push_back({i, name(edge.target), edge.low, edge.high, symbol});
    }
    if (dfa.states[from].final) graph.finals.push_back(i);
  }
  return graph;
}

Nfa without_empty_moves(const Nfa& nfa, const GrammarLimits& limits, size_t edges_max) {
  Nfa out;
  std::vector<NodeId> named(nfa.states.size(), kUnnamed);
  // [state of `out`] the state of `nfa` that bytes, calls and kept epsilon edges reach
  std::vector<NodeId> origins;
  const auto name_of = [&](NodeId s) {
    if (named[s] == kUnnamed) {
      named[s] = out.add();
      origins.push_back(s);
    }
    return named[s];
  };
  out.start = name_of(nfa.start);
  out.edges.reserve(nfa.edges.size());
  std::vector<uint32_t> seen(nfa.states.size(), 0);
  std::vector<NodeId> stack, kept;
  WorkClock clock(limits);
  for (NodeId made = 0; made < origins.size(); ++made) {
    out.begin_edges(made);
    bool final = false;
    size_t visited = 0, num_edges = 0;
    kept.clear();
    stack.assign(1, origins[made]);
    seen[origins[made]] = made + 1;
    while (!stack.empty()) {
      const NodeId u = stack.back();
      stack.pop_back();
      const std::span<const Nfa::Edge> edges = nfa.edges_of(u);
      visited += 1 + edges.size();
      if (u != origins[made] && num_edges + edges.size() > edges_max) {
        kept.push_back(u);
        continue;
      }
      final = final || nfa.states[u].final;
      for (Nfa::Edge edge : edges) {
        if (!edge.is_empty) {
          edge.target = name_of(edge.target);
          out.edges.push_back(edge);
          ++num_edges;
        } else if (seen[edge.target] != made + 1) {
          seen[edge.target] = made + 1;
          stack.push_back(edge.target);
        }
      }
    }
    sort_edges(out.edges, out.states[made].edges_begin);
    for (const NodeId u : kept) out.edges.push_back({.is_empty = true, .target = name_of(u)});
    out.end_edges(made);
    out.states[made].final = final;
    if (clock.ended_by(4 * visited)) return nfa;
  }
  return useful(std::move(out));
}

namespace {

// Returns whether the sorted edges of a state are deterministic.
bool is_deterministic(std::span<const Nfa::Edge> edges) {
  for (size_t i = 1; i < edges.size(); ++i) {
    const Nfa::Edge& last = edges[i - 1];
    const Nfa::Edge& edge = edges[i];
    const bool apart =
        last.call < 0 && edge.call < 0 ? last.high < edge.low : last.call != edge.call;
    if (!apart || edge_less(edge, last)) return false;
  }
  return true;
}

// Subset construction.
class Determiniser {
 public:
  Determiniser(const Nfa& nfa, size_t states_max, const GrammarLimits& limits)
      : nfa_(nfa), states_max_(states_max), clock_(limits), alone_(nfa.states.size(), kUnnamed) {}

  std::optional<Nfa> run() {
    out_.start = id_of_one(nfa_.start);
    for (NodeId current = 0; current < out_.states.size(); ++current) {
      if (out_.states.size() > states_max_) return std::nullopt;
      out_.begin_edges(current);
      add_edges(current);
      if (clock_.ended_by(16 * (bytes_.size() + calls_.size()))) return std::nullopt;
      join_ranges(out_.edges, out_.states[current].edges_begin);
      out_.end_edges(current);
    }
    return std::move(out_);
  }

 private:
  struct Members {
    uint32_t begin, end;  // of pool_
  };

  NodeId add(uint32_t begin) {
    members_.push_back({begin, static_cast<uint32_t>(pool_.size())});
    return out_.add();
  }

  NodeId id_of_one(NodeId s) {
    if (alone_[s] == kUnnamed) {
      pool_.push_back(s);
      alone_[s] = add(static_cast<uint32_t>(pool_.size() - 1));
      out_.states.back().final = nfa_.states[s].final;
    }
    return alone_[s];
  }

  // Interns the set in targets_, which is consumed.
  NodeId id_of_targets() {
    if (targets_.size() > 1) {
      if (!std::ranges::is_sorted(targets_)) std::sort(targets_.begin(), targets_.end());
      targets_.erase(std::unique(targets_.begin(), targets_.end()), targets_.end());
    }
    if (targets_.size() == 1) return id_of_one(targets_[0]);
    if (2 * (num_filed_ + 1) > table_.size()) grow();
    uint64_t hash = targets_.size();
    for (const NodeId s : targets_) hash = mix64(hash ^ s);
    size_t at = hash & (table_.size() - 1);
    for (; table_[at].id != kUnnamed; at = (at + 1) & (table_.size() - 1)) {
      const Members m = members_[table_[at].id];
      if (table_[at].hash == hash &&
          std::ranges::equal(std::span(pool_.data() + m.begin, pool_.data() + m.end), targets_)) {
        return table_[at].id;
      }
    }
    const auto begin = static_cast<uint32_t>(pool_.size());
    pool_.insert(pool_.end(), targets_.begin(), targets_.end());
    const NodeId id = add(begin);
    for (const NodeId s : targets_) out_.states[id].final |= nfa_.states[s].final;
    table_[at] = {hash, id};
    ++num_filed_;
    return id;
  }

  void grow() {
    const std::vector<Filed> old =
        std::exchange(table_, std::vector<Filed>(std::max<size_t>(64, 2 * table_.size())));
    for (const Filed& filed : old) {
      if (filed.id == kUnnamed) continue;
      size_t at = filed.hash & (table_.size() - 1);
      while (table_[at].id != kUnnamed) at = (at + 1) & (table_.size() - 1);
      table_[at] = filed;
    }
  }

  void add_edges(NodeId current) {
    const Members members = members_[current];
    if (members.end - members.begin == 1) {
      const std::span<const Nfa::Edge> edges = nfa_.edges_of(pool_[members.begin]);
      if (is_deterministic(edges)) {
        for (Nfa::Edge edge : edges) {
          edge.target = id_of_one(edge.target);
          out_.edges.push_back(edge);
        }
        return;
      }
    }
    bytes_.clear();
    calls_.clear();
    for (uint32_t i = members.begin; i < members.end; ++i) {
      for (const Nfa::Edge& edge : nfa_.edges_of(pool_[i])) {
        (edge.call < 0 ? bytes_ : calls_).push_back(edge);
      }
    }
    add_byte_edges();
    std::sort(calls_.begin(), calls_.end(), edge_less);
    for (size_t i = 0; i < calls_.size();) {
      const int32_t call = calls_[i].call;
      targets_.clear();
      for (; i < calls_.size() && calls_[i].call == call; ++i) targets_.push_back(calls_[i].target);
      const NodeId to = id_of_targets();
      out_.edges.push_back({.call = call, .target = to});
    }
  }

  void sort_by_low() {
    if (bytes_.size() < 32) {
      std::ranges::sort(bytes_, {}, &Nfa::Edge::low);
      return;
    }
    std::array<uint32_t, 257> begins{};
    for (const Nfa::Edge& e : bytes_) ++begins[e.low + 1u];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    sorted_.resize(bytes_.size());
    for (const Nfa::Edge& e : bytes_) sorted_[begins[e.low]++] = e;
    bytes_.swap(sorted_);
  }

  // Byte ranges are cut at every bound: between two cuts all bytes lead to one set.
  void add_byte_edges() {
    sort_by_low();
    open_.clear();
    size_t next = 0;
    for (int low = 0; next < bytes_.size() || !open_.empty();) {
      std::erase_if(open_, [&](const Nfa::Edge& e) { return e.high < low; });
      if (open_.empty()) {
        if (next == bytes_.size()) return;
        low = bytes_[next].low;
      }
      for (; next < bytes_.size() && bytes_[next].low == low; ++next) open_.push_back(bytes_[next]);
      int high = next < bytes_.size() ? bytes_[next].low - 1 : 255;
      targets_.clear();
      for (const Nfa::Edge& e : open_) {
        high = std::min<int>(high, e.high);
        targets_.push_back(e.target);
      }
      const NodeId to = id_of_targets();
      out_.edges.push_back(
          {.low = static_cast<uint8_t>(low), .high = static_cast<uint8_t>(high), .target = to});
      low = high + 1;
    }
  }

  struct Filed {
    uint64_t hash = 0;
    NodeId id = kUnnamed;
  };

  const Nfa& nfa_;
  const size_t states_max_;
  WorkClock clock_;
  Nfa out_;
  std::vector<NodeId> alone_;     // [state of nfa_] the DFA state that is its singleton set
  std::vector<Members> members_;  // [state of out_] the set that it stands for, sorted
  std::vector<NodeId> pool_;
  std::vector<Filed> table_;  // sets of several states, by hash
  size_t num_filed_ = 0;
  std::vector<Nfa::Edge> bytes_, calls_, open_, sorted_;  // edges of the current state
  std::vector<NodeId> targets_;
};

}  // namespace

std::optional<Nfa> determinised(const Nfa& nfa, size_t states_max, const GrammarLimits& limits) {
  return Determiniser(nfa, states_max, limits).run();
}

}  // namespace espalier::grammar
