#include "grammar/nfa.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/rng.h"

namespace espalier::grammar {
namespace {

// What an edge asks for: bytes below 256, calls above.
using Symbol = uint32_t;
constexpr Symbol kFirstCall = 256;
// Steps of a microsecond or so between two looks at the clock.
constexpr uint32_t kCheckedEvery = 256;

bool edge_less(const Nfa::Edge& a, const Nfa::Edge& b) {
  return std::tuple(a.call, a.low, a.high, a.target) < std::tuple(b.call, b.low, b.high, b.target);
}

bool edge_equal(const Nfa::Edge& a, const Nfa::Edge& b) {
  return !edge_less(a, b) && !edge_less(b, a);
}

// In order, each once.
void sort_edges(Nfa::State& state) {
  const auto unordered = [](const Nfa::Edge& a, const Nfa::Edge& b) { return !edge_less(a, b); };
  if (std::ranges::adjacent_find(state.edges, unordered) == state.edges.end()) return;
  std::sort(state.edges.begin(), state.edges.end(), edge_less);
  state.edges.erase(std::unique(state.edges.begin(), state.edges.end(), edge_equal),
                    state.edges.end());
}

// Keeps the states with keep[s], renumbered in their order.
Nfa restricted(const Nfa& nfa, const std::vector<bool>& keep) {
  std::vector<NodeId> renamed(nfa.states.size(), 0);
  Nfa out;
  for (NodeId s = 0; s < nfa.states.size(); ++s) {
    if (keep[s]) renamed[s] = out.add();
  }
  for (NodeId s = 0; s < nfa.states.size(); ++s) {
    if (!keep[s]) continue;
    Nfa::State& state = out.states[renamed[s]];
    state.final = nfa.states[s].final;
    for (Nfa::Edge edge : nfa.states[s].edges) {
      if (!keep[edge.target]) continue;
      edge.target = renamed[edge.target];
      state.edges.push_back(edge);
    }
    sort_edges(state);
  }
  out.start = renamed[nfa.start];
  return out;
}

// The states from which a final one can be reached; the start always counts.
std::vector<bool> productive(const Nfa& nfa) {
  const size_t count = nfa.states.size();
  std::vector<uint32_t> begins(count + 2, 0);  // of each state's sources, by counting
  for (const Nfa::State& state : nfa.states) {
    for (const Nfa::Edge& edge : state.edges) ++begins[edge.target + 2];
  }
  for (size_t s = 2; s < begins.size(); ++s) begins[s] += begins[s - 1];
  std::vector<NodeId> sources(begins.back());
  for (NodeId s = 0; s < count; ++s) {
    for (const Nfa::Edge& edge : nfa.states[s].edges) sources[begins[edge.target + 1]++] = s;
  }
  std::vector<bool> seen(count, false);
  std::vector<NodeId> stack;
  for (NodeId s = 0; s < count; ++s) {
    if (!nfa.states[s].final) continue;
    seen[s] = true;
    stack.push_back(s);
  }
  while (!stack.empty()) {
    const NodeId s = stack.back();
    stack.pop_back();
    for (uint32_t i = begins[s]; i < begins[s + 1]; ++i) {
      if (seen[sources[i]]) continue;
      seen[sources[i]] = true;
      stack.push_back(sources[i]);
    }
  }
  seen[nfa.start] = true;
  return seen;
}

// Without states that lead to no final one. REQUIRES: all are reachable.
Nfa useful(Nfa nfa) {
  const std::vector<bool> keep = productive(nfa);
  if (std::ranges::find(keep, false) != keep.end()) return restricted(nfa, keep);
  for (Nfa::State& state : nfa.states) sort_edges(state);
  return nfa;
}

struct VectorHash {
  size_t operator()(const std::vector<uint32_t>& v) const {
    uint64_t h = v.size();
    for (uint32_t x : v) h = mix64(h ^ x);
    return h;
  }
};

// The byte edges of a set of states cut at every boundary: (low, high) -> sorted targets.
struct Cut {
  uint8_t low, high;
  std::vector<NodeId> targets;
};

std::vector<Cut> cut_bytes(const std::vector<const Nfa::Edge*>& edges) {
  std::array<bool, 257> boundary{};
  for (const Nfa::Edge* e : edges) {
    boundary[e->low] = true;
    boundary[e->high + 1] = true;
  }
  std::vector<Cut> cuts;
  for (int low = 0; low < 256;) {
    int high = low;
    while (high + 1 < 256 && !boundary[high + 1]) ++high;
    Cut cut{static_cast<uint8_t>(low), static_cast<uint8_t>(high), {}};
    for (const Nfa::Edge* e : edges) {
      if (e->low <= low && high <= e->high) cut.targets.push_back(e->target);
    }
    if (!cut.targets.empty()) {
      std::sort(cut.targets.begin(), cut.targets.end());
      cut.targets.erase(std::unique(cut.targets.begin(), cut.targets.end()), cut.targets.end());
      cuts.push_back(std::move(cut));
    }
    low = high + 1;
  }
  return cuts;
}

// Joins neighbouring byte ranges that lead to the same state.
void join_ranges(Nfa::State& state) {
  sort_edges(state);
  size_t kept = 0;
  for (const Nfa::Edge& e : state.edges) {
    Nfa::Edge* const last = kept > 0 ? &state.edges[kept - 1] : nullptr;
    if (last != nullptr && e.call < 0 && last->call < 0 && last->target == e.target &&
        last->high + 1 == e.low) {
      last->high = e.high;
    } else {
      state.edges[kept++] = e;
    }
  }
  state.edges.resize(kept);
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

// Thompson's construction.
class Emitter {
 public:
  Emitter(const Ir& ir, const std::function<int32_t(RuleId)>& call_of, const GrammarLimits& limits)
      : ir_(ir), call_of_(call_of), limits_(limits) {}

  Nfa emit_all(ExprId expr) {
    nfa_.start = nfa_.add();
    const NodeId end = emit(expr, nfa_.start);
    nfa_.states[end].final = true;
    return std::move(nfa_);
  }

 private:
  // Adds states that match `expr` from `from`; returns the state where it has matched. No move made
  // here leads back into `from`, so alternatives may share it.
  NodeId emit(ExprId expr, NodeId from) {
    if (stopped_ || (++emitted_ % kCheckedEvery == 0 && limits_.interrupted())) {
      stopped_ = true;
      return from;
    }
    const Ir::Node& node = ir_.node(expr);
    switch (node.op) {
      case Ir::Op::kNever:
        return nfa_.add();
      case Ir::Op::kEmpty:
        return from;
      case Ir::Op::kBytes:
        return emit_bytes(ir_.byte_set(expr), from);
      case Ir::Op::kSequence:
        for (ExprId child : ir_.children(expr)) from = emit(child, from);
        return from;
      case Ir::Op::kChoice: {
        const NodeId to = nfa_.add();
        for (ExprId child : ir_.children(expr)) nfa_.empty_move(emit(child, from), to);
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
        if (call == kNeverRule) return nfa_.add();
        if (call == kInlineRule) return emit(ir_.rules()[node.first].body, from);
        return emit_call(call, from);
      }
    }
    return from;
  }

  NodeId emit_call(int32_t call, NodeId from) {
    const NodeId to = nfa_.add();
    nfa_.states[from].edges.push_back({.call = call, .target = to});
    return to;
  }

  NodeId emit_bytes(const ByteSet& set, NodeId from) {
    const NodeId to = nfa_.add();
    for (int low = 0; low < 256; ++low) {
      if (!set[low]) continue;
      int high = low;
      while (high + 1 < 256 && set[high + 1]) ++high;
      nfa_.states[from].edges.push_back(
          {.low = static_cast<uint8_t>(low), .high = static_cast<uint8_t>(high), .target = to});
      low = high;
    }
    return to;
  }

  NodeId emit_repeat(const Ir::Node& repeat, ExprId child, NodeId from) {
    for (int32_t i = 0; i < repeat.min && !stopped_; ++i) from = emit(child, from);
    if (repeat.max == kUnbounded) {
      const NodeId loop = nfa_.add();
      nfa_.empty_move(from, loop);
      nfa_.empty_move(emit(child, loop), loop);
      return loop;
    }
    const NodeId to = nfa_.add();
    for (int32_t i = repeat.min; i < repeat.max && !stopped_; ++i) {
      nfa_.empty_move(from, to);
      from = emit(child, from);
    }
    nfa_.empty_move(from, to);
    return to;
  }

  NodeId emit_graph(const Ir::Graph& graph, NodeId from) {
    std::vector<NodeId> states;
    for (uint32_t i = 0; i < graph.num_states; ++i) states.push_back(nfa_.add());
    nfa_.empty_move(from, states[0]);
    for (const Ir::Arc& arc : graph.arcs) {
      nfa_.states[states[arc.from]].edges.push_back({.low = arc.low,
                                                     .high = arc.high,
                                                     .call = call_of_symbol(arc.symbol),
                                                     .target = states[arc.to]});
    }
    for (const Ir::GraphEdge& edge : graph.edges) {
      nfa_.empty_move(emit(edge.expr, states[edge.from]), states[edge.to]);
    }
    const NodeId to = nfa_.add();
    for (uint32_t final : graph.finals) nfa_.empty_move(states[final], to);
    return to;
  }

  const Ir& ir_;
  const std::function<int32_t(RuleId)>& call_of_;
  const GrammarLimits& limits_;
  uint32_t emitted_ = 0;
  bool stopped_ = false;
  Nfa nfa_;
};

}  // namespace

Nfa nfa_of(const Ir& ir, ExprId expr, const std::function<int32_t(RuleId)>& call_of,
           const GrammarLimits& limits) {
  return without_empty_moves(Emitter(ir, call_of, limits).emit_all(expr), limits);
}

Nfa nfa_of_graph(const Ir::Graph& graph) {
  Nfa nfa;
  nfa.states.resize(graph.num_states);
  for (uint32_t final : graph.finals) nfa.states[final].final = true;
  for (const Ir::Arc& arc : graph.arcs) {
    nfa.states[arc.from].edges.push_back(
        {.low = arc.low, .high = arc.high, .call = call_of_symbol(arc.symbol), .target = arc.to});
  }
  return nfa;
}

Ir::Graph graph_of(const Nfa& dfa) {
  Ir::Graph graph;
  graph.deterministic = true;
  graph.num_states = static_cast<uint32_t>(dfa.states.size());
  // The start is state 0: swap it with whoever is.
  const auto name = [&](NodeId id) { return id == dfa.start ? 0 : id == 0 ? dfa.start : id; };
  for (NodeId i = 0; i < dfa.states.size(); ++i) {
    const NodeId from = name(i);
    for (const Nfa::Edge& edge : dfa.states[from].edges) {
      const auto symbol = edge.call == kTickCall     ? Ir::Arc::Symbol::kTick
                          : edge.call == kEnoughCall ? Ir::Arc::Symbol::kEnough
                                                     : Ir::Arc::Symbol::kBytes;
      graph.arcs.push_back({i, name(edge.target), edge.low, edge.high, symbol});
    }
    if (dfa.states[from].final) graph.finals.push_back(i);
  }
  return graph;
}

Nfa without_empty_moves(const Nfa& nfa, const GrammarLimits& limits) {
  constexpr NodeId kUnnamed = ~NodeId{0};
  Nfa out;
  std::vector<NodeId> named(nfa.states.size(), kUnnamed);
  std::vector<NodeId>
      origins;  // of the states of `out`, which are those that bytes and calls reach
  const auto name_of = [&](NodeId s) {
    if (named[s] == kUnnamed) {
      named[s] = out.add();
      origins.push_back(s);
    }
    return named[s];
  };
  out.start = name_of(nfa.start);
  std::vector<uint32_t> seen(nfa.states.size(), 0);
  std::vector<NodeId> stack;
  for (NodeId made = 0; made < origins.size(); ++made) {
    if (made % kCheckedEvery == 0 && limits.interrupted()) return nfa;
    std::vector<Nfa::Edge> edges;
    bool final = false;
    stack = {origins[made]};
    seen[origins[made]] = made + 1;
    while (!stack.empty()) {
      const NodeId u = stack.back();
      stack.pop_back();
      final = final || nfa.states[u].final;
      for (Nfa::Edge edge : nfa.states[u].edges) {
        if (!edge.is_empty) {
          edge.target = name_of(edge.target);
          edges.push_back(edge);
        } else if (seen[edge.target] != made + 1) {
          seen[edge.target] = made + 1;
          stack.push_back(edge.target);
        }
      }
    }
    out.states[made].edges = std::move(edges);
    out.states[made].final = final;
  }
  return useful(std::move(out));
}

namespace {

// Whether its edges, in order, never leave a choice.
bool is_deterministic(const Nfa::State& state) {
  for (size_t i = 1; i < state.edges.size(); ++i) {
    const Nfa::Edge& last = state.edges[i - 1];
    const Nfa::Edge& edge = state.edges[i];
    const bool apart =
        last.call < 0 && edge.call < 0 ? last.high < edge.low : last.call != edge.call;
    if (!apart || edge_less(edge, last)) return false;
  }
  return true;
}

}  // namespace

std::optional<Nfa> determinised(const Nfa& nfa, size_t states_max, const GrammarLimits& limits) {
  constexpr NodeId kUnnamed = ~NodeId{0};
  Nfa out;
  std::unordered_map<std::vector<uint32_t>, NodeId, VectorHash> index;
  std::vector<NodeId> alone(nfa.states.size(), kUnnamed);  // of sets of one state
  std::vector<std::vector<uint32_t>> members;              // or empty,
  std::vector<NodeId> single;                              // and the only one is here
  const auto id_of_one = [&](NodeId s) {
    if (alone[s] == kUnnamed) {
      alone[s] = out.add();
      out.states.back().final = nfa.states[s].final;
      members.emplace_back();
      single.push_back(s);
    }
    return alone[s];
  };
  const auto id_of = [&](std::vector<uint32_t> set) {
    if (set.size() == 1) return id_of_one(set[0]);
    const auto [it, added] = index.try_emplace(set, static_cast<NodeId>(out.states.size()));
    if (added) {
      out.add();
      for (uint32_t s : set) {
        out.states.back().final = out.states.back().final || nfa.states[s].final;
      }
      members.push_back(std::move(set));
      single.push_back(kUnnamed);
    }
    return it->second;
  };
  out.start = id_of_one(nfa.start);
  std::vector<const Nfa::Edge*> bytes;
  for (NodeId current = 0; current < out.states.size(); ++current) {
    if (out.states.size() > states_max) return std::nullopt;
    if (current % kCheckedEvery == 0 && limits.interrupted()) return std::nullopt;
    std::vector<Nfa::Edge> edges;
    if (single[current] != kUnnamed && is_deterministic(nfa.states[single[current]])) {
      edges = nfa.states[single[current]].edges;
      for (Nfa::Edge& edge : edges) edge.target = id_of_one(edge.target);
      out.states[current].edges = std::move(edges);
      join_ranges(out.states[current]);
      continue;
    }
    bytes.clear();
    std::map<int32_t, std::vector<uint32_t>> calls;
    std::vector<uint32_t> set = members[current];
    if (single[current] != kUnnamed) set = {single[current]};
    for (uint32_t s : set) {
      for (const Nfa::Edge& edge : nfa.states[s].edges) {
        if (edge.call < 0) {
          bytes.push_back(&edge);
        } else {
          calls[edge.call].push_back(edge.target);
        }
      }
    }
    for (Cut& cut : cut_bytes(bytes)) {
      edges.push_back({.low = cut.low, .high = cut.high, .target = id_of(std::move(cut.targets))});
    }
    for (auto& [call, targets] : calls) {
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      edges.push_back({.call = call, .target = id_of(std::move(targets))});
    }
    out.states[current].edges = std::move(edges);
    join_ranges(out.states[current]);
  }
  return out;
}

namespace {

// Splits states into classes until those of a class go to the same classes by the same symbols.
// Only states that lead into a class that was split are looked at again, and of a split the largest
// part keeps its number, so a state is renumbered a logarithmic number of times.
class Refinement {
 public:
  Refinement(const Nfa& dfa, const GrammarLimits& limits)
      : dfa_(dfa), classes_(dfa.states.size(), 0) {
    const size_t count = dfa.states.size();
    sources_.resize(count);
    for (NodeId s = 0; s < count; ++s) {
      for (const Nfa::Edge& e : dfa.states[s].edges) sources_[e.target].push_back(s);
    }
    dirty_.assign(count, true);
    members_.resize(1);
    for (NodeId s = 0; s < count; ++s) members_[0].push_back(s);
    queue_.push_back(0);
    queued_.push_back(true);
    for (uint32_t round = 1; !queue_.empty(); ++round) {
      if (round % kCheckedEvery == 0 && limits.interrupted()) return;
      const uint32_t c = queue_.back();
      queue_.pop_back();
      queued_[c] = false;
      split(c);
    }
  }
  const std::vector<uint32_t>& classes() const { return classes_; }
  size_t count() const { return members_.size(); }

 private:
  std::vector<uint32_t> key_of(NodeId s) const {
    std::vector<uint32_t> key = {dfa_.states[s].final ? 1u : 0u};
    for (const Nfa::Edge& e : dfa_.states[s].edges) {
      const uint32_t symbol = e.call >= 0 ? kFirstCall + static_cast<Symbol>(e.call) : e.low;
      // Neighbouring ranges into one class count as one range.
      const bool joins = e.call < 0 && key.size() > 3 && key[key.size() - 3] < kFirstCall &&
                         key[key.size() - 2] + 1 == e.low && key.back() == classes_[e.target];
      if (joins) {
        key[key.size() - 2] = e.high;
      } else {
        key.insert(key.end(), {symbol, e.high, classes_[e.target]});
      }
    }
    return key;
  }

  void split(uint32_t c) {
    std::unordered_map<std::vector<uint32_t>, std::vector<NodeId>, VectorHash> parts;
    std::vector<NodeId> clean;  // all of one key
    for (NodeId s : members_[c]) {
      if (!dirty_[s]) {
        clean.push_back(s);
        continue;
      }
      dirty_[s] = false;
      parts[key_of(s)].push_back(s);
    }
    if (!clean.empty()) {
      auto& same = parts[key_of(clean[0])];
      same.insert(same.end(), clean.begin(), clean.end());
    }
    if (parts.size() < 2) return;
    const auto largest =
        std::ranges::max_element(parts, {}, [](const auto& part) { return part.second.size(); });
    for (auto it = parts.begin(); it != parts.end(); ++it) {
      if (it == largest) continue;
      const auto made = static_cast<uint32_t>(members_.size());
      for (NodeId s : it->second) classes_[s] = made;
      members_.push_back(it->second);
      queued_.push_back(false);
    }
    members_[c] = largest->second;
    for (auto it = parts.begin(); it != parts.end(); ++it) {
      if (it == largest) continue;
      for (NodeId s : it->second) {
        for (NodeId source : sources_[s]) {
          dirty_[source] = true;
          const uint32_t where = classes_[source];
          if (!queued_[where]) queue_.push_back(where);
          queued_[where] = true;
        }
      }
    }
  }

  const Nfa& dfa_;
  std::vector<uint32_t> classes_;
  std::vector<std::vector<NodeId>> sources_, members_;
  std::vector<bool> dirty_, queued_;
  std::vector<uint32_t> queue_;
};

}  // namespace

Nfa minimised(const Nfa& dfa, const GrammarLimits& limits) {
  const size_t count = dfa.states.size();
  const Refinement refinement(dfa, limits);
  const std::vector<uint32_t>& classes = refinement.classes();
  const size_t num_classes = refinement.count();
  Nfa out;
  out.states.resize(num_classes);
  std::vector<bool> done(num_classes, false);
  for (size_t s = 0; s < count; ++s) {
    if (done[classes[s]]) continue;
    done[classes[s]] = true;
    Nfa::State& state = out.states[classes[s]];
    state.final = dfa.states[s].final;
    for (Nfa::Edge e : dfa.states[s].edges) {
      e.target = classes[e.target];
      state.edges.push_back(e);
    }
    join_ranges(state);
  }
  out.start = classes[dfa.start];
  return useful(std::move(out));
}

}  // namespace espalier::grammar
