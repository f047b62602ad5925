#include "grammar/machine.h"

#include <algorithm>
#include <set>

#include "base/rng.h"

namespace espalier::grammar {

size_t Machine::KeyHash::operator()(const std::vector<Item>& items) const {
  uint64_t h = items.size();
  for (const Item& item : items) h = mix64(h ^ (uint64_t{item.node} << 32 | item.link));
  return h;
}

Machine::Machine(const Network& network, const GrammarLimits& limits)
    : network_(network),
      num_classes_(static_cast<size_t>(network.num_classes())),
      sets_max_(limits.machine_sets_max) {
  links_.push_back({kDead, 0});  // kRootLink
  sets_.emplace_back();          // kDead
  transitions_.assign(num_classes_, kDead);
  start_ = intern({{network_.starts[0], kRootLink}});
}

bool Machine::only_final(NodeId id) const {
  const Network::Node& node = network_.nodes[id];
  return node.final && node.bytes_begin == node.bytes_end && node.calls_begin == node.calls_end;
}

LinkId Machine::link_of(SetId set, RuleId rule) {
  const uint64_t key = uint64_t{set} << 32 | rule;
  const auto [it, added] = link_index_.try_emplace(key, static_cast<LinkId>(links_.size()));
  if (added) links_.push_back({set, rule});
  return it->second;
}

// A rule has ended: whoever waited for it in the state where it was called goes on. A rule that
// began in the state being built has matched nothing; its callers went on when they called it.
void Machine::complete(LinkId link, SetId current, std::vector<Item>& out, bool& accepting) const {
  if (link == kRootLink) {
    accepting = true;
    return;
  }
  const Link& origin = links_[link];
  if (origin.set == current) return;
  const std::vector<Waiting>& waiting = sets_[origin.set].waiting;
  auto it = std::lower_bound(waiting.begin(), waiting.end(), origin.rule,
                             [](const Waiting& w, RuleId rule) { return w.rule < rule; });
  for (; it != waiting.end() && it->rule == origin.rule; ++it)
    out.push_back({it->target, it->link});
}

// States are compared by their kernel: what the last byte led to, with items that can only return
// replaced by where they return to, so that the same place in a text is the same state however it
// was reached.
SetId Machine::intern(std::vector<Item> kernel) {
  std::vector<Item> settled;
  std::set<Item> seen(kernel.begin(), kernel.end());
  bool accepting = false;
  while (!kernel.empty()) {
    const Item item = kernel.back();
    kernel.pop_back();
    if (!only_final(item.node)) {
      settled.push_back(item);
      continue;
    }
    std::vector<Item> returned;
    const bool was_root = item.link == kRootLink;
    complete(item.link, kUnknown, returned, accepting);
    if (was_root) settled.push_back(item);  // the mark of acceptance stays in the key
    for (const Item& next : returned) {
      if (seen.insert(next).second) kernel.push_back(next);
    }
  }
  std::sort(settled.begin(), settled.end());
  if (settled.empty()) return kDead;
  const auto it = index_.find(settled);
  if (it != index_.end()) return it->second;
  if (sets_.size() >= sets_max_) {
    exhausted_ = true;
    return kDead;
  }
  const auto id = static_cast<SetId>(sets_.size());
  sets_.emplace_back();
  transitions_.resize(transitions_.size() + num_classes_, kUnknown);
  index_.emplace(settled, id);
  close(id, std::move(settled));
  return id;
}

// Adds to state `id` all that follows from its kernel without a byte: calls, and returns.
void Machine::close(SetId id, std::vector<Item> work) {
  std::set<Item> seen(work.begin(), work.end());
  std::vector<Waiting> waiting;
  std::vector<Item> scanning;
  bool accepting = false;
  const auto add = [&](Item item) {
    if (seen.insert(item).second) work.push_back(item);
  };
  while (!work.empty()) {
    const Item item = work.back();
    work.pop_back();
    const Network::Node& node = network_.nodes[item.node];
    if (node.bytes_begin != node.bytes_end) scanning.push_back(item);
    if (node.final) {
      std::vector<Item> returned;
      complete(item.link, id, returned, accepting);
      for (const Item& next : returned) add(next);
    }
    for (const Network::CallEdge& call : network_.calls_of(item.node)) {
      const NodeId start = network_.starts[call.rule];
      if (call.tail) {
        add({start, item.link});
        continue;
      }
      waiting.push_back({call.rule, call.target, item.link});
      add({start, link_of(id, call.rule)});
      if (network_.nullable[call.rule]) add({call.target, item.link});
    }
  }
  std::sort(waiting.begin(), waiting.end());
  waiting.erase(std::unique(waiting.begin(), waiting.end()), waiting.end());
  std::sort(scanning.begin(), scanning.end());
  Set& set = sets_[id];
  set.scanning = std::move(scanning);
  set.waiting = std::move(waiting);
  set.accepting = accepting;
}

SetId Machine::step_slow(SetId from, uint8_t byte) {
  std::vector<Item> kernel;
  for (const Item& item : sets_[from].scanning) {
    for (const Network::ByteEdge& edge : network_.bytes_of(item.node)) {
      if (edge.low <= byte && byte <= edge.high) kernel.push_back({edge.target, item.link});
    }
  }
  std::sort(kernel.begin(), kernel.end());
  kernel.erase(std::unique(kernel.begin(), kernel.end()), kernel.end());
  const SetId to = kernel.empty() ? kDead : intern(std::move(kernel));
  if (!exhausted_) transitions_[size_t{from} * num_classes_ + network_.byte_class[byte]] = to;
  return to;
}

bool Machine::must_end(SetId set) {
  if (!accepting(set)) return false;
  return std::ranges::all_of(network_.class_sample,
                             [&](uint8_t sample) { return step(set, sample) == kDead; });
}

int Machine::forced_byte(SetId set) {
  if (set == kDead || accepting(set)) return -1;
  int forced = -1;
  for (size_t c = 0; c < num_classes_; ++c) {
    const uint8_t sample = network_.class_sample[c];
    if (step(set, sample) == kDead) continue;
    if (forced >= 0 || network_.class_size[c] > 1) return -1;
    forced = sample;
  }
  return forced;
}

}  // namespace espalier::grammar
