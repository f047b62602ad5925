// An Earley recogniser over a recursive transition network, made deterministic lazily. An Earley
// set holds items (node, return state, count). Equal sets are interned as one, and transitions
// between sets are cached, so a grammar turns into the automaton that its texts need. The
// recogniser is exact for every context-free grammar, including left recursion, ambiguity and empty
// rules. Tail calls pass their return state on, so right recursion needs no stack.
//
// Thread safety: one thread at a time may call the non-const functions (CompiledGrammar holds a
// lock). Beside that thread any number may read what is cached: known_step(), known_canonical(),
// accepting(), exhausted() and num_bytes(). Ownership: the network and the builder are borrowed.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automata/shared_table.h"
#include "grammar/automata/transition_network.h"

namespace espalier::grammar {

using SetId = uint32_t;     // an Earley set
using ReturnId = uint32_t;  // a return state: the set that called a rule, and the rule

// A set of bytes; word w holds bytes 64 w to 64 w + 63.
struct ByteMask {
  std::array<uint64_t, 4> words{};
  void add(int low, int high) {  // both inclusive
    for (int w = low / 64; w <= high / 64; ++w) words[static_cast<size_t>(w)] |= part(w, low, high);
  }
  void remove(int low, int high) {
    for (int w = low / 64; w <= high / 64; ++w)
      words[static_cast<size_t>(w)] &= ~part(w, low, high);
  }
  bool has(uint8_t byte) const { return words[byte / 64] >> (byte % 64) & 1; }
  int count() const {
    int sum = 0;
    for (const uint64_t word : words) sum += std::popcount(word);
    return sum;
  }

 private:
  static uint64_t part(int word, int low, int high) {
    const int from = std::max(low - 64 * word, 0), to = std::min(high - 64 * word, 63);
    return ~uint64_t{0} >> (63 - (to - from)) << from;
  }
};

// See the head of this file for the algorithm and for thread safety.
class EarleyRecogniser {
 public:
  static constexpr SetId kDead = 0;  // no text leads on from here
  // the transition is not cached yet: see known_step()
  static constexpr SetId kUnknown = ~SetId{0};
  static constexpr SetId kNeedsText = ~SetId{0} - 1;  // a check decides: see step_without_text()

  // `reach`: the number of bytes that canonical() looks ahead. `builder` builds rules of the
  // network when a text first reaches them; without one the network is complete.
  EarleyRecogniser(const Network& network, const GrammarLimits& limits, uint32_t reach = 0,
                   NetworkBuilder* builder = nullptr);

  SetId start() const { return start_; }

  // Starts the work of one mask or token, which is bounded by
  // GrammarLimits::earley_items_per_call_max. Beyond that bound the recogniser is exhausted, so
  // that a grammar with very many items per set delays no other request for long.
  void begin_call() { followed_ = 0; }

  // Returns the set after one more byte; one table look-up, amortised. Returns kDead also when a
  // limit was reached, which exhausted() then reports. `text` is what was read before the byte, at
  // least the JSON value that the byte ends; checks of rules read it.
  SetId step(SetId from, uint8_t byte, std::string_view text = {}) {
    const SetId to = transitions_[size_t{from} * num_classes_ + network_.byte_class[byte]];
    return to < kNeedsText ? to : step_slow(from, byte, &text);
  }
  // Like step(), without the text: returns kNeedsText where a check would read it.
  SetId step_without_text(SetId from, uint8_t byte) {
    const SetId to = transitions_[size_t{from} * num_classes_ + network_.byte_class[byte]];
    return to != kUnknown ? to : step_slow(from, byte, nullptr);
  }

  // Returns the cached transition, kNeedsText, or kUnknown. Any thread may call it.
  SetId known_step(SetId from, uint8_t byte) const {
    return transitions_.read(size_t{from} * num_classes_ + network_.byte_class[byte]);
  }

  // The position of a walk along many texts. Most steps of a walk lead from node to node of one
  // rule; these stay in the network and intern no set. All other steps lead from set to set.
  struct Position {
    SetId set = kDead;  // or kInRule, with the item in the other fields
    NodeId node = 0;
    ReturnId return_id = 0;
    uint32_t count = 0;
    bool leads_on() const { return set != kDead && set != kNeedsText; }
    friend bool operator==(const Position&, const Position&) = default;
  };
  Position position_of(SetId set) const;
  SetId set_of(const Position& position);
  Position step_without_text(const Position& from, uint8_t byte);
  // Like step_without_text(), but a set of one item stays a set, so that its transition is cached.
  // Only new positions that pass through a rule without a loop stay in the network.
  Position step_along(const Position& from, uint8_t byte) {
    if (from.set < kInRule) {
      const SetId to = transitions_[size_t{from.set} * num_classes_ + network_.byte_class[byte]];
      if (to != kUnknown) return {to};
    }
    return step_along_slow(from, byte);
  }
  // Adds every byte that may lead on from the position.
  void add_bytes(const Position& position, ByteMask& bytes) const;
  // Adds the bytes that may lead from `a` and `b` to different positions. Bytes that plainly lead
  // to the same position are omitted.
  void add_differing_bytes(const Position& a, const Position& b, ByteMask& bytes) const;

  // Returns whether what follows may depend on the text and not on the set alone.
  bool has_checks() const { return !network_.checks.empty(); }

  // Returns a representative set from which the same texts of up to `reach` bytes lead on: counts
  // that are far from their bounds are merged.
  SetId canonical(SetId set);
  // Returns the cached representative, or kUnknown. Any thread may call it.
  SetId known_canonical(SetId set) const {
    return network_.counters.empty() ? set : canonical_.read(set);
  }

  // Returns whether two sets hold the same items but for their counts.
  bool same_but_counts(SetId a, SetId b) const;

  // For a set that is one item inside a lexeme (lexeme.h): the lexeme's tag and how many characters
  // are still required and allowed. The tag is 0 for any other set.
  struct Inside {
    uint16_t tag = 0;
    uint32_t least = 0, most = ~uint32_t{0};
  };
  Inside inside(SetId set) const;
  // Returns the node of a set that is one item.
  std::optional<NodeId> only_node(SetId set) const;
  // The texts of a set are the union of the texts of its items. part(set, i) is the set of item i
  // alone.
  size_t num_parts(SetId set) const { return sets_[set].kernel.size; }
  SetId part(SetId set, size_t index);
  // For a set of one item in a closed rule: the same item with an unknown return state, where
  // step_without_text() returns kNeedsText at the end of the rule. Returns kDead for other sets.
  SetId opened(SetId set);
  SetId after_lexeme(SetId set);  // or kNeedsText. REQUIRES: inside() has a tag

  bool accepting(SetId set) const { return accepting_.read(set); }
  bool exhausted() const { return exhausted_.load(std::memory_order_relaxed); }
  size_t num_sets() const { return sets_.size(); }
  size_t num_bytes() const { return bytes_.load(std::memory_order_relaxed); }  // any thread
  const Network& network() const { return network_; }

  // Returns whether the text may end here and nothing can follow. `step` maps (set, byte) to the
  // next set.
  template <typename Step>
  bool must_end(SetId set, Step step) const {
    return accepting(set) && std::ranges::all_of(network_.class_sample, [&](uint8_t sample) {
             return step(set, sample) == kDead;
           });
  }

  // Returns the only byte that can follow, or -1 when there are several or none or the text may end
  // here.
  template <typename Step>
  int forced_byte(SetId set, Step step) const {
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

 private:
  static constexpr SetId kInRule = ~SetId{0} - 2;
  static constexpr ReturnId kRootReturn = 0;
  static constexpr ReturnId kUnknownReturn = 1;  // the caller is unknown: see opened()

  struct Item {
    NodeId node;
    ReturnId return_id;
    uint32_t count = 0;  // of the rule's counter
    friend auto operator<=>(const Item&, const Item&) = default;
  };
  // A call in progress: on return from `rule` the item continues at (target, return_id, count).
  struct Waiting {
    RuleId rule;
    NodeId target;
    ReturnId return_id;
    uint32_t count;
    friend auto operator<=>(const Waiting&, const Waiting&) = default;
  };
  // A range of items_ or waiting_.
  struct Range {
    uint32_t begin = 0, size = 0;
  };
  struct Set {
    Range kernel;       // identifies the set
    Range scanning;     // items with byte edges
    Range waiting;      // sorted by rule
    uint32_t hash = 0;  // of the kernel
  };
  struct ReturnState {
    SetId set;
    RuleId rule;
  };
  // A set of items that is cleared in constant time.
  class Seen {
   public:
    void clear();
    bool insert(const Item& item);  // returns false when it was present

   private:
    struct Slot {
      Item item;
      uint32_t round = 0;
    };
    std::vector<Slot> slots_ = std::vector<Slot>(64);
    uint32_t round_ = 0;
    size_t count_ = 0;
  };

  // The text read so far, with its last byte apart.
  struct Text {
    std::string_view before;
    uint8_t last = 0;
  };
  std::span<const Item> items(Range range) const {
    return {items_.data() + range.begin, range.size};
  }
  static uint32_t hash_of(std::span<const Item> items);
  bool only_bytes(NodeId node) const;
  bool is_chain(NodeId node);
  Position step_along_slow(const Position& from, uint8_t byte);
  SetId step_in_rule(const Item& item, uint8_t byte);
  SetId step_slow(SetId from, uint8_t byte, const std::string_view* text);
  SetId intern(std::vector<Item>& kernel, const Text* text, bool& asked);
  SetId intern_settled(const std::vector<Item>& kernel);
  bool full();
  void grow_table();
  uint32_t canonical_count(const Item& item) const;
  bool count_step(const Network::CountEdge& edge, Item& item) const;
  bool has_room(NodeId node, uint32_t count) const;
  bool passes(int32_t check, const Text& text);
  void close(SetId id);
  void complete(ReturnId return_id, SetId current, std::vector<Item>& out, bool& accepting) const;
  ReturnId return_id_of(SetId set, RuleId rule);
  void grow_return_table();

  void spend(size_t places) {
    followed_ += places;
    if (followed_ > items_per_call_max_) exhausted_ = true;
  }

  const Network& network_;
  NetworkBuilder* const builder_;
  const size_t num_classes_;
  const size_t sets_max_, items_max_, bytes_max_, items_per_call_max_;
  size_t followed_ = 0;  // items processed in this call
  const uint32_t reach_;
  std::vector<Set> sets_;
  std::vector<Item> items_;
  std::vector<Waiting> waiting_;
  SharedTable<SetId> transitions_;  // [set, class]
  SharedTable<SetId> canonical_;    // [set]
  SharedTable<bool> accepting_;     // [set]
  std::vector<SetId> table_;        // sets by the hash of their kernel; kDead marks a free slot
  std::vector<ReturnState> return_states_;
  // return states by (set, rule); kRootReturn marks a free slot
  std::vector<ReturnId> return_table_;
  std::vector<uint8_t> chains_;  // [node] 1: is_chain(), 2: not, 0: not computed yet
  SetId start_ = kDead;
  std::atomic<bool> exhausted_ = false;
  std::atomic<size_t> bytes_ = 0;  // bytes held by the sets
  // Scratch of one call.
  Seen seen_;
  std::vector<Item> kernel_, settled_, returned_, work_, scanning_now_;
  std::vector<Waiting> waiting_now_;
};

}  // namespace espalier::grammar
