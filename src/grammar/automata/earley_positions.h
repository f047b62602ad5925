// Positions of a walk along many texts. Most steps of such a walk lead from node to node of one
// rule; these stay in the network and intern no Earley set. All other steps lead from set to set.
//
// Thread safety: none. Ownership: borrows the recogniser, whose cached transitions are used and
// extended.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/automata/byte_mask.h"
#include "grammar/automata/earley.h"
#include "grammar/automata/held_bytes.h"

namespace espalier::grammar {

// A set, or one item within a rule that is the whole set.
struct EarleyPosition {
  static constexpr SetId kInRule = ~SetId{0} - 2;
  SetId set = EarleySets::kDead;  // or kInRule, with the item in the other fields
  NodeId node = 0;
  ReturnId return_id = 0;
  uint32_t count = 0;
  bool leads_on() const { return set != EarleySets::kDead && set != EarleySets::kNeedsText; }
  friend bool operator==(const EarleyPosition&, const EarleyPosition&) = default;
};

// See the head of this file.
class EarleyPositions {
 public:
  using Position = EarleyPosition;
  explicit EarleyPositions(EarleyRecogniser& earley)
      : earley_(earley),
        network_(earley.network()),
        sets_(earley.sets()),
        closure_(earley.closure()) {}

  EarleyRecogniser& recogniser() { return earley_; }

  Position position_of(SetId set) const;
  SetId set_of(const Position& position);
  // Returns the position after one more byte; its set is kNeedsText where a check would read the
  // text.
  Position step(const Position& from, uint8_t byte);
  // Like step(), but a set of one item stays a set, so that its transition is cached. Only new
  // positions that pass through a rule without a loop stay in the network.
  Position step_along(const Position& from, uint8_t byte) {
    if (from.set < EarleyPosition::kInRule) {
      const SetId to = sets_.next(from.set, network_.byte_class[byte]);
      if (to != EarleySets::kUnknown) return {to};
    }
    return step_along_slow(from, byte);
  }

  size_t num_bytes() const { return held_bytes(chains_); }

  // Adds every byte that may lead on from the position.
  void add_bytes(const Position& position, ByteMask& bytes) const;
  // Adds the bytes that may lead from `a` and `b` to different positions. Bytes that plainly lead
  // to the same position are omitted.
  void add_differing_bytes(const Position& a, const Position& b, ByteMask& bytes) const;

 private:
  Position step_along_slow(const Position& from, uint8_t byte);
  SetId step_in_rule(const EarleyItem& item, uint8_t byte);
  bool is_chain(NodeId node);

  EarleyRecogniser& earley_;
  const Network& network_;
  const EarleySets& sets_;
  EarleyClosure& closure_;
  std::vector<uint8_t> chains_;     // [node] 1: is_chain(), 2: not, 0: not computed yet
  std::vector<EarleyItem> kernel_;  // scratch of one call
};

}  // namespace espalier::grammar
