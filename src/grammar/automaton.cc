#include "grammar/automaton.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "base/check.h"
#include "base/rng.h"
#include "grammar/nfa.h"

namespace espalier::grammar {
namespace {

// What a rule becomes: part of its callers, or an automaton of its own that they call.
enum class Treatment : uint8_t { kUnreached, kInlined, kCalled };

class NetworkBuilder {
 public:
  NetworkBuilder(const Ir& ir, RuleId root, const GrammarLimits& limits)
      : ir_(ir), root_(root), limits_(limits), rules_(ir.rules().size()) {}

  Result<Network> build() {
    plan();
    std::vector<Nfa> automata(order_.size());
    size_t total = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      ESP_RETURN_IF_ERROR(limits_.check_time());
      ESP_ASSIGN_OR_RETURN(automata[i], automaton_of(ir_.rules()[order_[i]].body));
      total += automata[i].states.size();
      if (total > limits_.nodes_max) return fail(too_large());
    }
    Network network = assemble(automata);
    if (!prune(network)) {
      return fail(invalid_argument("the grammar matches nothing at all: rule '{}' cannot end",
                                   ir_.rules()[root_].name));
    }
    find_nullable(network);
    find_room(network);
    classify_bytes(network);
    return network;
  }

 private:
  struct RuleInfo {
    Treatment treatment = Treatment::kUnreached;
    uint32_t index = 0, low = 0;  // Tarjan's
    bool on_stack = false;
    int32_t call = -1;  // its place in order_, when called
  };

  Status too_large() const {
    return error(StatusCode::kResourceExhausted,
                 "the grammar needs more than {} automaton states; bound its repetitions more "
                 "tightly or split it",
                 limits_.nodes_max);
  }

  // Rules named by `expr`, each once or more.
  void references(ExprId expr, std::vector<RuleId>& out) {
    std::vector<ExprId> stack = {expr};
    seen_.resize(ir_.size(), 0);
    ++searches_;
    while (!stack.empty()) {
      const ExprId id = stack.back();
      stack.pop_back();
      if (seen_[id] == searches_) continue;
      seen_[id] = searches_;
      const Ir::Node& node = ir_.node(id);
      if (node.op == Ir::Op::kRule) out.push_back(node.first);
      if (node.op == Ir::Op::kBytes || node.op == Ir::Op::kRule) continue;
      for (ExprId child : ir_.children(id)) stack.push_back(child);
    }
  }

  // Tarjan's strongly connected components, without recursion: a component is finished after all
  // that it calls, so sizes are known when a rule is decided.
  void plan() {
    struct Frame {
      RuleId rule;
      std::vector<RuleId> callees;
      size_t next = 0;
      bool calls_itself = false;
    };
    uint32_t counter = 0;
    std::vector<RuleId> component_stack;
    std::vector<Frame> frames;
    const auto enter = [&](RuleId rule) {
      rules_[rule].index = rules_[rule].low = ++counter;
      rules_[rule].on_stack = true;
      component_stack.push_back(rule);
      Frame frame{.rule = rule, .callees = {}};
      references(ir_.rules()[rule].body, frame.callees);
      for (RuleId callee : frame.callees) frame.calls_itself |= callee == rule;
      frames.push_back(std::move(frame));
    };
    order_.push_back(root_);
    rules_[root_].call = 0;
    enter(root_);
    while (!frames.empty()) {
      Frame& frame = frames.back();
      if (frame.next < frame.callees.size()) {
        const RuleId callee = frame.callees[frame.next++];
        if (rules_[callee].index == 0) {
          enter(callee);
        } else if (rules_[callee].on_stack) {
          rules_[frame.rule].low = std::min(rules_[frame.rule].low, rules_[callee].index);
        }
        continue;
      }
      const RuleId rule = frame.rule;
      const bool calls_itself = frame.calls_itself;
      frames.pop_back();
      if (!frames.empty()) {
        RuleInfo& caller = rules_[frames.back().rule];
        caller.low = std::min(caller.low, rules_[rule].low);
      }
      if (rules_[rule].low == rules_[rule].index)
        close_component(component_stack, rule, calls_itself);
    }
  }

  void close_component(std::vector<RuleId>& stack, RuleId head, bool calls_itself) {
    const bool recursive = calls_itself || stack.back() != head;
    for (RuleId member = ~RuleId{0}; member != head;) {
      member = stack.back();
      stack.pop_back();
      rules_[member].on_stack = false;
      const bool inlined = !recursive && member != root_ && ir_.rules()[member].check < 0 &&
                           ir_.rules()[member].counter < 0 &&
                           size_of(ir_.rules()[member].body) <= limits_.inline_nodes_max;
      rules_[member].treatment = inlined ? Treatment::kInlined : Treatment::kCalled;
      if (!inlined && rules_[member].call < 0) {
        rules_[member].call = static_cast<int32_t>(order_.size());
        order_.push_back(member);
      }
    }
  }

  // Roughly the states that nfa_of() makes for `expr`, saturating.
  int64_t size_of(ExprId expr) {
    constexpr int64_t kHuge = int64_t{1} << 40;
    if (const auto it = sizes_.find(expr); it != sizes_.end()) return it->second;
    const Ir::Node& node = ir_.node(expr);
    int64_t size = 1;
    switch (node.op) {
      case Ir::Op::kNever:
      case Ir::Op::kEmpty:
      case Ir::Op::kBytes:
      case Ir::Op::kTick:
      case Ir::Op::kEnough:
        break;
      case Ir::Op::kRule:
        if (rules_[node.first].treatment == Treatment::kInlined) {
          size = size_of(ir_.rules()[node.first].body);
        }
        break;
      case Ir::Op::kGraph:
        size += ir_.graph_of(expr).num_states;
        [[fallthrough]];
      case Ir::Op::kSequence:
      case Ir::Op::kChoice:
        for (ExprId child : ir_.children(expr)) size += size_of(child);
        break;
      case Ir::Op::kRepeat: {
        const int64_t times = node.max == kUnbounded ? node.min + 1 : node.max;
        size += times * size_of(ir_.children(expr)[0]);
        break;
      }
    }
    size = std::min(size, kHuge);
    sizes_.emplace(expr, size);
    return size;
  }

  Result<Nfa> automaton_of(ExprId body) {
    if (size_of(body) > static_cast<int64_t>(limits_.nodes_max)) return fail(too_large());
    if (is_minimal_graph(ir_, body)) return nfa_of_minimal(ir_, ir_.graph_of(body));
    Nfa nfa = nfa_of(ir_, body, [this](RuleId rule) {
      return rules_[rule].treatment == Treatment::kInlined ? kInlineRule : rules_[rule].call;
    });
    const size_t bound =
        std::max(limits_.dfa_nodes_free, limits_.dfa_growth_max * nfa.states.size());
    std::optional<Nfa> dfa = determinised(nfa, bound);
    if (!dfa) return nfa;
    return minimised(*dfa);
  }

  Network assemble(const std::vector<Nfa>& automata) const {
    Network network;
    network.checks = ir_.checks();
    network.counters = ir_.counters();
    for (size_t i = 0; i < automata.size(); ++i) {
      const auto base = static_cast<NodeId>(network.nodes.size());
      network.starts.push_back(base + automata[i].start);
      network.rule_names.push_back(ir_.rules()[order_[i]].name);
      for (const Nfa::State& state : automata[i].states) {
        Network::Node node;
        node.final = state.final;
        node.check = ir_.rules()[order_[i]].check;
        node.counter = ir_.rules()[order_[i]].counter;
        node.counts_begin = static_cast<uint32_t>(network.count_edges.size());
        node.bytes_begin = static_cast<uint32_t>(network.byte_edges.size());
        node.calls_begin = static_cast<uint32_t>(network.call_edges.size());
        for (const Nfa::Edge& e : state.edges) {
          if (e.call < 0) {
            network.byte_edges.push_back({e.low, e.high, base + e.target});
          } else if (e.call >= kTickCall) {
            network.count_edges.push_back({base + e.target, e.call == kTickCall, 0});
          } else {
            network.call_edges.push_back({static_cast<RuleId>(e.call), base + e.target, false});
          }
        }
        node.bytes_end = static_cast<uint32_t>(network.byte_edges.size());
        node.calls_end = static_cast<uint32_t>(network.call_edges.size());
        node.counts_end = static_cast<uint32_t>(network.count_edges.size());
        network.nodes.push_back(node);
      }
    }
    return network;
  }

  // The least number of ticks from each node of a counting rule to its end, by relaxation: there
  // are few such nodes.
  static void find_room(Network& network) {
    if (network.count_edges.empty()) return;
    constexpr uint32_t kFar = 1u << 30;
    std::vector<uint32_t> least(network.nodes.size(), kFar);
    for (NodeId id = 0; id < network.nodes.size(); ++id) {
      if (network.nodes[id].final) least[id] = 0;
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (NodeId id = static_cast<NodeId>(network.nodes.size()); id-- > 0;) {
        if (network.nodes[id].counter < 0) continue;
        uint32_t now = least[id];
        for (const auto& edge : network.bytes_of(id)) now = std::min(now, least[edge.target]);
        for (const auto& edge : network.calls_of(id)) now = std::min(now, least[edge.target]);
        for (const auto& edge : network.counts_of(id)) {
          now = std::min(now, least[edge.target] + (edge.tick ? 1 : 0));
        }
        changed |= now != least[id];
        least[id] = now;
      }
    }
    for (NodeId id = 0; id < network.nodes.size(); ++id) {
      if (network.nodes[id].counter >= 0) network.nodes[id].room = least[id];
    }
    for (Network::CountEdge& edge : network.count_edges) {
      edge.room = least[edge.target];
      network.room_max = std::max(network.room_max, edge.room);
    }
  }

  // A rule is nullable when calls of nullable rules lead from its start to a final node.
  static void find_nullable(Network& network) {
    network.nullable.assign(network.starts.size(), 0);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t rule = 0; rule < network.starts.size(); ++rule) {
        if (network.nullable[rule] || !reaches_final(network, rule)) continue;
        network.nullable[rule] = 1;
        changed = true;
      }
    }
  }

  static bool reaches_final(const Network& network, size_t rule) {
    std::vector<NodeId> stack = {network.starts[rule]};
    std::vector<NodeId> seen = stack;
    while (!stack.empty()) {
      const NodeId id = stack.back();
      stack.pop_back();
      if (network.nodes[id].final) return true;
      for (const Network::CountEdge& edge : network.counts_of(id)) {
        if (std::find(seen.begin(), seen.end(), edge.target) != seen.end()) continue;
        seen.push_back(edge.target);
        stack.push_back(edge.target);
      }
      for (const Network::CallEdge& call : network.calls_of(id)) {
        if (!network.nullable[call.rule]) continue;
        if (std::find(seen.begin(), seen.end(), call.target) != seen.end()) continue;
        seen.push_back(call.target);
        stack.push_back(call.target);
      }
    }
    return false;
  }

  // Two bytes are of one class when the same edges take both: edges are summed as hashes over the
  // bytes that they cover, by differences at their ends.
  static void classify_bytes(Network& network) {
    std::array<uint64_t, 257> delta{};
    for (NodeId id = 0; id < network.nodes.size(); ++id) {
      for (const Network::ByteEdge& edge : network.bytes_of(id)) {
        const uint64_t h = mix64(mix64(id) ^ edge.target);
        delta[edge.low] += h;
        delta[edge.high + 1] -= h;
      }
    }
    std::unordered_map<uint64_t, uint8_t> classes;
    uint64_t sum = 0;
    for (int b = 0; b < 256; ++b) {
      sum += delta[b];
      const auto [it, added] = classes.try_emplace(sum, static_cast<uint8_t>(classes.size()));
      if (added) {
        network.class_sample.push_back(static_cast<uint8_t>(b));
        network.class_size.push_back(0);
      }
      network.byte_class[b] = it->second;
      ++network.class_size[it->second];
    }
  }

  // Removes every edge from which the end cannot be reached, so that whatever is allowed can be
  // finished. False when nothing at all can be.
  static bool prune(Network& network) {
    const std::vector<uint8_t> good = finishing(network);
    std::vector<Network::ByteEdge> bytes;
    std::vector<Network::CallEdge> calls;
    std::vector<Network::CountEdge> counts;
    for (NodeId id = 0; id < network.nodes.size(); ++id) {
      Network::Node node = network.nodes[id];
      node.bytes_begin = static_cast<uint32_t>(bytes.size());
      node.calls_begin = static_cast<uint32_t>(calls.size());
      node.counts_begin = static_cast<uint32_t>(counts.size());
      for (const auto& edge : network.bytes_of(id)) {
        if (good[edge.target]) bytes.push_back(edge);
      }
      for (const auto& call : network.calls_of(id)) {
        if (good[call.target] && good[network.starts[call.rule]]) calls.push_back(call);
      }
      node.bytes_end = static_cast<uint32_t>(bytes.size());
      for (const auto& edge : network.counts_of(id)) {
        if (good[edge.target]) counts.push_back(edge);
      }
      node.calls_end = static_cast<uint32_t>(calls.size());
      node.counts_end = static_cast<uint32_t>(counts.size());
      network.nodes[id] = node;
    }
    network.byte_edges = std::move(bytes);
    network.call_edges = std::move(calls);
    network.count_edges = std::move(counts);
    for (Network::CallEdge& call : network.call_edges) {
      // A rule that is checked waits for its end itself.
      call.tail = network.nodes[call.target].check < 0 && network.only_final(call.target);
    }
    return good[network.starts[0]] != 0;
  }

  // The nodes from which their rule can end, by fixpoint.
  static std::vector<uint8_t> finishing(const Network& network) {
    std::vector<uint8_t> good(network.nodes.size(), 0);
    for (NodeId id = 0; id < network.nodes.size(); ++id) good[id] = network.nodes[id].final;
    for (bool changed = true; changed;) {
      changed = false;
      for (NodeId id = static_cast<NodeId>(network.nodes.size()); id-- > 0;) {
        if (good[id]) continue;
        bool now = false;
        for (const auto& edge : network.bytes_of(id)) now = now || good[edge.target];
        for (const auto& call : network.calls_of(id)) {
          now = now || (good[call.target] && good[network.starts[call.rule]]);
        }
        for (const auto& edge : network.counts_of(id)) now = now || good[edge.target];
        if (now) good[id] = 1, changed = true;
      }
    }
    return good;
  }

  const Ir& ir_;
  const RuleId root_;
  const GrammarLimits& limits_;
  std::vector<RuleInfo> rules_;
  std::vector<RuleId> order_;  // called rules; the root first
  std::unordered_map<ExprId, int64_t> sizes_;
  std::vector<uint32_t> seen_;  // [expression]: the last search that met it
  uint32_t searches_ = 0;
};

}  // namespace

Status GrammarLimits::check_time() const {
  if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed))
    return error(StatusCode::kAborted, "the grammar is wanted no more");
  if (deadline == TimePoint{} || SteadyClock().now() < deadline) return {};
  return error(StatusCode::kResourceExhausted,
               "the grammar takes more than {} seconds to compile; simplify it",
               compile_seconds_max);
}

Result<Network> build_network(const Ir& ir, RuleId root, const GrammarLimits& limits) {
  return NetworkBuilder(ir, root, limits).build();
}

}  // namespace espalier::grammar
