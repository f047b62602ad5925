// The sets of an Earley recogniser, interned: equal kernels are one set with one id. Beside each
// set stand its cached transitions, its representative and whether it accepts.
//
// Thread safety: one writer. Beside it any thread may call the functions marked so. Ownership:
// everything is held by value. Sets are never removed, so ids stay valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/automata/held_bytes.h"
#include "grammar/automata/shared_table.h"
#include "grammar/automata/transition_network.h"

namespace espalier::grammar {

using SetId = uint32_t;     // an Earley set
using ReturnId = uint32_t;  // a return state: the set that called a rule, and the rule

// A position of the recogniser: a node of the network, and where its rule returns to.
struct EarleyItem {
  NodeId node;
  ReturnId return_id;
  uint32_t count = 0;  // of the rule's counter
  friend auto operator<=>(const EarleyItem&, const EarleyItem&) = default;
};

// A call in progress: on return from `rule` the item continues at (target, return_id, count).
struct EarleyCall {
  RuleId rule;
  NodeId target;
  ReturnId return_id;
  uint32_t count;
  friend auto operator<=>(const EarleyCall&, const EarleyCall&) = default;
};

// Returns a hash of the items, in this order.
uint32_t hash_of(std::span<const EarleyItem> items);

// A set of items that is cleared in constant time. Not thread-safe.
class SeenItems {
 public:
  void clear();
  bool insert(const EarleyItem& item);  // returns false when it was present
  size_t num_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    EarleyItem item;
    uint32_t round = 0;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(64);
  uint32_t round_ = 0;
  size_t count_ = 0;
};

// The return states of one recogniser, interned by (set, rule). Not thread-safe.
class ReturnStates {
 public:
  static constexpr ReturnId kRoot = 0;     // the end of the text
  static constexpr ReturnId kUnknown = 1;  // see EarleyRecogniser::opened()
  struct State {
    SetId set;
    RuleId rule;
  };
  ReturnStates() : states_(2), table_(256, kRoot) {}
  ReturnId id_of(SetId set, RuleId rule);
  // REQUIRES: id is neither kRoot nor kUnknown.
  const State& operator[](ReturnId id) const { return states_[id]; }
  size_t num_bytes() const { return held_bytes(states_) + held_bytes(table_); }

 private:
  void grow();

  std::vector<State> states_;    // slots 0 and 1 are kRoot and kUnknown
  std::vector<ReturnId> table_;  // by (set, rule); kRoot marks a free slot
};

// See the head of this file.
class EarleySets {
 public:
  static constexpr SetId kDead = 0;                   // no text leads on from here
  static constexpr SetId kUnknown = ~SetId{0};        // the transition is not cached yet
  static constexpr SetId kNeedsText = ~SetId{0} - 1;  // a check decides

  explicit EarleySets(size_t num_classes);

  // Returns whether a transition leads to a set.
  static bool leads_on(SetId to) { return to != kDead && to != kNeedsText; }

  // Where a kernel that is not interned yet will be filed.
  struct Slot {
    size_t at = 0;
    uint32_t hash = 0;
  };
  // Returns the set with this kernel, or kDead and its slot for add(). REQUIRES: the kernel is
  // sorted and has no duplicates.
  SetId find(std::span<const EarleyItem> kernel, Slot& slot);
  // Adds a set; close() completes it. REQUIRES: find() has just returned kDead and this slot; the
  // kernel is not stored in this object.
  SetId add(std::span<const EarleyItem> kernel, const Slot& slot);
  // Stores what follows from the kernel without reading a byte: the items with byte edges, and the
  // calls. REQUIRES: both are sorted.
  void close(SetId set, std::span<const EarleyItem> scanning, std::span<const EarleyCall> calls,
             bool accepting);

  size_t size() const { return sets_.size(); }
  std::span<const EarleyItem> kernel(SetId set) const { return items(sets_[set].kernel); }
  std::span<const EarleyItem> scanning(SetId set) const { return items(sets_[set].scanning); }
  // The calls of the set that wait for the end of the rule.
  std::span<const EarleyCall> calls_of(SetId set, RuleId rule) const;

  // The cached transition of a byte class, or kUnknown. read_next() is for any thread.
  SetId next(SetId set, size_t byte_class) const {
    return next_[size_t{set} * num_classes_ + byte_class];
  }
  SetId read_next(SetId set, size_t byte_class) const {
    return next_.read(size_t{set} * num_classes_ + byte_class);
  }
  void set_next(SetId set, size_t byte_class, SetId to) {
    next_.set(size_t{set} * num_classes_ + byte_class, to);
  }

  // The cached representative, or kUnknown: see EarleyRecogniser::canonical(). read_canonical() is
  // for any thread.
  SetId canonical(SetId set) const { return canonical_[set]; }
  SetId read_canonical(SetId set) const { return canonical_.read(set); }
  void set_canonical(SetId set, SetId representative) { canonical_.set(set, representative); }

  bool accepting(SetId set) const { return accepting_.read(set); }  // any thread

  size_t num_bytes() const;  // held, in constant time

 private:
  struct Range {  // of items_ or calls_
    uint32_t begin = 0, size = 0;
  };
  struct Set {
    Range kernel;       // identifies the set
    Range scanning;     // items with byte edges
    Range calls;        // sorted by rule
    uint32_t hash = 0;  // of the kernel
  };
  std::span<const EarleyItem> items(Range range) const {
    return {items_.data() + range.begin, range.size};
  }
  void grow_table();

  const size_t num_classes_;
  std::vector<Set> sets_;  // set 0 is kDead
  std::vector<EarleyItem> items_;
  std::vector<EarleyCall> calls_;
  std::vector<SetId> table_;      // by the hash of the kernel; kDead marks a free slot
  SharedTable<SetId> next_;       // [set, class]
  SharedTable<SetId> canonical_;  // [set]
  SharedTable<bool> accepting_;   // [set]
};

}  // namespace espalier::grammar
