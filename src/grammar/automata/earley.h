// An Earley recogniser over a recursive transition network, made deterministic lazily. An Earley
// set holds items (node, return state, count). Equal sets are interned as one, and transitions
// between sets are cached, so a grammar turns into the automaton that its texts need. The
// recogniser is exact for every context-free grammar, including left recursion, ambiguity and empty
// rules. Tail calls pass their return state on, so right recursion needs no stack.
//
// Thread safety: one thread at a time may call the non-const functions (CompiledGrammar holds a
// lock). Beside that thread any number may read what is cached: known_step(), known_canonical(),
// accepting(), used_up() and num_bytes(). Ownership: the network and the builder are borrowed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/automata/earley_closure.h"
#include "grammar/automata/earley_sets.h"
#include "grammar/automata/transition_network.h"

namespace espalier::grammar {

// See the head of this file for the algorithm and for thread safety.
class EarleyRecogniser {
 public:
  static constexpr SetId kDead = EarleySets::kDead;  // no text leads on from here
  // the transition is not cached yet: see known_step()
  static constexpr SetId kUnknown = EarleySets::kUnknown;
  // a check decides: see step_without_text()
  static constexpr SetId kNeedsText = EarleySets::kNeedsText;

  // `reach`: the number of bytes that canonical() looks ahead. `builder` builds rules of the
  // network when a text first reaches them; without one the network is complete.
  EarleyRecogniser(const Network& network, const GrammarLimits& limits, uint32_t reach = 0,
                   NetworkBuilder* builder = nullptr);

  SetId start() const { return start_; }

  // Starts the work of one mask or token, which is bounded by
  // GrammarLimits::earley_items_per_call_max. Beyond that bound the recogniser is exhausted, so
  // that a grammar with very many items per set delays no other request for long.
  void begin_call() { closure_.begin_call(); }

  // Returns the set after one more byte; one table look-up, amortised. Returns kDead also when a
  // limit was reached, which exhausted() then reports. `text` is what was read before the byte, at
  // least the JSON value that the byte ends; checks of rules read it.
  SetId step(SetId from, uint8_t byte, std::string_view text = {}) {
    const SetId to = sets_.next(from, network_.byte_class[byte]);
    return to < kNeedsText ? to : step_slow(from, byte, &text);
  }
  // Like step(), without the text: returns kNeedsText where a check would read it.
  SetId step_without_text(SetId from, uint8_t byte) {
    const SetId to = sets_.next(from, network_.byte_class[byte]);
    return to != kUnknown ? to : step_slow(from, byte, nullptr);
  }
  // Returns the cached transition, kNeedsText, or kUnknown. Any thread may call it.
  SetId known_step(SetId from, uint8_t byte) const {
    return sets_.read_next(from, network_.byte_class[byte]);
  }

  // Returns whether what follows may depend on the text and not on the set alone.
  bool has_checks() const { return !network_.checks.empty(); }

  // Returns a representative set from which the same texts of up to `reach` bytes lead on: counts
  // that are far from their bounds are merged.
  SetId canonical(SetId set);
  // Returns the cached representative, or kUnknown. Any thread may call it.
  SetId known_canonical(SetId set) const {
    return network_.counters.empty() ? set : sets_.read_canonical(set);
  }

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
  size_t num_parts(SetId set) const { return sets_.kernel(set).size(); }
  SetId part(SetId set, size_t index);
  // For a set of one item in a closed rule: the same item with an unknown return state, where
  // step_without_text() returns kNeedsText at the end of the rule. Returns kDead for other sets.
  SetId opened(SetId set);
  // The same for an item at this node without a count. Returns kDead for nodes of other rules.
  SetId opened_at(NodeId node);
  // The set behind the end of the rule, or kNeedsText. REQUIRES: inside() has a tag, or the set is
  // one item at a node with a string state.
  SetId after_lexeme(SetId set);

  bool accepting(SetId set) const { return sets_.accepting(set); }
  bool exhausted() const { return closure_.exhausted(); }
  bool used_up() const { return closure_.used_up(); }  // without regard to trials; any thread
  size_t num_sets() const { return sets_.size(); }
  size_t num_bytes() const { return closure_.num_bytes(); }  // any thread
  const Network& network() const { return network_; }
  // The parts, for walks of many texts (earley_positions.h).
  const EarleySets& sets() const { return sets_; }
  EarleyClosure& closure() { return closure_; }

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
    for (size_t c = 0; c < network_.class_sample.size(); ++c) {
      const uint8_t sample = network_.class_sample[c];
      if (step(set, sample) == kDead) continue;
      if (forced >= 0 || network_.class_size[c] > 1) return -1;
      forced = sample;
    }
    return forced;
  }

 private:
  SetId step_slow(SetId from, uint8_t byte, const std::string_view* text);
  uint32_t canonical_count(const EarleyItem& item) const;

  const Network& network_;
  const uint32_t reach_;
  EarleySets sets_;
  EarleyClosure closure_;
  SetId start_ = kDead;
  // Scratch of one call.
  SeenItems seen_;
  std::vector<EarleyItem> kernel_;
};

}  // namespace espalier::grammar
