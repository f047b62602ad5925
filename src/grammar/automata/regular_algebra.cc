#include "grammar/automata/regular_algebra.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "grammar/automata/nfa.h"

namespace espalier::grammar {
namespace {

constexpr NodeId kNone = ~NodeId{0};

Result<Nfa> dfa_of(const Ir& ir, ExprId expr, const GrammarLimits& limits) {
  ESP_RETURN_IF_ERROR(limits.check_time());
  if (is_deterministic_graph(ir, expr)) return nfa_of_graph(ir.graph_of(expr));
  const Nfa nfa = nfa_of(
      ir, expr, [](RuleId) { return kInlineRule; }, limits);
  ESP_RETURN_IF_ERROR(limits.check_time());
  std::optional<Nfa> dfa = determinised(nfa, limits.dfa_nodes_max, limits);
  ESP_RETURN_IF_ERROR(limits.check_time());
  if (!dfa) {
    return fail(error(StatusCode::kResourceExhausted,
                      "a pattern needs more than {} automaton states", limits.dfa_nodes_max));
  }
  return minimised(*dfa, limits);
}

// Returns the target of a counter symbol.
NodeId count_step(const Nfa& dfa, NodeId from, int32_t call) {
  if (from == kNone) return kNone;
  for (const Nfa::Edge& edge : dfa.edges_of(from)) {
    if (edge.call == call) return edge.target;
  }
  return kNone;
}

// Splits the bytes [low, high] at every change of the target of `from`, in order; kNone stands for
// no target. REQUIRES: a deterministic automaton with sorted edges.
template <typename Use>
void for_each_step(const Nfa& dfa, NodeId from, int low, int high, Use use) {
  if (from != kNone) {
    for (const Nfa::Edge& edge : dfa.edges_of(from)) {
      if (edge.call >= 0 || edge.high < low) continue;
      if (edge.low > high) break;
      if (low < edge.low) use(low, edge.low - 1, kNone);
      low = std::max<int>(low, edge.low);
      const int last = std::min<int>(high, edge.high);
      use(low, last, edge.target);
      low = last + 1;
    }
  }
  if (low <= high) use(low, high, kNone);
}

// The product automaton. `wanted` selects the accepting pairs; a pair whose first state is dead is
// dead in both operations.
template <typename Wanted>
Result<ExprId> product(Ir& ir, ExprId a, ExprId b, const GrammarLimits& limits, bool second_may_die,
                       Wanted wanted) {
  ESP_ASSIGN_OR_RETURN(const Nfa x, dfa_of(ir, a, limits));
  ESP_ASSIGN_OR_RETURN(const Nfa y, dfa_of(ir, b, limits));
  Nfa out;
  FlatIndex index;
  std::vector<std::pair<NodeId, NodeId>> pairs;
  const auto id_of = [&](NodeId p, NodeId q) {
    const uint64_t hash = mix64(uint64_t{p} << 32 | q);
    const NodeId known = index.find(hash, [&](NodeId id) { return pairs[id] == std::pair(p, q); });
    if (known != FlatIndex::kNone) return known;
    pairs.emplace_back(p, q);
    const NodeId made = out.add();
    index.add(hash, made);
    out.states[made].final = wanted(x.states[p].final, q != kNone && y.states[q].final);
    return made;
  };
  out.start = id_of(x.start, y.start);
  for (NodeId current = 0; current < pairs.size(); ++current) {
    if (current % 64 == 0) ESP_RETURN_IF_ERROR(limits.check_time());
    if (pairs.size() > limits.dfa_nodes_max) {
      return fail(error(StatusCode::kResourceExhausted,
                        "patterns together need more than {} automaton states",
                        limits.dfa_nodes_max));
    }
    const auto [p, q] = pairs[current];
    out.begin_edges(current);
    for (const Nfa::Edge& edge : x.edges_of(p)) {
      if (edge.call >= 0) {
        const NodeId q_next = count_step(y, q, edge.call);
        if (q_next == kNone && !second_may_die) continue;
        const NodeId to = id_of(edge.target, q_next);
        out.edges.push_back({.call = edge.call, .target = to});
        continue;
      }
      for_each_step(y, q, edge.low, edge.high, [&](int low, int high, NodeId q_next) {
        if (q_next == kNone && !second_may_die) return;
        const NodeId to = id_of(edge.target, q_next);
        out.edges.push_back(
            {.low = static_cast<uint8_t>(low), .high = static_cast<uint8_t>(high), .target = to});
      });
    }
    out.end_edges(current);
  }
  return ir.graph(graph_of(minimised(without_empty_moves(out, limits), limits)));
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
  return ir.graph(graph_of(dfa));
}

Result<TickProfile> tick_profile(Ir& ir, ExprId expr, const GrammarLimits& limits) {
  ESP_ASSIGN_OR_RETURN(const Nfa dfa, dfa_of(ir, expr, limits));
  const size_t count = dfa.states.size();
  // enders: the states that can end after exactly t ticks, for t = 0, 1, ...
  std::vector<bool> enders(count, false);
  for (size_t s = 0; s < count; ++s) enders[s] = dfa.states[s].final;
  const auto spread = [&](std::vector<bool>& set) {  // closes over edges that do not tick
    for (bool changed = true; changed;) {
      changed = false;
      for (auto s = static_cast<NodeId>(count); s-- > 0;) {
        if (set[s]) continue;
        for (const Nfa::Edge& edge : dfa.edges_of(s)) {
          if (edge.call == kTickCall || !set[edge.target]) continue;
          set[s] = changed = true;
          break;
        }
      }
    }
  };
  // No tick follows kEnough.
  std::vector<bool> after(count, false);
  for (bool changed = true; changed;) {
    changed = false;
    for (NodeId s = 0; s < count; ++s) {
      for (const Nfa::Edge& edge : dfa.edges_of(s)) {
        if (after[edge.target] || (!after[s] && edge.call != kEnoughCall)) continue;
        after[edge.target] = changed = true;
      }
    }
  }
  TickProfile profile{.least = 0, .most = std::nullopt, .even = true};
  std::optional<uint32_t> first, last;
  for (uint32_t t = 0; t <= count + 1; ++t) {
    ESP_RETURN_IF_ERROR(limits.check_time());
    spread(enders);
    if (enders[dfa.start]) {
      first = first.value_or(t);
      last = t;
    }
    std::vector<bool> next(count, false);
    for (NodeId s = 0; s < count; ++s) {
      for (const Nfa::Edge& edge : dfa.edges_of(s)) {
        if (edge.call == kTickCall && enders[edge.target]) next[s] = true;
      }
    }
    std::vector<bool> spread_next = next;
    spread(spread_next);
    bool same = true;
    for (size_t s = 0; s < count; ++s) {
      profile.even &= !enders[s] || spread_next[s] || after[s];
      same &= enders[s] == spread_next[s] || after[s];
    }
    const bool finite = std::ranges::none_of(next, [](bool b) { return b; });
    if (finite) profile.most = last;
    if (same || finite) break;
    enders = std::move(next);
  }
  profile.least = first.value_or(0);
  return profile;
}

bool matches_nothing(const Ir& ir, ExprId expr) { return expr == ir.never(); }

}  // namespace espalier::grammar
