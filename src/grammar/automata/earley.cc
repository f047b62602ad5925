#include "grammar/automata/earley.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/rng.h"

namespace espalier::grammar {
namespace {

// Returns whether the quote at `at` is escaped, that is, preceded by an odd number of backslashes.
bool escaped_quote(std::string_view text, size_t at) {
  size_t slashes = 0;
  while (slashes < at && text[at - slashes - 1] == '\\') ++slashes;
  return slashes % 2 == 1;
}

// Returns the offset of the opening quote of the string whose closing quote is at `end`; 0 when
// there is none.
size_t string_begin(std::string_view text, size_t end) {
  while (end > 0) {
    --end;
    if (text[end] == '"' && !escaped_quote(text, end)) return end;
  }
  return 0;
}

// Returns how many bytes at the end of `text` belong to the JSON value that the byte `last`
// completes.
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

uint32_t EarleyRecogniser::hash_of(std::span<const Item> items) {
  uint64_t h = items.size();
  for (const Item& item : items)
    h = mix64(h ^ (uint64_t{item.node} << 32 | item.return_id) ^ uint64_t{item.count} << 17);
  return static_cast<uint32_t>(h);
}

void EarleyRecogniser::Seen::clear() {
  ++round_;
  count_ = 0;
}

bool EarleyRecogniser::Seen::insert(const Item& item) {
  if (2 * ++count_ > slots_.size()) {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    count_ = 1;
    for (const Slot& slot : old) {
      if (slot.round == round_) insert(slot.item);
    }
  }
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash_of({&item, 1}) & mask;; i = (i + 1) & mask) {
    Slot& slot = slots_[i];
    if (slot.round != round_) {
      slot = {item, round_};
      return true;
    }
    if (slot.item == item) {
      --count_;
      return false;
    }
  }
}

EarleyRecogniser::EarleyRecogniser(const Network& network, const GrammarLimits& limits,
                                   uint32_t reach, NetworkBuilder* builder)
    : network_(network),
      builder_(builder),
      num_classes_(static_cast<size_t>(network.num_classes())),
      sets_max_(limits.earley_sets_max),
      items_max_(limits.earley_items_max),
      bytes_max_(limits.earley_bytes_max),
      items_per_call_max_(limits.earley_items_per_call_max),
      reach_(reach),
      table_(256, kDead),
      return_table_(256, kRootReturn) {
  return_states_.resize(2);  // slots 0 and 1 are kRootReturn and kUnknownReturn
  sets_.emplace_back();      // set 0 is kDead
  transitions_.append(num_classes_, kDead);
  canonical_.append(1, kDead);
  accepting_.append(1, false);
  kernel_ = {{network_.starts[0], kRootReturn}};
  bool asked = false;
  start_ = intern(kernel_, nullptr, asked);
}

ReturnId EarleyRecogniser::return_id_of(SetId set, RuleId rule) {
  if (2 * return_states_.size() > return_table_.size()) grow_return_table();
  const size_t mask = return_table_.size() - 1;
  for (size_t i = mix64(uint64_t{set} << 32 | rule) & mask;; i = (i + 1) & mask) {
    ReturnId& slot = return_table_[i];
    if (slot == kRootReturn) {
      slot = static_cast<ReturnId>(return_states_.size());
      return_states_.push_back({set, rule});
      return slot;
    }
    if (return_states_[slot].set == set && return_states_[slot].rule == rule) return slot;
  }
}

void EarleyRecogniser::grow_return_table() {
  return_table_.assign(2 * return_table_.size(), kRootReturn);
  const size_t mask = return_table_.size() - 1;
  for (ReturnId id = kUnknownReturn + 1; id < return_states_.size(); ++id) {
    size_t i = mix64(uint64_t{return_states_[id].set} << 32 | return_states_[id].rule) & mask;
    while (return_table_[i] != kRootReturn) i = (i + 1) & mask;
    return_table_[i] = id;
  }
}

// Earley's completion: a rule has ended, so every item of the return state's set that waits for the
// rule advances. A rule that began in the set under construction has matched the empty text; its
// callers advanced when they predicted it.
void EarleyRecogniser::complete(ReturnId return_id, SetId current, std::vector<Item>& out,
                                bool& accepting) const {
  if (return_id == kRootReturn) {
    accepting = true;
    return;
  }
  const ReturnState& origin = return_states_[return_id];
  if (origin.set == current) return;
  const Range range = sets_[origin.set].waiting;
  const std::span<const Waiting> waiting(waiting_.data() + range.begin, range.size);
  auto it = std::lower_bound(waiting.begin(), waiting.end(), origin.rule,
                             [](const Waiting& w, RuleId rule) { return w.rule < rule; });
  for (; it != waiting.end() && it->rule == origin.rule; ++it)
    out.push_back({it->target, it->return_id, it->count});
}

// Interns a set by its kernel: the items that the last byte led to, with items that can only return
// replaced by the items that they return to, so that the same position of a text is the same set
// however it was reached. `needs_text` is set when a check reads the text; without a text the
// result is then kNeedsText. REQUIRES: `kernel` is sorted and free of duplicates. The kernel is
// consumed.
SetId EarleyRecogniser::intern(std::vector<Item>& kernel, const Text* text, bool& asked) {
  const auto returns = [&](const Item& item) { return network_.only_final(item.node); };
  if (std::ranges::none_of(kernel, returns)) {
    return kernel.empty() ? kDead : intern_settled(kernel);
  }
  settled_.clear();
  seen_.clear();
  for (const Item& item : kernel) seen_.insert(item);
  bool accepting = false;
  while (!kernel.empty()) {
    const Item item = kernel.back();
    kernel.pop_back();
    if (!returns(item)) {
      settled_.push_back(item);
      continue;
    }
    if (item.return_id == kUnknownReturn) {
      asked = true;
      return kNeedsText;
    }
    const int32_t check = network_.nodes[item.node].check;
    if (check >= 0) {
      asked = true;
      if (text == nullptr) return kNeedsText;
      if (!passes(check, *text)) continue;
    }
    returned_.clear();
    const bool was_root = item.return_id == kRootReturn;
    complete(item.return_id, kUnknown, returned_, accepting);
    if (was_root) settled_.push_back(item);  // an accepting item stays in the kernel
    for (const Item& next : returned_) {
      if (seen_.insert(next)) kernel.push_back(next);
    }
  }
  std::sort(settled_.begin(), settled_.end());
  return settled_.empty() ? kDead : intern_settled(settled_);
}

SetId EarleyRecogniser::intern_settled(const std::vector<Item>& settled) {
  const uint32_t hash = hash_of(settled);
  if (2 * sets_.size() > table_.size()) grow_table();
  const size_t mask = table_.size() - 1;
  size_t at = hash & mask;
  for (; table_[at] != kDead; at = (at + 1) & mask) {
    const Set& set = sets_[table_[at]];
    if (set.hash == hash && std::ranges::equal(items(set.kernel), settled)) return table_[at];
  }
  if (full() || settled.size() > items_max_) {
    exhausted_ = true;
    return kDead;
  }
  const auto id = static_cast<SetId>(sets_.size());
  table_[at] = id;
  Set& set = sets_.emplace_back();
  set.hash = hash;
  set.kernel = {static_cast<uint32_t>(items_.size()), static_cast<uint32_t>(settled.size())};
  items_.insert(items_.end(), settled.begin(), settled.end());
  transitions_.append(num_classes_, kUnknown);
  canonical_.append(1, kUnknown);
  accepting_.append(1, false);
  close(id);
  return id;
}

bool EarleyRecogniser::full() {
  const size_t bytes = transitions_.size() * sizeof(SetId) + items_.size() * sizeof(Item) +
                       waiting_.size() * sizeof(Waiting) +
                       sets_.size() * (sizeof(Set) + sizeof(SetId) + sizeof(bool));
  bytes_.store(bytes, std::memory_order_relaxed);
  return sets_.size() >= sets_max_ || bytes >= bytes_max_;
}

void EarleyRecogniser::grow_table() {
  table_.assign(2 * table_.size(), kDead);
  const size_t mask = table_.size() - 1;
  for (SetId id = 1; id < sets_.size(); ++id) {
    size_t i = sets_[id].hash & mask;
    while (table_[i] != kDead) i = (i + 1) & mask;
    table_[i] = id;
  }
}

// Earley's prediction and completion: adds to set `id` everything that follows from its kernel
// without reading a byte.
void EarleyRecogniser::close(SetId id) {
  const Range kernel = sets_[id].kernel;
  work_.assign(items_.begin() + kernel.begin, items_.begin() + kernel.begin + kernel.size);
  seen_.clear();
  for (const Item& item : work_) seen_.insert(item);
  waiting_now_.clear();
  scanning_now_.clear();
  bool accepting = false;
  const auto add = [&](const Item& item) {
    if (seen_.insert(item)) work_.push_back(item);
  };
  size_t followed = 0;
  for (; !work_.empty(); ++followed) {
    const Item item = work_.back();
    work_.pop_back();
    // a copy, since building rules moves the nodes
    const Network::Node node = network_.nodes[item.node];
    if (node.bytes_begin != node.bytes_end) scanning_now_.push_back(item);
    if (node.final) {
      returned_.clear();
      complete(item.return_id, id, returned_, accepting);
      for (const Item& next : returned_) add(next);
    }
    for (uint32_t i = node.counts_begin; i < node.counts_end; ++i) {
      Item next = item;
      if (count_step(network_.count_edges[i], next)) add(next);
    }
    for (uint32_t i = node.calls_begin; i < node.calls_end; ++i) {
      const Network::CallEdge call = network_.call_edges[i];
      if (!has_room(call.target, item.count)) continue;
      if (call.rule == Network::kNoRule) {
        add({call.target, item.return_id, item.count});
        continue;
      }
      if (network_.starts[call.rule] == Network::kNotBuilt) builder_->make(call.rule);
      const NodeId start = network_.starts[call.rule];
      if (call.tail) {
        add({start, item.return_id});
        continue;
      }
      waiting_now_.push_back({call.rule, call.target, item.return_id, item.count});
      add({start, return_id_of(id, call.rule)});
      if (network_.nullable[call.rule]) add({call.target, item.return_id, item.count});
    }
  }
  if (scanning_now_.size() + waiting_now_.size() > items_max_) exhausted_ = true;
  spend(followed);
  std::sort(waiting_now_.begin(), waiting_now_.end());
  waiting_now_.erase(std::unique(waiting_now_.begin(), waiting_now_.end()), waiting_now_.end());
  std::sort(scanning_now_.begin(), scanning_now_.end());
  Set& set = sets_[id];
  if (std::ranges::equal(scanning_now_, items(kernel))) {
    set.scanning = kernel;
  } else {
    set.scanning = {static_cast<uint32_t>(items_.size()),
                    static_cast<uint32_t>(scanning_now_.size())};
    items_.insert(items_.end(), scanning_now_.begin(), scanning_now_.end());
  }
  set.waiting = {static_cast<uint32_t>(waiting_.size()),
                 static_cast<uint32_t>(waiting_now_.size())};
  waiting_.insert(waiting_.end(), waiting_now_.begin(), waiting_now_.end());
  accepting_.set(id, accepting);
}

// Follows an edge of the counter; returns false where the counter forbids it.
bool EarleyRecogniser::count_step(const Network::CountEdge& edge, Item& item) const {
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

// Returns whether the ticks between `node` and the end of its rule still fit under the counter's
// maximum.
bool EarleyRecogniser::has_room(NodeId node, uint32_t count) const {
  const Network::Node& at = network_.nodes[node];
  if (at.counter < 0) return true;
  const uint32_t max = network_.counters[static_cast<size_t>(at.counter)].max;
  return max == Ir::kNoMax || uint64_t{count} + at.room <= max;
}

// One byte ticks at most once, so counts that are farther than `reach_` from both bounds behave
// alike.
uint32_t EarleyRecogniser::canonical_count(const Item& item) const {
  const int32_t number = network_.nodes[item.node].counter;
  if (number < 0) return item.count;
  const Ir::Counter& counter = network_.counters[static_cast<size_t>(number)];
  const uint64_t margin = uint64_t{reach_} + network_.room_max[static_cast<size_t>(number)] + 1;
  const bool far_from_max = counter.max == Ir::kNoMax || item.count + margin < counter.max;
  if (!far_from_max) return item.count;
  if (item.count >= counter.min) return counter.min;
  return item.count + margin < counter.min ? 0 : item.count;
}

bool EarleyRecogniser::same_but_counts(SetId a, SetId b) const {
  if (a == kDead || b == kDead) return a == b;
  return std::ranges::equal(
      items(sets_[a].kernel), items(sets_[b].kernel),
      [](const Item& x, const Item& y) { return x.node == y.node && x.return_id == y.return_id; });
}

EarleyRecogniser::Inside EarleyRecogniser::inside(SetId set) const {
  const Range kernel = sets_[set].kernel;
  if (kernel.size != 1) return {};
  const Item& item = items_[kernel.begin];
  const Network::Node& node = network_.nodes[item.node];
  if (node.tag == 0 || node.counter < 0) return {node.tag};
  const Ir::Counter& counter = network_.counters[static_cast<size_t>(node.counter)];
  return {node.tag, counter.min - std::min(counter.min, item.count),
          counter.max == Ir::kNoMax ? Ir::kNoMax : counter.max - item.count};
}

std::optional<NodeId> EarleyRecogniser::only_node(SetId set) const {
  const Range kernel = sets_[set].kernel;
  if (kernel.size != 1) return std::nullopt;
  return items_[kernel.begin].node;
}

SetId EarleyRecogniser::part(SetId set, size_t index) {
  return intern_settled({items(sets_[set].kernel)[index]});
}

SetId EarleyRecogniser::opened(SetId set) {
  const std::span<const Item> kernel = items(sets_[set].kernel);
  if (kernel.size() != 1 || kernel[0].return_id == kUnknownReturn ||
      !network_.nodes[kernel[0].node].closed || network_.only_final(kernel[0].node)) {
    return kDead;
  }
  return intern_settled({{kernel[0].node, kUnknownReturn, kernel[0].count}});
}

SetId EarleyRecogniser::after_lexeme(SetId set) {
  const Item item = items_[sets_[set].kernel.begin];
  kernel_ = {{network_.nodes[item.node].end, item.return_id, item.count}};
  bool asked = false;
  return intern(kernel_, nullptr, asked);
}

SetId EarleyRecogniser::canonical(SetId id) {
  if (network_.counters.empty() || id == kDead) return id;
  if (canonical_[id] != kUnknown) return canonical_[id];
  const std::span<const Item> own = items(sets_[id].kernel);
  std::vector<Item> kernel(own.begin(), own.end());
  for (Item& item : kernel) {
    item.count = canonical_count(item);
    if (item.return_id <= kUnknownReturn) continue;
    const ReturnState origin = return_states_[item.return_id];
    item.return_id = return_id_of(canonical(origin.set), origin.rule);
  }
  std::sort(kernel.begin(), kernel.end());
  kernel.erase(std::unique(kernel.begin(), kernel.end()), kernel.end());
  const bool same = std::ranges::equal(kernel, items(sets_[id].kernel));
  const SetId made = same ? id : intern_settled(kernel);
  canonical_.set(id, exhausted_ ? id : made);
  return canonical_[id];
}

bool EarleyRecogniser::passes(int32_t check, const Text& text) {
  std::string read(text.before.substr(text.before.size() - value_size(text.before, text.last)));
  read += static_cast<char>(text.last);
  const Ir::Check& asked = network_.checks[static_cast<size_t>(check)];
  return asked.checker->holds(asked.number, read);
}

// Returns whether the node has byte edges only, so that one item at it is the whole set.
bool EarleyRecogniser::only_bytes(NodeId id) const {
  const Network::Node& node = network_.nodes[id];
  return !node.final && node.calls_begin == node.calls_end && node.counts_begin == node.counts_end;
}

EarleyRecogniser::Position EarleyRecogniser::position_of(SetId set) const {
  if (set == kDead || set == kNeedsText) return {set};
  const Range kernel = sets_[set].kernel;
  if (kernel.size != 1) return {set};
  const Item& item = items_[kernel.begin];
  if (!only_bytes(item.node)) return {set};
  return {kInRule, item.node, item.return_id, item.count};
}

SetId EarleyRecogniser::set_of(const Position& position) {
  return position.set == kInRule
             ? intern_settled({{position.node, position.return_id, position.count}})
             : position.set;
}

EarleyRecogniser::Position EarleyRecogniser::step_without_text(const Position& from, uint8_t byte) {
  std::span<const Item> from_items;
  const Item item{from.node, from.return_id, from.count};
  if (from.set == kInRule) {
    from_items = {&item, 1};
  } else {
    const SetId to = transitions_[size_t{from.set} * num_classes_ + network_.byte_class[byte]];
    if (to != kUnknown) return position_of(to);
    from_items = items(sets_[from.set].scanning);
  }
  spend(from_items.size());
  if (exhausted_) return {};
  Position to;
  for (const Item& one : from_items) {
    for (const Network::ByteEdge& edge : network_.bytes_of(one.node)) {
      if (byte < edge.low || edge.high < byte || !has_room(edge.target, one.count)) continue;
      const Position next{kInRule, edge.target, one.return_id, one.count};
      if (to == next) continue;
      if (to.set == kDead && only_bytes(edge.target)) {
        to = next;
        continue;
      }
      // Several items, or one item at a node with other than byte edges, become a set of their own.
      if (from.set != kInRule) return position_of(step_slow(from.set, byte, nullptr));
      return position_of(step_in_rule(item, byte));
    }
  }
  return to;
}

SetId EarleyRecogniser::step_in_rule(const Item& item, uint8_t byte) {
  kernel_.clear();
  for (const Network::ByteEdge& edge : network_.bytes_of(item.node)) {
    if (edge.low <= byte && byte <= edge.high && has_room(edge.target, item.count))
      kernel_.push_back({edge.target, item.return_id, item.count});
  }
  std::sort(kernel_.begin(), kernel_.end());
  kernel_.erase(std::unique(kernel_.begin(), kernel_.end()), kernel_.end());
  bool asked = false;
  const SetId to = intern(kernel_, nullptr, asked);
  return asked ? kNeedsText : to;
}

// Returns whether the node has byte edges only and no self-loop. A walk passes such a node once, so
// a set for it would not be reused.
bool EarleyRecogniser::is_chain(NodeId node) {
  if (chains_.size() <= node) chains_.resize(network_.nodes.size(), 0);
  uint8_t& known = chains_[node];
  if (known == 0) {
    const bool loops =
        std::ranges::any_of(network_.bytes_of(node),
                            [&](const Network::ByteEdge& edge) { return edge.target == node; });
    known = only_bytes(node) && !loops ? 1 : 2;
  }
  return known == 1;
}

EarleyRecogniser::Position EarleyRecogniser::step_along_slow(const Position& from, uint8_t byte) {
  const Item item{from.node, from.return_id, from.count};
  const std::span<const Item> from_items =
      from.set == kInRule ? std::span(&item, 1) : items(sets_[from.set].scanning);
  spend(from_items.size());
  if (exhausted_) return {};
  Position to;
  for (const Item& one : from_items) {
    for (const Network::ByteEdge& edge : network_.bytes_of(one.node)) {
      if (byte < edge.low || edge.high < byte || !has_room(edge.target, one.count)) continue;
      const Position next{kInRule, edge.target, one.return_id, one.count};
      if (to == next) continue;
      if (to.set != kDead || !is_chain(edge.target)) {
        return {from.set == kInRule ? step_in_rule(item, byte)
                                    : step_slow(from.set, byte, nullptr)};
      }
      to = next;
    }
  }
  return to;
}

void EarleyRecogniser::add_bytes(const Position& position, ByteMask& bytes) const {
  const auto add = [&](NodeId node) {
    for (const Network::ByteEdge& edge : network_.bytes_of(node)) bytes.add(edge.low, edge.high);
  };
  if (position.set == kInRule) return add(position.node);
  if (!position.leads_on()) return;
  for (const Item& item : items(sets_[position.set].scanning)) add(item.node);
}

void EarleyRecogniser::add_differing_bytes(const Position& a, const Position& b,
                                           ByteMask& bytes) const {
  ByteMask both;
  add_bytes(a, both);
  add_bytes(b, both);
  const bool alike =
      a.set == kInRule && b.set == kInRule && a.return_id == b.return_id && a.count == b.count;
  // Edges are sorted, so the two lists are merged; overlapping ranges within one list are not
  // merged.
  const std::span<const Network::ByteEdge> x = network_.bytes_of(a.node);
  const std::span<const Network::ByteEdge> y = network_.bytes_of(b.node);
  const auto disjoint = [](std::span<const Network::ByteEdge> edges) {
    for (size_t i = 1; i < edges.size(); ++i) {
      if (edges[i].low <= edges[i - 1].high) return false;
    }
    return true;
  };
  if (alike && disjoint(x) && disjoint(y)) {
    for (size_t i = 0, j = 0; i < x.size() && j < y.size();) {
      const int low = std::max(x[i].low, y[j].low), high = std::min(x[i].high, y[j].high);
      if (low <= high && x[i].target == y[j].target) both.remove(low, high);
      (x[i].high < y[j].high ? i : j) += 1;
    }
  }
  for (size_t w = 0; w < both.words.size(); ++w) bytes.words[w] |= both.words[w];
}

SetId EarleyRecogniser::step_slow(SetId from, uint8_t byte, const std::string_view* text) {
  // An exhausted recogniser still follows known text along known sets, but explores no further
  // tokens.
  if (exhausted_ && text == nullptr) return kDead;
  // Many items often lead to the same targets where parts are optional; duplicates are dropped
  // early then.
  constexpr size_t kMany = 1000;
  const std::span<const Item> from_items = items(sets_[from].scanning);
  const bool many = from_items.size() > kMany;
  spend(from_items.size());
  kernel_.clear();
  seen_.clear();
  for (const Item& item : from_items) {
    for (const Network::ByteEdge& edge : network_.bytes_of(item.node)) {
      if (byte < edge.low || edge.high < byte || !has_room(edge.target, item.count)) continue;
      const Item next{edge.target, item.return_id, item.count};
      if (!many || seen_.insert(next)) kernel_.push_back(next);
    }
  }
  if (kernel_.size() > 1) {
    std::sort(kernel_.begin(), kernel_.end());
    kernel_.erase(std::unique(kernel_.begin(), kernel_.end()), kernel_.end());
  }
  bool asked = false;
  SetId to = kDead;
  if (!kernel_.empty()) {
    const Text read{text == nullptr ? std::string_view() : *text, byte};
    to = intern(kernel_, text == nullptr ? nullptr : &read, asked);
  }
  if (!exhausted_) {
    transitions_.set(size_t{from} * num_classes_ + network_.byte_class[byte],
                     asked ? kNeedsText : to);
  }
  return to;
}

}  // namespace espalier::grammar
