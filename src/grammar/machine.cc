#include "grammar/machine.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/rng.h"

namespace espalier::grammar {
namespace {

// Whether the quote at `at` stands inside a string, after an odd number of backslashes.
bool escaped_quote(std::string_view text, size_t at) {
  size_t slashes = 0;
  while (slashes < at && text[at - slashes - 1] == '\\') ++slashes;
  return slashes % 2 == 1;
}

// Where the string begins whose closing quote is at `end`; 0 when it does not.
size_t string_begin(std::string_view text, size_t end) {
  while (end > 0) {
    --end;
    if (text[end] == '"' && !escaped_quote(text, end)) return end;
  }
  return 0;
}

// How many bytes at the end of `text` belong to the JSON value that `last` ends after it.
size_t value_size(std::string_view text, uint8_t last) {
  size_t at = text.size();
  if (last == '"') return at - string_begin(text, at);
  if (last != '}' && last != ']') {
    while (at > 0 && (std::isalnum(static_cast<unsigned char>(text[at - 1])) != 0 ||
                      text[at - 1] == '-' || text[at - 1] == '+' || text[at - 1] == '.')) {
      --at;
    }
    return text.size() - at;
  }
  for (int depth = 1; depth > 0 && at > 0;) {
    --at;
    const char c = text[at];
    if (c == '"') {
      at = string_begin(text, at);
    } else if (c == '}' || c == ']') {
      ++depth;
    } else if (c == '{' || c == '[') {
      --depth;
    }
  }
  return text.size() - at;
}

}  // namespace

size_t Machine::KeyHash::operator()(const std::vector<Item>& items) const {
  uint64_t h = items.size();
  for (const Item& item : items)
    h = mix64(h ^ (uint64_t{item.node} << 32 | item.link) ^ mix64(item.count));
  return h;
}

Machine::Machine(const Network& network, const GrammarLimits& limits, uint32_t reach)
    : network_(network),
      num_classes_(static_cast<size_t>(network.num_classes())),
      sets_max_(limits.machine_sets_max),
      reach_(reach) {
  links_.push_back({kDead, 0});  // kRootLink
  sets_.emplace_back();          // kDead
  transitions_.assign(num_classes_, kDead);
  start_ = intern({{network_.starts[0], kRootLink}}, {});
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
    out.push_back({it->target, it->link, it->count});
}

// States are compared by their kernel: what the last byte led to, with items that can only return
// replaced by where they return to, so that the same place in a text is the same state however it
// was reached.
SetId Machine::intern(std::vector<Item> kernel, const Text& text) {
  std::vector<Item> settled;
  std::set<Item> seen(kernel.begin(), kernel.end());
  bool accepting = false;
  while (!kernel.empty()) {
    const Item item = kernel.back();
    kernel.pop_back();
    if (!network_.only_final(item.node)) {
      settled.push_back(item);
      continue;
    }
    const int32_t check = network_.nodes[item.node].check;
    if (check >= 0 && !passes(check, text)) continue;
    std::vector<Item> returned;
    const bool was_root = item.link == kRootLink;
    complete(item.link, kUnknown, returned, accepting);
    if (was_root) settled.push_back(item);  // the mark of acceptance stays in the key
    for (const Item& next : returned) {
      if (seen.insert(next).second) kernel.push_back(next);
    }
  }
  std::sort(settled.begin(), settled.end());
  return settled.empty() ? kDead : intern_settled(std::move(settled));
}

SetId Machine::intern_settled(std::vector<Item> settled) {
  const auto it = index_.find(settled);
  if (it != index_.end()) return it->second;
  if (sets_.size() >= sets_max_) {
    exhausted_ = true;
    return kDead;
  }
  const auto id = static_cast<SetId>(sets_.size());
  sets_.emplace_back();
  transitions_.resize(transitions_.size() + num_classes_, kUnknown);
  sets_[id].kernel = &index_.emplace(settled, id).first->first;
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
    for (const Network::CountEdge& edge : network_.counts_of(item.node)) {
      Item next = item;
      if (count_step(edge, next)) add(next);
    }
    for (const Network::CallEdge& call : network_.calls_of(item.node)) {
      if (!has_room(call.target, item.count)) continue;
      const NodeId start = network_.starts[call.rule];
      if (call.tail) {
        add({start, item.link});
        continue;
      }
      waiting.push_back({call.rule, call.target, item.link, item.count});
      add({start, link_of(id, call.rule)});
      if (network_.nullable[call.rule]) add({call.target, item.link, item.count});
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

// Takes an edge of the counter, if it may.
bool Machine::count_step(const Network::CountEdge& edge, Item& item) const {
  const Ir::Counter& counter =
      network_.counters[static_cast<size_t>(network_.nodes[item.node].counter)];
  item.node = edge.target;
  if (!edge.tick) return item.count >= counter.min;
  if (counter.max == Ir::kNoMax) {
    item.count = std::min(item.count + 1, counter.min);
    return true;
  }
  ++item.count;
  return uint64_t{item.count} + edge.room <= counter.max;
}

// Whether the ticks that the way from `node` to its rule's end takes still fit.
bool Machine::has_room(NodeId node, uint32_t count) const {
  const Network::Node& at = network_.nodes[node];
  if (at.counter < 0) return true;
  const uint32_t max = network_.counters[static_cast<size_t>(at.counter)].max;
  return max == Ir::kNoMax || uint64_t{count} + at.room <= max;
}

// A byte ticks once at most.
uint32_t Machine::canonical_count(const Item& item) const {
  const int32_t number = network_.nodes[item.node].counter;
  if (number < 0) return item.count;
  const Ir::Counter& counter = network_.counters[static_cast<size_t>(number)];
  const uint64_t margin = uint64_t{reach_} + network_.room_max + 1;
  const bool far_from_max = counter.max == Ir::kNoMax || item.count + margin < counter.max;
  if (!far_from_max) return item.count;
  if (item.count >= counter.min) return counter.min;
  return item.count + margin < counter.min ? 0 : item.count;
}

bool Machine::same_but_counts(SetId a, SetId b) const {
  if (a == kDead || b == kDead) return a == b;
  return std::ranges::equal(*sets_[a].kernel, *sets_[b].kernel, [](const Item& x, const Item& y) {
    return x.node == y.node && x.link == y.link;
  });
}

SetId Machine::canonical(SetId id) {
  if (network_.counters.empty() || id == kDead) return id;
  if (sets_[id].canonical != kUnknown) return sets_[id].canonical;
  std::vector<Item> kernel = *sets_[id].kernel;
  for (Item& item : kernel) {
    item.count = canonical_count(item);
    if (item.link == kRootLink) continue;
    const Link origin = links_[item.link];
    item.link = link_of(canonical(origin.set), origin.rule);
  }
  std::sort(kernel.begin(), kernel.end());
  kernel.erase(std::unique(kernel.begin(), kernel.end()), kernel.end());
  const SetId made = kernel == *sets_[id].kernel ? id : intern_settled(std::move(kernel));
  sets_[id].canonical = exhausted_ ? id : made;
  return sets_[id].canonical;
}

bool Machine::passes(int32_t check, const Text& text) {
  ++checks_made_;
  std::string read(text.before.substr(text.before.size() - value_size(text.before, text.last)));
  read += static_cast<char>(text.last);
  const Ir::Check& asked = network_.checks[static_cast<size_t>(check)];
  return asked.checker->holds(asked.number, read);
}

SetId Machine::step_slow(SetId from, uint8_t byte, std::string_view text) {
  std::vector<Item> kernel;
  for (const Item& item : sets_[from].scanning) {
    for (const Network::ByteEdge& edge : network_.bytes_of(item.node)) {
      if (edge.low <= byte && byte <= edge.high && has_room(edge.target, item.count))
        kernel.push_back({edge.target, item.link, item.count});
    }
  }
  std::sort(kernel.begin(), kernel.end());
  kernel.erase(std::unique(kernel.begin(), kernel.end()), kernel.end());
  const uint64_t checks_before = checks_made_;
  const SetId to = kernel.empty() ? kDead : intern(std::move(kernel), {text, byte});
  if (!exhausted_) {
    transitions_[size_t{from} * num_classes_ + network_.byte_class[byte]] =
        checks_made_ == checks_before ? to : kDepends;
  }
  return to;
}

bool Machine::must_end(SetId set, std::string_view text) {
  if (!accepting(set)) return false;
  return std::ranges::all_of(network_.class_sample,
                             [&](uint8_t sample) { return step(set, sample, text) == kDead; });
}

int Machine::forced_byte(SetId set, std::string_view text) {
  if (set == kDead || accepting(set)) return -1;
  int forced = -1;
  for (size_t c = 0; c < num_classes_; ++c) {
    const uint8_t sample = network_.class_sample[c];
    if (step(set, sample, text) == kDead) continue;
    if (forced >= 0 || network_.class_size[c] > 1) return -1;
    forced = sample;
  }
  return forced;
}

}  // namespace espalier::grammar
