#include "grammar/automata/earley_closure.h"

#include <algorithm>
#include <string>

#include "grammar/automata/completed_value.h"

namespace espalier::grammar {
namespace {

// Follows an edge of the counter; returns false where the counter forbids it.
bool count_step(const Network& network, const Network::CountEdge& edge, EarleyItem& item) {
  const IrRules::Counter& counter =
      network.counters[static_cast<size_t>(network.nodes[item.node].counter)];
  item.node = edge.target;
  if (!edge.tick) return item.count >= counter.min;
  if (counter.max == IrRules::kNoMax) {
    item.count = std::min(item.count + 1, counter.min);
    return true;
  }
  ++item.count;
  return uint64_t{item.count} + edge.room <= counter.max;
}

}  // namespace

EarleyClosure::EarleyClosure(const Network& network, const GrammarLimits& limits,
                             NetworkBuilder* builder, EarleySets& sets)
    : network_(network),
      builder_(builder),
      sets_(sets),
      sets_max_(limits.earley_sets_max),
      items_max_(limits.earley_items_max),
      bytes_max_(limits.earley_bytes_max),
      items_per_call_max_(limits.earley_items_per_call_max) {}

// Earley's completion: a rule has ended, so every item of the return state's set that waits for the
// rule advances. A rule that began in the set under construction has matched the empty text; its
// callers advanced when they predicted it.
void EarleyClosure::complete(ReturnId return_id, SetId current, std::vector<EarleyItem>& out,
                             bool& accepting) const {
  if (return_id == ReturnStates::kRoot) {
    accepting = true;
    return;
  }
  const ReturnStates::State& origin = returns_[return_id];
  if (origin.set == current) return;
  for (const EarleyCall& call : sets_.calls_of(origin.set, origin.rule))
    out.push_back({call.target, call.return_id, call.count});
}

SetId EarleyClosure::intern(std::vector<EarleyItem>& kernel, const Text* text, bool& needs_text) {
  const auto returns = [&](const EarleyItem& item) { return network_.only_final(item.node); };
  if (std::ranges::none_of(kernel, returns)) {
    return kernel.empty() ? EarleySets::kDead : intern_settled(kernel);
  }
  settled_.clear();
  seen_.clear();
  for (const EarleyItem& item : kernel) seen_.insert(item);
  bool accepting = false;
  while (!kernel.empty()) {
    const EarleyItem item = kernel.back();
    kernel.pop_back();
    if (!returns(item)) {
      settled_.push_back(item);
      continue;
    }
    if (item.return_id == ReturnStates::kUnknown) {
      needs_text = true;
      return EarleySets::kNeedsText;
    }
    const int32_t check = network_.nodes[item.node].check;
    if (check >= 0) {
      needs_text = true;
      if (text == nullptr) return EarleySets::kNeedsText;
      if (!passes(check, *text)) continue;
    }
    returned_.clear();
    complete(item.return_id, EarleySets::kUnknown, returned_, accepting);
    // An accepting item stays in the kernel.
    if (item.return_id == ReturnStates::kRoot) settled_.push_back(item);
    for (const EarleyItem& next : returned_) {
      if (seen_.insert(next)) kernel.push_back(next);
    }
  }
  std::sort(settled_.begin(), settled_.end());
  return settled_.empty() ? EarleySets::kDead : intern_settled(settled_);
}

SetId EarleyClosure::intern_settled(std::span<const EarleyItem> kernel) {
  EarleySets::Slot slot;
  if (const SetId known = sets_.find(kernel, slot); known != EarleySets::kDead) return known;
  if (full() || kernel.size() > items_max_) {
    give_up();
    return EarleySets::kDead;
  }
  const SetId id = sets_.add(kernel, slot);
  close(id);
  return id;
}

bool EarleyClosure::full() { return update_num_bytes() >= bytes_max_ || sets_.size() >= sets_max_; }

size_t EarleyClosure::update_num_bytes() {
  const size_t bytes = sets_.num_bytes() + returns_.num_bytes() + seen_.num_bytes() +
                       held_bytes(settled_) + held_bytes(returned_) + held_bytes(work_) +
                       held_bytes(scanning_) + held_bytes(calls_);
  bytes_.store(bytes, std::memory_order_relaxed);
  return bytes;
}

// Completes a new set with everything that follows from its kernel without reading a byte.
void EarleyClosure::close(SetId id) {
  const std::span<const EarleyItem> kernel = sets_.kernel(id);
  work_.assign(kernel.begin(), kernel.end());
  seen_.clear();
  for (const EarleyItem& item : work_) seen_.insert(item);
  calls_.clear();
  scanning_.clear();
  bool accepting = false;
  size_t followed = 0;
  for (; !work_.empty(); ++followed) {
    const EarleyItem item = work_.back();
    work_.pop_back();
    follow(item, id, accepting);
  }
  if (scanning_.size() + calls_.size() > items_max_) give_up();
  spend(followed);
  std::sort(calls_.begin(), calls_.end());
  calls_.erase(std::unique(calls_.begin(), calls_.end()), calls_.end());
  std::sort(scanning_.begin(), scanning_.end());
  sets_.close(id, scanning_, calls_, accepting);
}

// Adds what one item of the set leads to.
void EarleyClosure::follow(const EarleyItem& item, SetId id, bool& accepting) {
  // A copy, since building rules moves the nodes.
  const Network::Node node = network_.nodes[item.node];
  if (node.bytes_begin != node.bytes_end) scanning_.push_back(item);
  if (node.final) {
    returned_.clear();
    complete(item.return_id, id, returned_, accepting);
    for (const EarleyItem& next : returned_) add(next);
  }
  for (uint32_t i = node.counts_begin; i < node.counts_end; ++i) {
    EarleyItem next = item;
    if (count_step(network_, network_.count_edges[i], next)) add(next);
  }
  for (uint32_t i = node.calls_begin; i < node.calls_end; ++i) {
    const Network::CallEdge edge = network_.call_edges[i];
    if (network_.has_room(edge.target, item.count)) call(edge, item, id);
  }
}

// Earley's prediction: adds the start of the rule that the edge calls.
void EarleyClosure::call(const Network::CallEdge& edge, const EarleyItem& item, SetId id) {
  if (edge.rule == Network::kNoRule) return add({edge.target, item.return_id, item.count});
  if (network_.starts[edge.rule] == Network::kNotBuilt) builder_->make(edge.rule);
  const NodeId start = network_.starts[edge.rule];
  if (edge.tail) return add({start, item.return_id});
  calls_.push_back({edge.rule, edge.target, item.return_id, item.count});
  add({start, returns_.id_of(id, edge.rule)});
  if (network_.nullable[edge.rule]) add({edge.target, item.return_id, item.count});
}

bool EarleyClosure::passes(int32_t check, const Text& text) {
  const size_t size = completed_value_size(text.before, text.last);
  const std::string_view before = text.before.substr(0, text.before.size() - size);
  std::string value(text.before.substr(before.size()));
  value += static_cast<char>(text.last);
  const IrRules::Check& wanted = network_.checks[static_cast<size_t>(check)];
  return wanted.checker->holds(wanted.number, before, value);
}

}  // namespace espalier::grammar
