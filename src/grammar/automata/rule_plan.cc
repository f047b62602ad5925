#include "grammar/automata/rule_plan.h"

#include <algorithm>
#include <utility>

#include "grammar/automata/held_bytes.h"
#include "grammar/automata/nfa.h"

namespace espalier::grammar {
namespace {

int64_t num_ranges(const ByteSet& set) { return static_cast<int64_t>((set & ~(set << 1)).count()); }

}  // namespace

RulePlan::RulePlan(const Ir& ir, RuleId root, const GrammarLimits& limits)
    : ir_(ir),
      limits_(limits),
      root_(root),
      rules_(ir.rules().size()),
      sizes_(ir.size(), -1),
      seen_(ir.size(), 0) {
  plan(root);
}

void RulePlan::forget_searches() {
  finished_ = {};
  reached_ = {};
  sizes_ = {};
  seen_ = {};
}

size_t RulePlan::num_bytes() const {
  return held_bytes(rules_) + held_bytes(called_) + held_bytes(finished_) + held_bytes(reached_) +
         held_bytes(sizes_) + held_bytes(seen_);
}

// Appends the rules that `expr` names, each at least once; records the reached expressions.
void RulePlan::references(ExprId expr, std::vector<RuleId>& out) {
  std::vector<ExprId> stack = {expr};
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
void RulePlan::plan(RuleId root) {
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
  called_.push_back(root);
  rules_[root].call = 0;
  enter(root);
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

void RulePlan::close_component(std::vector<RuleId>& stack, RuleId head, bool calls_itself) {
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
      rules_[member].call = static_cast<int32_t>(called_.size());
      called_.push_back(member);
    }
  }
}

// Returns whether the rule is a lexeme, whose masks are precomputed as long as it stays a rule.
bool RulePlan::has_tags(RuleId rule) const {
  const ExprId body = ir_.rules()[rule].body;
  return is_deterministic_graph(ir_, body) && !ir_.graph_of(body).tags.empty();
}

// Estimates the states that nfa_of() makes for `expr`, with room for its edges; saturating.
int64_t RulePlan::size_of(ExprId expr) {
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

}  // namespace espalier::grammar
