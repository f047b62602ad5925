// Follows a network byte by byte. A state of the recogniser is a set of items (node, return link),
// as in Earley's method with automata for rules; equal sets are one state, interned, and
// transitions are remembered, so a grammar turns lazily into the automaton that its texts need.
// Exact for every context-free grammar: left recursion, ambiguity and empty rules included; right
// recursion takes no room (tail calls hand their return link on).
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

using SetId = uint32_t;     // a state of the recogniser
using ReturnId = uint32_t;  // where a rule returns to: a state and the rule it waits for

// A set of bytes: 64 of them in each word.
struct ByteMask {
  std::array<uint64_t, 4> words{};
  void add(int low, int high) {  // both included
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

// One thread at a time may call it (CompiledGrammar guards that); beside that one any number may
// ask for what is known of states that they have met: the functions named known_, accepting(),
// exhausted() and those below them.
class EarleyRecogniser {
 public:
  static constexpr SetId kDead = 0;             // no text leads on from here
  static constexpr SetId kUnknown = ~SetId{0};  // it is not known yet: see known_step()
  static constexpr SetId kNeedsText =
      ~SetId{0} - 1;  // where a check decides: see step_without_text()

  // `reach`: how many bytes canonical() looks ahead. `maker` makes the rules of the network that
  // are not made yet when texts reach them; without one all are.
  EarleyRecogniser(const Network& network, const GrammarLimits& limits, uint32_t reach = 0,
                   NetworkBuilder* builder = nullptr);

  SetId start() const { return start_; }

  // From here on it may do the work of one mask or token, GrammarLimits::machine_turn_max; beyond
  // that it is exhausted, so that a grammar whose texts are at very many places at once holds up
  // nobody for long.
  void begin_call() { followed_ = 0; }

  // The state after one more byte. Amortised: one table look-up. kDead also once the limit on
  // states is reached; exhausted() then says so. `text` is what was read before the byte (at least
  // the value that it ends): looked at where a rule's check asks for it.
  SetId step(SetId from, uint8_t byte, std::string_view text = {}) {
    const SetId to = transitions_[size_t{from} * num_classes_ + network_.byte_class[byte]];
    return to < kNeedsText ? to : step_slow(from, byte, &text);
  }
  // The same where the text is not known: kNeedsText where a check would look at it.
  SetId step_without_text(SetId from, uint8_t byte) {
    const SetId to = transitions_[size_t{from} * num_classes_ + network_.byte_class[byte]];
    return to != kUnknown ? to : step_slow(from, byte, nullptr);
  }

  // What step() has found before, kNeedsText, or kUnknown. For any thread.
  SetId known_step(SetId from, uint8_t byte) const {
    return transitions_.read(size_t{from} * num_classes_ + network_.byte_class[byte]);
  }

  // Where a walk along many texts is. Most of its steps lead from node to node of one rule: these
  // are taken in the network, without a state for each; all others are steps between states.
  struct Position {
    SetId set = kDead;  // or kInRule, and the rest says where
    NodeId node = 0;
    ReturnId return_id = 0;
    uint32_t count = 0;
    bool leads_on() const { return set != kDead && set != kNeedsText; }
    friend bool operator==(const Position&, const Position&) = default;
  };
  Position position_of(SetId set) const;
  SetId set_of(const Position& position);
  Position step_without_text(const Position& from, uint8_t byte);
  // The same, and a state that is one item stays a state: its steps are known the next time. Only
  // what is new and leads through a rule without a loop is taken in the network.
  Position step_along(const Position& from, uint8_t byte) {
    if (from.set < kInRule) {
      const SetId to = transitions_[size_t{from.set} * num_classes_ + network_.byte_class[byte]];
      if (to != kUnknown) return {to};
    }
    return step_along_slow(from, byte);
  }
  // The bytes that may lead on; no other does.
  void add_bytes(const Position& position, ByteMask& bytes) const;
  // Of two places: bytes that lead both to one place, as far as that is plain to see, are left out.
  void add_differing_bytes(const Position& a, const Position& b, ByteMask& bytes) const;

  // Whether what follows may depend on the text, not on the state alone.
  bool has_checks() const { return !network_.checks.empty(); }

  // A state from which the same texts of up to `reach` bytes lead on: counters that are far from
  // their bounds are told apart no more.
  SetId canonical(SetId set);
  // The same where it is known, or kUnknown. For any thread.
  SetId known_canonical(SetId set) const {
    return network_.counters.empty() ? set : canonical_.read(set);
  }

  // Whether two states hold the same but for counters.
  bool same_but_counts(SetId a, SetId b) const;

  // Of a state that is one place inside a lexeme (lexeme.h) and nothing else: its tag, how many
  // more characters there may and must be, and what follows the lexeme. A tag of 0: no such state.
  struct Inside {
    uint16_t tag = 0;
    uint32_t least = 0, most = ~uint32_t{0};
  };
  Inside inside(SetId set) const;
  // The node of a state that is one item.
  std::optional<NodeId> only_node(SetId set) const;
  // A state holds items, each of which leads on by itself: the texts of a state are those of its
  // items, as states of their own.
  size_t num_parts(SetId set) const { return sets_[set].kernel.size; }
  SetId part(SetId set, size_t index);
  // Of a state that is one place in a closed rule: the same place, without what follows the rule;
  // where its end would lead, step_without_text() says kNeedsText. kDead for other states.
  SetId opened(SetId set);
  SetId after_lexeme(SetId set);  // or kNeedsText. REQUIRES: inside() says so

  bool accepting(SetId set) const { return accepting_.read(set); }
  bool exhausted() const { return exhausted_.load(std::memory_order_relaxed); }
  size_t num_sets() const { return sets_.size(); }
  size_t num_bytes() const { return bytes_.load(std::memory_order_relaxed); }  // for any thread
  const Network& network() const { return network_; }

  // Whether the text may end here and nothing can follow. `step` is asked where bytes lead.
  template <typename Step>
  bool must_end(SetId set, Step step) const {
    return accepting(set) && std::ranges::all_of(network_.class_sample, [&](uint8_t sample) {
             return step(set, sample) == kDead;
           });
  }

  // The only byte that can come, or -1 when there are several or none, or the text may end here.
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
  static constexpr ReturnId kUnknownReturn = 1;  // it is not said where: see opened()

  struct Item {
    NodeId node;
    ReturnId return_id;
    uint32_t count = 0;  // of its rule's counter
    friend auto operator<=>(const Item&, const Item&) = default;
  };
  // A call in progress: on return from `rule`, go on at (target, link).
  struct Waiting {
    RuleId rule;
    NodeId target;
    ReturnId return_id;
    uint32_t count;
    friend auto operator<=>(const Waiting&, const Waiting&) = default;
  };
  // A part of items_ or waiting_.
  struct Range {
    uint32_t begin = 0, size = 0;
  };
  struct Set {
    Range kernel;       // what it is known by
    Range scanning;     // items that take a byte
    Range waiting;      // sorted by rule
    uint32_t hash = 0;  // of its kernel
  };
  struct ReturnState {
    SetId set;
    RuleId rule;
  };
  // Items that were met, forgotten at once.
  class Seen {
   public:
    void clear();
    bool insert(const Item& item);  // false: it was there

   private:
    struct Slot {
      Item item;
      uint32_t round = 0;
    };
    std::vector<Slot> slots_ = std::vector<Slot>(64);
    uint32_t round_ = 0;
    size_t count_ = 0;
  };

  // What was read, its last byte apart.
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
  size_t followed_ = 0;  // places, in this turn
  const uint32_t reach_;
  std::vector<Set> sets_;
  std::vector<Item> items_;
  std::vector<Waiting> waiting_;
  SharedTable<SetId> transitions_;  // [set, class]
  SharedTable<SetId> canonical_;    // [set]
  SharedTable<bool> accepting_;     // [set]
  std::vector<SetId> table_;        // of sets by the hash of their kernels; kDead: free
  std::vector<ReturnState> return_states_;
  std::vector<ReturnId> return_table_;  // of links by set and rule; kRootLink: free
  std::vector<uint8_t> chains_;         // [node] 1: is_chain(), 2: not, 0: not looked at yet
  SetId start_ = kDead;
  std::atomic<bool> exhausted_ = false;
  std::atomic<size_t> bytes_ = 0;  // which its states take
  // Used within one call.
  Seen seen_;
  std::vector<Item> kernel_, settled_, returned_, work_, scanning_now_;
  std::vector<Waiting> waiting_now_;
};

}  // namespace espalier::grammar
