#include "grammar/automata/earley_sets.h"

#include <algorithm>
#include <utility>

#include "base/rng.h"

namespace espalier::grammar {

uint32_t hash_of(std::span<const EarleyItem> items) {
  uint64_t h = items.size();
  for (const EarleyItem& item : items)
    h = mix64(h ^ (uint64_t{item.node} << 32 | item.return_id) ^ uint64_t{item.count} << 17);
  return static_cast<uint32_t>(h);
}

void SeenItems::clear() {
  ++round_;
  count_ = 0;
}

bool SeenItems::insert(const EarleyItem& item) {
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

ReturnId ReturnStates::id_of(SetId set, RuleId rule) {
  if (2 * states_.size() > table_.size()) grow();
  const size_t mask = table_.size() - 1;
  for (size_t i = mix64(uint64_t{set} << 32 | rule) & mask;; i = (i + 1) & mask) {
    ReturnId& slot = table_[i];
    if (slot == kRoot) {
      slot = static_cast<ReturnId>(states_.size());
      states_.push_back({set, rule});
      return slot;
    }
    if (states_[slot].set == set && states_[slot].rule == rule) return slot;
  }
}

void ReturnStates::grow() {
  table_.assign(2 * table_.size(), kRoot);
  const size_t mask = table_.size() - 1;
  for (ReturnId id = kUnknown + 1; id < states_.size(); ++id) {
    size_t i = mix64(uint64_t{states_[id].set} << 32 | states_[id].rule) & mask;
    while (table_[i] != kRoot) i = (i + 1) & mask;
    table_[i] = id;
  }
}

EarleySets::EarleySets(size_t num_classes) : num_classes_(num_classes), table_(256, kDead) {
  sets_.emplace_back();
  next_.append(num_classes_, kDead);
  canonical_.append(1, kDead);
  accepting_.append(1, false);
}

SetId EarleySets::find(std::span<const EarleyItem> kernel, Slot& slot) {
  slot.hash = hash_of(kernel);
  if (2 * sets_.size() > table_.size()) grow_table();
  const size_t mask = table_.size() - 1;
  for (slot.at = slot.hash & mask; table_[slot.at] != kDead; slot.at = (slot.at + 1) & mask) {
    const Set& set = sets_[table_[slot.at]];
    if (set.hash == slot.hash && std::ranges::equal(items(set.kernel), kernel))
      return table_[slot.at];
  }
  return kDead;
}

SetId EarleySets::add(std::span<const EarleyItem> kernel, const Slot& slot) {
  const auto id = static_cast<SetId>(sets_.size());
  table_[slot.at] = id;
  Set& set = sets_.emplace_back();
  set.hash = slot.hash;
  set.kernel = {static_cast<uint32_t>(items_.size()), static_cast<uint32_t>(kernel.size())};
  items_.insert(items_.end(), kernel.begin(), kernel.end());
  next_.append(num_classes_, kUnknown);
  canonical_.append(1, kUnknown);
  accepting_.append(1, false);
  return id;
}

void EarleySets::close(SetId id, std::span<const EarleyItem> scanning,
                       std::span<const EarleyCall> calls, bool accepting) {
  Set& set = sets_[id];
  if (std::ranges::equal(scanning, items(set.kernel))) {
    set.scanning = set.kernel;
  } else {
    set.scanning = {static_cast<uint32_t>(items_.size()), static_cast<uint32_t>(scanning.size())};
    items_.insert(items_.end(), scanning.begin(), scanning.end());
  }
  set.calls = {static_cast<uint32_t>(calls_.size()), static_cast<uint32_t>(calls.size())};
  calls_.insert(calls_.end(), calls.begin(), calls.end());
  accepting_.set(id, accepting);
}

std::span<const EarleyCall> EarleySets::calls_of(SetId set, RuleId rule) const {
  const Range range = sets_[set].calls;
  const std::span<const EarleyCall> calls(calls_.data() + range.begin, range.size);
  const auto begin =
      std::lower_bound(calls.begin(), calls.end(), rule,
                       [](const EarleyCall& call, RuleId wanted) { return call.rule < wanted; });
  auto end = begin;
  while (end != calls.end() && end->rule == rule) ++end;
  return {begin, end};
}

size_t EarleySets::num_bytes() const {
  return held_bytes(sets_) + held_bytes(items_) + held_bytes(calls_) + held_bytes(table_) +
         next_.num_bytes() + canonical_.num_bytes() + accepting_.num_bytes();
}

void EarleySets::grow_table() {
  table_.assign(2 * table_.size(), kDead);
  const size_t mask = table_.size() - 1;
  for (SetId id = 1; id < sets_.size(); ++id) {
    size_t i = sets_[id].hash & mask;
    while (table_[i] != kDead) i = (i + 1) & mask;
    table_[i] = id;
  }
}

}  // namespace espalier::grammar
