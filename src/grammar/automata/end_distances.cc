#include "grammar/automata/end_distances.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "grammar/automata/held_bytes.h"

namespace espalier::grammar {
namespace {

constexpr size_t kDistancesMax = 16'000'000;  // 64 MB

}  // namespace

// Computes the distances backwards from the ends of all rules.
class EndDistanceSearch {
 public:
  explicit EndDistanceSearch(EndDistances& out) : network_(*out.network_), out_(out) {}

  Status run() {
    ESP_RETURN_IF_ERROR(number_states());
    gather_edges();
    for (NodeId node = 0; node < network_.nodes.size(); ++node) {
      if (network_.nodes[node].final) relax_all(node, 0);
    }
    while (!queue_.empty()) {
      const auto [distance, at] = queue_.top();
      queue_.pop();
      if (distance == out_.distances_[out_.offsets_[at.first] + at.second] && !settled(at))
        settle(at.first, at.second, distance);
    }
    find_increase();
    return {};
  }

 private:
  enum class Kind : uint8_t { kByte, kCall, kTail, kTick, kMinimum };
  using State = std::pair<NodeId, uint32_t>;  // a node, and the ticks that are still required
  struct Edge {                               // into a node, or a call of a rule
    NodeId from, target;
    Kind kind;
    uint32_t cost = 0;               // bytes
    RuleId rule = Network::kNoRule;  // kCall and kTail
  };

  Status number_states() {
    size_t total = 0;
    for (const Network::Node& node : network_.nodes) {
      out_.offsets_.push_back(static_cast<uint32_t>(total));
      total += 1;
      if (node.counter >= 0) total += network_.counters[static_cast<size_t>(node.counter)].min;
      if (total > kDistancesMax)
        return invalid_argument(
            "complete_within_budget: the grammar's least lengths are too large to plan its "
            "shortest text; lower minLength or minItems, or leave complete_within_budget out");
    }
    out_.offsets_.push_back(static_cast<uint32_t>(total));
    out_.distances_.assign(total, EndDistances::kNone);
    settled_.assign(total, false);
    rule_distances_.assign(network_.starts.size(), EndDistances::kNone);
    return {};
  }

  void gather_edges() {
    into_.resize(network_.nodes.size());
    calls_.resize(network_.starts.size());
    starting_.resize(network_.nodes.size());
    for (RuleId rule = 0; rule < network_.starts.size(); ++rule) {
      if (network_.starts[rule] != Network::kNotBuilt)
        starting_[network_.starts[rule]].push_back(rule);
    }
    for (NodeId from = 0; from < network_.nodes.size(); ++from) {
      for_each_edge(from, [&](const Edge& edge) {
        if (edge.rule != Network::kNoRule) calls_[edge.rule].push_back(edge);
        if (edge.kind != Kind::kTail) into_[edge.target].push_back(edge);
      });
    }
  }

  template <typename Visit>
  void for_each_edge(NodeId from, Visit visit) const {
    for (const auto& edge : network_.bytes_of(from)) visit(Edge{from, edge.target, Kind::kByte, 1});
    for (const auto& edge : network_.counts_of(from))
      visit(Edge{from, edge.target, edge.tick ? Kind::kTick : Kind::kMinimum});
    for (const auto& edge : network_.calls_of(from)) {
      const bool epsilon = edge.rule == Network::kNoRule;
      const Kind kind = epsilon ? Kind::kByte : edge.tail ? Kind::kTail : Kind::kCall;
      visit(Edge{from, edge.target, kind, 0, edge.rule});
    }
  }

  uint32_t need_max(NodeId node) const { return out_.offsets_[node + 1] - out_.offsets_[node] - 1; }
  uint32_t& distance(NodeId node, uint32_t need) {
    return out_.distances_[out_.offsets_[node] + std::min(need, need_max(node))];
  }
  bool settled(State at) const { return settled_[out_.offsets_[at.first] + at.second]; }

  void relax(NodeId node, uint32_t need, uint32_t bytes) {
    if (need > need_max(node) || bytes >= distance(node, need)) return;
    distance(node, need) = bytes;
    queue_.push({bytes, {node, need}});
  }
  void relax_all(NodeId node, uint32_t bytes) {
    for (uint32_t need = 0; need <= need_max(node); ++need) relax(node, need, bytes);
  }

  void settle(NodeId node, uint32_t need, uint32_t bytes) {
    settled_[out_.offsets_[node] + need] = true;
    for (const Edge& edge : into_[node]) follow_back(edge, need, bytes);
    if (need != need_max(node)) return;
    for (const RuleId rule : starting_[node]) {
      rule_distances_[rule] = bytes;
      for (const Edge& call : calls_[rule]) settle_call(call, bytes);
    }
  }

  void follow_back(const Edge& edge, uint32_t need, uint32_t bytes) {
    if (edge.kind == Kind::kByte) return relax(edge.from, need, bytes + edge.cost);
    if (edge.kind == Kind::kCall) {
      const uint32_t rule = rule_distances_[edge.rule];
      if (rule != EndDistances::kNone) relax(edge.from, need, bytes + rule);
      return;
    }
    if (need == 0) relax(edge.from, 0, bytes);  // a tick beyond the minimum, or its test
    if (edge.kind == Kind::kTick) relax(edge.from, need + 1, bytes);
  }

  void settle_call(const Edge& call, uint32_t rule) {
    if (call.kind == Kind::kTail) return relax_all(call.from, rule);
    for (uint32_t need = 0; need <= need_max(call.target); ++need) {
      if (settled({call.target, need})) relax(call.from, need, rule + distance(call.target, need));
    }
  }

  // Compares both ends of each edge, with the callee's distance on top where the edge is a call.
  void find_increase() {
    for (NodeId from = 0; from < network_.nodes.size(); ++from) {
      for_each_edge(from, [&](const Edge& edge) {
        const bool calls = edge.rule != Network::kNoRule;
        const uint32_t rule = calls ? rule_distances_[edge.rule] : 0;
        for (const uint32_t need : {uint32_t{0}, need_max(from)}) {
          const uint32_t rest = edge.kind == Kind::kTail ? 0 : distance(edge.target, need);
          const uint32_t before = distance(from, need);
          if (rule < EndDistances::kNone && rest < EndDistances::kNone && rule + rest > before)
            out_.increase_max_ = std::max(out_.increase_max_, rule + rest - before);
        }
      });
    }
  }

  const Network& network_;
  EndDistances& out_;
  std::vector<std::vector<Edge>> into_;        // [node]
  std::vector<std::vector<Edge>> calls_;       // [rule]
  std::vector<std::vector<RuleId>> starting_;  // [node] rules that start there
  std::vector<uint32_t> rule_distances_;       // [rule]
  std::vector<bool> settled_;                  // [state]
  using Queued = std::pair<uint32_t, State>;
  std::priority_queue<Queued, std::vector<Queued>, std::greater<>> queue_;
};

Result<EndDistances> EndDistances::compute(const Network& network) {
  EndDistances made(network);
  ESP_RETURN_IF_ERROR(EndDistanceSearch(made).run());
  return made;
}

size_t EndDistances::num_bytes() const { return held_bytes(offsets_) + held_bytes(distances_); }

}  // namespace espalier::grammar
