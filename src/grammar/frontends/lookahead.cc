#include "grammar/frontends/lookahead.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "grammar/automata/nfa.h"

namespace espalier::grammar {
namespace {

// Bounds on the work: branches over all states of the result, and of one state.
constexpr size_t kBranchesMax = 1'000'000;
constexpr size_t kBranchesOfStateMax = 2000;

// A look-ahead under way: its number, and the state of its automaton after what was read since.
using Pending = std::pair<uint32_t, NodeId>;

// A state of the expression's automaton, and the look-aheads under way there, sorted.
struct Branch {
  NodeId node = 0;
  std::vector<Pending> pending;
  friend auto operator<=>(const Branch&, const Branch&) = default;
};
using Branches = std::vector<Branch>;  // sorted, each once

class Resolver {
 public:
  Resolver(const Ir& ir, std::span<const Lookahead> lookaheads, const GrammarLimits& limits)
      : ir_(ir), lookaheads_(lookaheads), limits_(limits) {}

  Result<ExprId> run(Ir& ir, ExprId expr) {
    ESP_RETURN_IF_ERROR(prepare(expr));
    ESP_RETURN_IF_ERROR(build());
    return ir.graph(graph_of(minimised(without_empty_moves(out_, limits_), limits_)));
  }

 private:
  Status prepare(ExprId expr) {
    nfa_ = nfa_of(
        ir_, expr, [this](RuleId rule) { return number_of(rule); }, limits_);
    ESP_RETURN_IF_ERROR(limits_.check_time());
    for (const Lookahead& lookahead : lookaheads_) {
      const Nfa nfa = nfa_of(
          ir_, lookahead.language, [](RuleId) { return kInlineRule; }, limits_);
      std::optional<Nfa> dfa = determinised(nfa, limits_.dfa_nodes_max, limits_);
      ESP_RETURN_IF_ERROR(limits_.check_time());
      if (!dfa) return too_large();
      automata_.push_back(minimised(*dfa, limits_));
    }
    return {};
  }

  int32_t number_of(RuleId rule) const {
    const auto found = std::ranges::find(lookaheads_, rule, &Lookahead::marker);
    return found == lookaheads_.end() ? kInlineRule
                                      : static_cast<int32_t>(found - lookaheads_.begin());
  }

  static bool is_marker(const Nfa::Edge& edge) { return edge.call >= 0 && edge.call < kTickCall; }

  // Builds the deterministic automaton state by state.
  Status build() {
    out_.start = id_of(closed({{nfa_.start, {}}}));
    for (NodeId at = 0; at < states_.size(); ++at) {
      ESP_RETURN_IF_ERROR(limits_.check_time());
      const Branches branches = *states_[at];
      if (states_.size() > limits_.dfa_nodes_max || num_branches_ > kBranchesMax ||
          branches.size() > kBranchesOfStateMax)
        return too_large();
      out_.begin_edges(at);
      for (const auto& [low, high] : ranges_of(branches)) {
        const Branches next = stepped(branches, [low = low](const Nfa::Edge& edge) {
          return edge.call < 0 && edge.low <= low && low <= edge.high;
        });
        if (next.empty()) continue;
        const NodeId to = id_of(next);
        out_.edges.push_back({.low = low, .high = high, .target = to});
      }
      for (const int32_t symbol : {kTickCall, kEnoughCall}) {
        const Branches next =
            stepped(branches, [symbol](const Nfa::Edge& edge) { return edge.call == symbol; });
        if (!next.empty()) out_.edges.push_back({.call = symbol, .target = id_of(next)});
      }
      join_ranges(out_.edges, out_.states[at].edges_begin);
      out_.end_edges(at);
    }
    return {};
  }

  // Returns the byte ranges within which no branch distinguishes bytes.
  std::vector<std::pair<uint8_t, uint8_t>> ranges_of(const Branches& branches) const {
    std::vector<int> cuts = {0, 256};
    const auto add = [&](const Nfa& automaton, NodeId node) {
      for (const Nfa::Edge& edge : automaton.edges_of(node)) {
        if (edge.call >= 0) continue;
        cuts.push_back(edge.low);
        cuts.push_back(edge.high + 1);
      }
    };
    for (const Branch& branch : branches) {
      add(nfa_, branch.node);
      for (const auto& [number, node] : branch.pending) add(automata_[number], node);
    }
    std::ranges::sort(cuts);
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<std::pair<uint8_t, uint8_t>> ranges;
    for (size_t i = 0; i + 1 < cuts.size(); ++i)
      ranges.emplace_back(static_cast<uint8_t>(cuts[i]), static_cast<uint8_t>(cuts[i + 1] - 1));
    return ranges;
  }

  // Returns the branches after one symbol, which `reads` recognises on an edge.
  template <typename Reads>
  Branches stepped(const Branches& branches, Reads reads) const {
    Branches next;
    for (const Branch& branch : branches) {
      std::optional<std::vector<Pending>> pending;
      for (const Nfa::Edge& edge : nfa_.edges_of(branch.node)) {
        if (is_marker(edge) || !reads(edge)) continue;
        if (!pending) pending = stepped_pending(branch.pending, reads);
        if (!pending) break;
        next.push_back({edge.target, *pending});
      }
    }
    return closed(std::move(next));
  }

  // A wanted look-ahead that nothing can match any more ends the branch; an unwanted one is passed.
  template <typename Reads>
  std::optional<std::vector<Pending>> stepped_pending(const std::vector<Pending>& pending,
                                                      Reads reads) const {
    std::vector<Pending> next;
    for (const auto& [number, node] : pending) {
      const auto edges = automata_[number].edges_of(node);
      const auto edge = std::ranges::find_if(edges, reads);
      if (edge != edges.end()) {
        next.emplace_back(number, edge->target);
      } else if (lookaheads_[number].wanted) {
        return std::nullopt;
      }
    }
    std::ranges::sort(next);
    next.erase(std::unique(next.begin(), next.end()), next.end());
    return next;
  }

  // Adds what markers lead to, where look-aheads begin, and drops branches that others contain.
  Branches closed(Branches branches) const {
    for (size_t i = 0; i < branches.size(); ++i) {
      for (const Nfa::Edge& edge : nfa_.edges_of(branches[i].node)) {
        if (!is_marker(edge)) continue;
        Branch next{edge.target, branches[i].pending};
        const auto number = static_cast<uint32_t>(edge.call);
        const Pending begun(number, automata_[number].start);
        const auto at = std::ranges::lower_bound(next.pending, begun);
        if (at == next.pending.end() || *at != begun) next.pending.insert(at, begun);
        if (std::ranges::find(branches, next) == branches.end())
          branches.push_back(std::move(next));
      }
    }
    std::ranges::sort(branches);
    branches.erase(std::unique(branches.begin(), branches.end()), branches.end());
    return without_contained(branches);
  }

  // A branch under more look-aheads than another at the same state adds no text.
  static Branches without_contained(const Branches& branches) {
    Branches kept;
    for (const Branch& branch : branches) {
      const bool contained = std::ranges::any_of(branches, [&](const Branch& other) {
        return other.node == branch.node && other.pending.size() < branch.pending.size() &&
               std::ranges::includes(branch.pending, other.pending);
      });
      if (!contained) kept.push_back(branch);
    }
    return kept;
  }

  bool accepts(const Branch& branch) const {
    return nfa_.states[branch.node].final &&
           std::ranges::all_of(branch.pending, [&](const Pending& pending) {
             return automata_[pending.first].states[pending.second].final ==
                    lookaheads_[pending.first].wanted;
           });
  }

  NodeId id_of(const Branches& branches) {
    const auto [it, added] = ids_.try_emplace(branches, static_cast<NodeId>(states_.size()));
    if (!added) return it->second;
    states_.push_back(&it->first);
    num_branches_ += branches.size();
    const NodeId made = out_.add();
    out_.states[made].final =
        std::ranges::any_of(branches, [&](const Branch& branch) { return accepts(branch); });
    return made;
  }

  Status too_large() const {
    return error(StatusCode::kResourceExhausted,
                 "regex: its look-aheads need more than {} automaton states; bound what they look "
                 "for, or use fewer",
                 limits_.dfa_nodes_max);
  }

  const Ir& ir_;
  const std::span<const Lookahead> lookaheads_;
  const GrammarLimits& limits_;
  Nfa nfa_, out_;
  std::vector<Nfa> automata_;  // [look-ahead] deterministic
  std::map<Branches, NodeId> ids_;
  std::vector<const Branches*> states_;  // [state of out_] keys of ids_
  size_t num_branches_ = 0;              // over all states
};

}  // namespace

Result<ExprId> resolve_lookaheads(Ir& ir, ExprId expr, std::span<const Lookahead> lookaheads,
                                  const GrammarLimits& limits) {
  return Resolver(ir, lookaheads, limits).run(ir, expr);
}

}  // namespace espalier::grammar
