#include "grammar/automata/transition_network.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "grammar/automata/nfa.h"

namespace espalier::grammar {
namespace {

// A rule of more automaton states is built when the grammar is compiled, under the grammar's
// limits.
constexpr int64_t kLazyNodesMax = 5000;
// Larger automata stay non-deterministic; the recogniser determinises them lazily.
constexpr size_t kDeterminisedMax = 600;

// What becomes of a rule: it is inlined into its callers, or has an automaton of its own that they
// call.
enum class Treatment : uint8_t { kUnreached, kInlined, kCalled };

}  // namespace

class NetworkBuilder::Impl {
 public:
  Impl(std::shared_ptr<const Ir> ir, RuleId root, const GrammarLimits& limits)
      : shared_(std::move(ir)),
        ir_(*shared_),
        root_(root),
        limits_(limits),
        rules_(ir_.rules().size()),
        sizes_(ir_.size(), -1) {}

  Network network;

  Status begin() {
    plan();
    ESP_RETURN_IF_ERROR(limits_.check_time());
    find_in_rules(productive_, [this](ExprId body) { return productive(body); });
    ESP_RETURN_IF_ERROR(limits_.check_time());
    if (!productive_[root_]) {
      return invalid_argument("the grammar matches nothing at all: rule '{}' cannot end",
                              ir_.rules()[root_].name);
    }
    find_in_rules(nullable_, [this](ExprId body) { return nullable(body); });
    ESP_RETURN_IF_ERROR(limits_.check_time());
    int64_t total = 0;
    for (RuleId rule : order_) total += size_of(ir_.rules()[rule].body);
    if (total > static_cast<int64_t>(limits_.nodes_max)) return too_large();
    classify_bytes();
    network.checks = ir_.rules().checks();
    network.counters = ir_.rules().counters();
    network.room_max.assign(network.counters.size(), 0);
    network.starts.assign(order_.size(), Network::kNotBuilt);
    for (RuleId rule : order_) {
      network.nullable.push_back(nullable_[rule] ? 1 : 0);
      network.rule_names.push_back(ir_.rules()[rule].name);
    }
    for (size_t i = 0; i < order_.size(); ++i) {
      if (i > 0 && size_of(ir_.rules()[order_[i]].body) <= kLazyNodesMax) continue;
      make(static_cast<RuleId>(i));
      ESP_RETURN_IF_ERROR(limits_.check_time());
      if (network.nodes.size() > limits_.nodes_max) return too_large();
    }
    limits_.cpu_deadline = {};
    limits_.cancelled = nullptr;  // the caller's flag may not outlive the compilation
    return {};
  }

  void make(RuleId rule) {
    if (network.starts[rule] != Network::kNotBuilt) return;
    const ExprId body = ir_.rules()[order_[rule]].body;
    const NodeId base = is_deterministic_graph(ir_, body) ? append_graph(rule, ir_.graph_of(body))
                                                          : append(rule, automaton_of(body));
    const int32_t counter = ir_.rules()[order_[rule]].counter;
    if (counter >= 0) find_room(base, static_cast<size_t>(counter));
    bool closed = true;
    for (NodeId id = base; id < network.nodes.size() && closed; ++id) {
      closed = network.calls_of(id).empty() && (!network.nodes[id].final || network.only_final(id));
    }
    for (NodeId id = base; id < network.nodes.size(); ++id) network.nodes[id].closed = closed;
  }
  const GrammarLimits& limits() const { return limits_; }
  Status too_large() const {
    return error(StatusCode::kResourceExhausted,
                 "the grammar needs more than {} automaton states; bound its repetitions more "
                 "tightly or split it",
                 limits_.nodes_max);
  }

 private:
  struct RuleInfo {
    Treatment treatment = Treatment::kUnreached;
    uint32_t index = 0, low = 0;  // Tarjan's algorithm
    bool on_stack = false;
    int32_t call = -1;  // index in order_ of a called rule
  };

  // Appends the rules that `expr` names, each at least once; records reached graphs and byte sets.
  void references(ExprId expr, std::vector<RuleId>& out) {
    std::vector<ExprId> stack = {expr};
    seen_.resize(ir_.size(), 0);
    ++searches_;
    while (!stack.empty()) {
      const ExprId id = stack.back();
      stack.pop_back();
      if (seen_[id] == searches_) continue;
      if (seen_[id] == 0) reached_.push_back(id);
      seen_[id] = searches_;
      const Ir::Node& node = ir_.node(id);
      if (node.op == Ir::Op::kRule) out.push_back(node.first);
      if (node.op == Ir::Op::kBytes || node.op == Ir::Op::kRule) continue;
      for (ExprId child : ir_.children(id)) stack.push_back(child);
    }
  }

  // Tarjan's strongly connected components without recursion: a component is finished after
  // everything that it calls, so sizes are known when a rule's treatment is decided.
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
    WorkClock clock(limits_);
    while (!frames.empty() && !clock.ended_by(50)) {
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
    recursive_ |= recursive;
    for (RuleId member = ~RuleId{0}; member != head;) {
      member = stack.back();
      stack.pop_back();
      rules_[member].on_stack = false;
      finished_.push_back(member);
      const bool inlined = !recursive && member != root_ && ir_.rules()[member].check < 0 &&
                           ir_.rules()[member].counter < 0 && !has_tags(member) &&
                           size_of(ir_.rules()[member].body) <= limits_.inline_nodes_max;
      rules_[member].treatment = inlined ? Treatment::kInlined : Treatment::kCalled;
      if (!inlined && rules_[member].call < 0) {
        rules_[member].call = static_cast<int32_t>(order_.size());
        order_.push_back(member);
      }
    }
  }

  // Returns whether the rule is a lexeme, whose masks are precomputed as long as it stays a rule.
  bool has_tags(RuleId rule) const {
    const ExprId body = ir_.rules()[rule].body;
    return is_deterministic_graph(ir_, body) && !ir_.graph_of(body).tags.empty();
  }

  static int64_t num_ranges(const ByteSet& set) {
    return static_cast<int64_t>((set & ~(set << 1)).count());
  }

  // Estimates the states that nfa_of() makes for `expr`, with room for its edges; saturating.
  int64_t size_of(ExprId expr) {
    constexpr int64_t kHuge = int64_t{1} << 40;
    if (sizes_[expr] >= 0) return sizes_[expr];
    const Ir::Node& node = ir_.node(expr);
    int64_t size = 1;
    switch (node.op) {
      case Ir::Op::kNever:
      case Ir::Op::kEmpty:
      case Ir::Op::kTick:
      case Ir::Op::kEnough:
        break;
      case Ir::Op::kBytes:
        size += num_ranges(ir_.byte_set(expr)) / 4;
        break;
      case Ir::Op::kRule:
        if (rules_[node.first].treatment == Treatment::kInlined) {
          size = size_of(ir_.rules()[node.first].body);
        }
        break;
      case Ir::Op::kGraph:
        size += ir_.graph_of(expr).num_states + std::ssize(ir_.graph_of(expr).arcs) / 4;
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
    sizes_[expr] = size;
    return size;
  }

  // Computes the least fixed point of a property of rule bodies that depends on the property of
  // other rules.
  template <typename Holds>
  void find_in_rules(std::vector<bool>& rules, Holds holds) {
    rules.assign(ir_.rules().size(), false);
    WorkClock clock(limits_);
    for (bool changed = true; changed;) {
      changed = false;
      known_.assign(ir_.size(), Known::kNothing);
      for (RuleId rule : finished_) {
        if (clock.ended_by(200)) return;
        if (rules[rule] || !holds(ir_.rules()[rule].body)) continue;
        rules[rule] = true;
        changed = recursive_;  // without recursion one pass suffices
      }
      if (clock.ended_by(ir_.size())) return;
    }
  }

  // Returns whether some text matches.
  bool productive(ExprId expr) {
    return remembered(expr, [&](const Ir::Node& node) {
      const auto inner = [&](ExprId child) { return productive(child); };
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
          return node.min == 0 || productive(ir_.children(expr)[0]);
        case Ir::Op::kGraph:
          return ir_.graph_of(expr).deterministic || reaches_final(ir_.graph_of(expr), inner);
        case Ir::Op::kRule:
          return bool{productive_[node.first]};
      }
      return false;
    });
  }

  // Returns whether the empty text matches; counters are ignored.
  bool nullable(ExprId expr) {
    return remembered(expr, [&](const Ir::Node& node) {
      const auto inner = [&](ExprId child) { return nullable(child); };
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
          return node.min == 0 || nullable(ir_.children(expr)[0]);
        case Ir::Op::kGraph:
          return reaches_final(ir_.graph_of(expr), inner);
        case Ir::Op::kRule:
          return bool{nullable_[node.first]};
      }
      return false;
    });
  }

  enum class Known : uint8_t { kNothing, kTrue, kFalse };
  template <typename Find>
  bool remembered(ExprId expr, Find find) {
    if (known_[expr] != Known::kNothing) return known_[expr] == Known::kTrue;
    const bool found = find(ir_.node(expr));
    known_[expr] = found ? Known::kTrue : Known::kFalse;
    return found;
  }

  // Returns whether edges for which `passes` holds lead from the start of a graph to a final state.
  template <typename Passes>
  static bool reaches_final(const Ir::Graph& graph, Passes passes) {
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

  Nfa automaton_of(ExprId body) {
    Nfa nfa = nfa_of(
        ir_, body,
        [this](RuleId rule) {
          if (!productive_[rule]) return kNeverRule;
          return rules_[rule].treatment == Treatment::kInlined ? kInlineRule : rules_[rule].call;
        },
        limits_, kDeterminisedMax);
    if (nfa.states.size() > kDeterminisedMax) return nfa;
    const size_t bound = std::max<size_t>(256, limits_.dfa_growth_max * nfa.states.size());
    std::optional<Nfa> dfa = determinised(nfa, bound, limits_);
    if (!dfa) return nfa;
    return minimised(*dfa, limits_);
  }

  // Appends a deterministic graph unchanged.
  NodeId append_graph(RuleId rule, const Ir::Graph& graph) {
    const IrRules::Rule& from = ir_.rules()[order_[rule]];
    const auto base = static_cast<NodeId>(network.nodes.size());
    network.starts[rule] = base;
    std::vector<uint32_t> ends(graph.num_states + 1, 0);  // of each state's arcs, by counting
    for (const Ir::Arc& arc : graph.arcs) ++ends[arc.from + 1];
    for (size_t s = 1; s < ends.size(); ++s) ends[s] += ends[s - 1];
    std::vector<const Ir::Arc*> arcs(graph.arcs.size());
    std::vector<uint32_t> next(ends.begin(), ends.end() - 1);
    for (const Ir::Arc& arc : graph.arcs) arcs[next[arc.from]++] = &arc;
    for (uint32_t s = 0; s < graph.num_states; ++s) {
      Network::Node node;
      if (!graph.tags.empty()) node.tag = graph.tags[s];
      node.end = base + graph.finals.back();  // a graph with tags has one final state
      node.check = from.check;
      node.counter = from.counter;
      node.bytes_begin = static_cast<uint32_t>(network.byte_edges.size());
      node.counts_begin = static_cast<uint32_t>(network.count_edges.size());
      node.calls_begin = node.calls_end = static_cast<uint32_t>(network.call_edges.size());
      for (uint32_t i = ends[s]; i < ends[s + 1]; ++i) {
        const Ir::Arc& arc = *arcs[i];
        if (arc.symbol == Ir::Arc::Symbol::kBytes) {
          network.byte_edges.push_back({arc.low, arc.high, base + arc.to});
        } else {
          network.count_edges.push_back({base + arc.to, arc.symbol == Ir::Arc::Symbol::kTick, 0});
        }
      }
      node.bytes_end = static_cast<uint32_t>(network.byte_edges.size());
      node.counts_end = static_cast<uint32_t>(network.count_edges.size());
      network.nodes.push_back(node);
    }
    for (uint32_t state : graph.finals) network.nodes[base + state].final = true;
    return base;
  }

  NodeId append(RuleId rule, const Nfa& nfa) {
    const IrRules::Rule& from = ir_.rules()[order_[rule]];
    const auto base = static_cast<NodeId>(network.nodes.size());
    network.starts[rule] = base + nfa.start;
    for (NodeId s = 0; s < nfa.states.size(); ++s) {
      Network::Node node;
      node.final = nfa.states[s].final;
      node.check = from.check;
      node.counter = from.counter;
      node.counts_begin = static_cast<uint32_t>(network.count_edges.size());
      node.bytes_begin = static_cast<uint32_t>(network.byte_edges.size());
      node.calls_begin = static_cast<uint32_t>(network.call_edges.size());
      for (const Nfa::Edge& e : nfa.edges_of(s)) {
        if (e.is_empty) {
          network.call_edges.push_back({Network::kNoRule, base + e.target, false});
        } else if (e.call < 0) {
          network.byte_edges.push_back({e.low, e.high, base + e.target});
        } else if (e.call >= kTickCall) {
          network.count_edges.push_back({base + e.target, e.call == kTickCall, 0});
        } else {
          // A rule with a check must return itself, so it is no tail call.
          const bool tail =
              from.check < 0 && nfa.states[e.target].final && nfa.edges_of(e.target).empty();
          network.call_edges.push_back({static_cast<RuleId>(e.call), base + e.target, tail});
        }
      }
      node.bytes_end = static_cast<uint32_t>(network.byte_edges.size());
      node.calls_end = static_cast<uint32_t>(network.call_edges.size());
      node.counts_end = static_cast<uint32_t>(network.count_edges.size());
      network.nodes.push_back(node);
    }
    return base;
  }

  // Computes the least number of ticks from each node of a counted rule to its end, by relaxation;
  // such rules are small.
  void find_room(NodeId base, size_t counter) {
    constexpr uint32_t kFar = 1u << 30;
    const auto end = static_cast<NodeId>(network.nodes.size());
    std::vector<uint32_t> least(end - base, kFar);
    for (NodeId id = base; id < end; ++id) {
      if (network.nodes[id].final) least[id - base] = 0;
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (NodeId id = end; id-- > base;) {
        uint32_t now = least[id - base];
        for (const auto& e : network.bytes_of(id)) now = std::min(now, least[e.target - base]);
        for (const auto& e : network.calls_of(id)) now = std::min(now, least[e.target - base]);
        for (const auto& e : network.counts_of(id)) {
          now = std::min(now, least[e.target - base] + (e.tick ? 1 : 0));
        }
        changed |= now != least[id - base];
        least[id - base] = now;
      }
    }
    for (NodeId id = base; id < end; ++id) {
      network.nodes[id].room = least[id - base];
      for (uint32_t i = network.nodes[id].counts_begin; i < network.nodes[id].counts_end; ++i) {
        Network::CountEdge& edge = network.count_edges[i];
        edge.room = least[edge.target - base];
        network.room_max[counter] = std::max(network.room_max[counter], edge.room);
      }
    }
  }

  // Two bytes are in one class when the same sets and arcs contain both: each byte's hash sums over
  // the sets that cover it.
  void classify_bytes() {
    std::array<uint64_t, 257> delta{};
    const auto add = [&](int low, int high, uint64_t h) {
      delta[static_cast<size_t>(low)] += h;
      delta[static_cast<size_t>(high) + 1] -= h;
    };
    for (ExprId id : reached_) {
      const Ir::Node& node = ir_.node(id);
      if (node.op == Ir::Op::kBytes) {
        const uint64_t h = mix64(id);
        const ByteSet& set = ir_.byte_set(id);
        for (size_t low = set._Find_first(); low < 256;) {
          size_t high = low;
          while (high < 255 && set[high + 1]) ++high;
          add(static_cast<int>(low), static_cast<int>(high), h);
          low = set._Find_next(high);
        }
      } else if (node.op == Ir::Op::kGraph) {
        const uint64_t seed = mix64(id);
        for (const Ir::Arc& arc : ir_.graph_of(id).arcs) {
          if (arc.symbol != Ir::Arc::Symbol::kBytes) continue;
          add(arc.low, arc.high, mix64(seed ^ (uint64_t{arc.from} << 32 | arc.to)));
        }
      }
    }
    std::unordered_map<uint64_t, uint8_t> classes;
    uint64_t sum = 0;
    for (size_t b = 0; b < 256; ++b) {
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

  const std::shared_ptr<const Ir> shared_;  // rules are built from it later
  const Ir& ir_;
  const RuleId root_;
  GrammarLimits limits_;
  std::vector<RuleInfo> rules_;
  std::vector<RuleId> order_;     // called rules; the root first
  std::vector<RuleId> finished_;  // all reached rules, callees first where they do not recurse
  bool recursive_ = false;        // whether any rule recurses
  std::vector<ExprId> reached_;
  std::vector<bool> productive_, nullable_;  // [rule of the Ir]
  std::vector<Known> known_;                 // [expression]
  std::vector<int64_t> sizes_;               // [expression]; -1: not computed yet
  std::vector<uint32_t> seen_;               // [expression]: the last search that visited it
  uint32_t searches_ = 0;
};

NetworkBuilder::NetworkBuilder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NetworkBuilder::~NetworkBuilder() = default;
Network& NetworkBuilder::network() { return impl_->network; }
void NetworkBuilder::make(RuleId rule) { impl_->make(rule); }

Result<std::unique_ptr<NetworkBuilder>> NetworkBuilder::plan(std::shared_ptr<const Ir> ir,
                                                             RuleId root,
                                                             const GrammarLimits& limits) {
  auto impl = std::make_unique<Impl>(std::move(ir), root, limits);
  ESP_RETURN_IF_ERROR(impl->begin());
  return std::unique_ptr<NetworkBuilder>(new NetworkBuilder(std::move(impl)));
}

namespace {

Duration thread_cpu_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::duration_cast<Duration>(std::chrono::seconds(now.tv_sec) +
                                              std::chrono::nanoseconds(now.tv_nsec));
}

}  // namespace

void GrammarLimits::start_budget() {
  if (cpu_deadline != Duration{}) return;
  const std::chrono::duration<double> budget(compile_seconds_max);
  cpu_deadline = thread_cpu_time() + std::chrono::duration_cast<Duration>(budget);
}

Status GrammarLimits::check_time() const {
  if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed))
    return error(StatusCode::kAborted, "the grammar is wanted no more");
  if (cpu_deadline == Duration{} || thread_cpu_time() < cpu_deadline) return {};
  return error(StatusCode::kResourceExhausted,
               "the grammar takes more than {} seconds to compile; simplify it",
               compile_seconds_max);
}

bool GrammarLimits::interrupted() const {
  if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) return true;
  return cpu_deadline != Duration{} && thread_cpu_time() >= cpu_deadline;
}

Result<Network> build_network(const Ir& ir, RuleId root, const GrammarLimits& limits) {
  // The caller's Ir outlives the builder, so it is borrowed.
  const std::shared_ptr<const Ir> borrowed(std::shared_ptr<const Ir>(), &ir);
  ESP_ASSIGN_OR_RETURN(const auto builder, NetworkBuilder::plan(borrowed, root, limits));
  Network& network = builder->network();
  for (RuleId rule = 0; rule < network.starts.size(); ++rule) {
    builder->make(rule);
    ESP_RETURN_IF_ERROR(limits.check_time());
    if (network.nodes.size() > limits.nodes_max) {
      return fail(error(StatusCode::kResourceExhausted,
                        "the grammar needs more than {} automaton states; bound its repetitions "
                        "more tightly or split it",
                        limits.nodes_max));
    }
  }
  return std::move(network);
}

}  // namespace espalier::grammar
