#include "grammar/automata/transition_network.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "grammar/automata/held_bytes.h"
#include "grammar/automata/network_writer.h"
#include "grammar/automata/nfa.h"
#include "grammar/automata/rule_plan.h"
#include "grammar/automata/rule_properties.h"

namespace espalier::grammar {
namespace {

// A rule of more automaton states is built when the grammar is compiled, under the grammar's
// limits.
constexpr int64_t kLazyNodesMax = 5000;
// Larger automata stay non-deterministic; the recogniser determinises them lazily.
constexpr size_t kDeterminisedMax = 600;

// Gives back the room that growth has left in the lists that hold most of a network.
void shrink(Network& network) {
  network.nodes.shrink_to_fit();
  network.byte_edges.shrink_to_fit();
  network.call_edges.shrink_to_fit();
  network.count_edges.shrink_to_fit();
}

size_t bytes_of_lists(const Network& n) {
  return held_bytes(n.nodes) + held_bytes(n.byte_edges) + held_bytes(n.call_edges) +
         held_bytes(n.count_edges) + held_bytes(n.counters) + held_bytes(n.room_max) +
         held_bytes(n.starts) + held_bytes(n.nullable) + held_bytes(n.checks) +
         held_bytes(n.class_sample) + held_bytes(n.class_size) + held_bytes(n.rule_names);
}

size_t bytes_of_names(const Network& n) {
  size_t bytes = 0;
  for (const std::string& name : n.rule_names) bytes += name.capacity() > 15 ? name.capacity() : 0;
  return bytes;
}

}  // namespace

class NetworkBuilder::Impl {
 public:
  Impl(std::shared_ptr<const Ir> ir, const GrammarLimits& limits)
      : ir_(std::move(ir)), limits_(limits) {}

  Network network;

  Status begin(RuleId root) {
    plan_ = std::make_unique<RulePlan>(*ir_, root, limits_);
    ESP_RETURN_IF_ERROR(limits_.check_time());
    properties_ = std::make_unique<RuleProperties>(*ir_, *plan_, limits_);
    ESP_RETURN_IF_ERROR(properties_->find_productive());
    if (!properties_->productive(root)) {
      return invalid_argument("the grammar matches nothing at all: rule '{}' cannot end",
                              ir_->rules()[root].name);
    }
    ESP_RETURN_IF_ERROR(properties_->find_nullable());
    int64_t total = 0;
    for (RuleId rule : plan_->called()) total += plan_->size_of(body_of(rule));
    if (total > static_cast<int64_t>(limits_.nodes_max)) return too_large();
    describe_rules();
    ESP_RETURN_IF_ERROR(make_large_rules());
    plan_->forget_searches();
    shrink(network);
    growth_ = NetworkGrowth::kTight;
    fixed_bytes_ = ir_->num_bytes() + plan_->num_bytes() + bytes_of_names(network);
    update_num_bytes();
    limits_.cpu_deadline = {};
    limits_.cancelled = nullptr;  // the caller's flag may not outlive the compilation
    return {};
  }

  void make(RuleId rule) {
    if (network.starts[rule] != Network::kNotBuilt) return;
    const IrRules::Rule& from = ir_->rules()[plan_->called()[rule]];
    NetworkWriter writer(network, growth_);
    const NodeId start = is_deterministic_graph(*ir_, from.body)
                             ? writer.add_rule(from, ir_->graph_of(from.body))
                             : writer.add_rule(from, automaton_of(from.body));
    network.starts[rule] = start;
    update_num_bytes();
  }
  size_t num_bytes() const { return bytes_.load(std::memory_order_relaxed); }
  Status too_large() const {
    return error(StatusCode::kResourceExhausted,
                 "the grammar needs more than {} automaton states; bound its repetitions more "
                 "tightly or split it",
                 limits_.nodes_max);
  }

 private:
  void update_num_bytes() {
    bytes_.store(fixed_bytes_ + bytes_of_lists(network), std::memory_order_relaxed);
  }

  ExprId body_of(RuleId rule) const { return ir_->rules()[rule].body; }

  // Fills everything of the network but its rules' automata.
  void describe_rules() {
    classify_bytes(*ir_, plan_->reached(), network);
    network.checks = ir_->rules().checks();
    network.counters = ir_->rules().counters();
    network.room_max.assign(network.counters.size(), 0);
    network.starts.assign(plan_->called().size(), Network::kNotBuilt);
    for (RuleId rule : plan_->called()) {
      network.nullable.push_back(properties_->nullable(rule) ? 1 : 0);
      network.rule_names.push_back(ir_->rules()[rule].name);
    }
  }

  // Builds the root and the rules that are too large to be built while a text is matched.
  Status make_large_rules() {
    for (size_t i = 0; i < plan_->called().size(); ++i) {
      if (i > 0 && plan_->size_of(body_of(plan_->called()[i])) <= kLazyNodesMax) continue;
      make(static_cast<RuleId>(i));
      ESP_RETURN_IF_ERROR(limits_.check_time());
      if (network.nodes.size() > limits_.nodes_max) return too_large();
    }
    return {};
  }

  Nfa automaton_of(ExprId body) {
    Nfa nfa = nfa_of(
        *ir_, body,
        [this](RuleId rule) {
          if (!properties_->productive(rule)) return kNeverRule;
          return plan_->inlined(rule) ? kInlineRule : plan_->call_of(rule);
        },
        limits_, kDeterminisedMax);
    if (nfa.states.size() > kDeterminisedMax) return nfa;
    const size_t bound = std::max<size_t>(256, limits_.dfa_growth_max * nfa.states.size());
    std::optional<Nfa> dfa = determinised(nfa, bound, limits_);
    if (!dfa) return nfa;
    return minimised(*dfa, limits_);
  }

  const std::shared_ptr<const Ir> ir_;  // shared with the frontend; rules are built from it later
  GrammarLimits limits_;
  std::unique_ptr<RulePlan> plan_;
  std::unique_ptr<RuleProperties> properties_;
  NetworkGrowth growth_ = NetworkGrowth::kDoubles;  // kTight from the end of begin() on
  size_t fixed_bytes_ = 0;                          // of what no longer grows
  std::atomic<size_t> bytes_ = 0;
};

size_t Network::num_bytes() const {
  return bytes_of_lists(*this) + bytes_of_names(*this);
}

NetworkBuilder::NetworkBuilder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NetworkBuilder::~NetworkBuilder() = default;
Network& NetworkBuilder::network() { return impl_->network; }
void NetworkBuilder::make(RuleId rule) { impl_->make(rule); }
size_t NetworkBuilder::num_bytes() const { return impl_->num_bytes(); }

Result<std::unique_ptr<NetworkBuilder>> NetworkBuilder::plan(std::shared_ptr<const Ir> ir,
                                                             RuleId root,
                                                             const GrammarLimits& limits) {
  auto impl = std::make_unique<Impl>(std::move(ir), limits);
  ESP_RETURN_IF_ERROR(impl->begin(root));
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
