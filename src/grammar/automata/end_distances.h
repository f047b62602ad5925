// The least number of bytes from each node of a network to the end of its rule, by a fixpoint over
// the whole network: Dijkstra's algorithm, where the cost of a call becomes known when the start of
// its rule is settled (Knuth 1977). A node of a rule with a counter has one distance for each
// number of ticks that the counter's minimum still requires. Checks of values and maxima of
// counters are left out, so a distance is a lower bound where a rule has them.
//
// Thread safety: immutable. Ownership: everything is held by value; the network is borrowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "grammar/automata/transition_network.h"

namespace espalier::grammar {

class EndDistances {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0} / 4;  // no end is reached; sums do not overflow

  // kInvalidArgument: the minima of the counters are too large for a table. REQUIRES: all rules of
  // the network are built.
  static Result<EndDistances> compute(const Network& network);

  // Returns the bytes from the node, whose counter stands at `count`, to the end of its rule.
  uint32_t to_rule_end(NodeId node, uint32_t count) const {
    return distances_[state_of(node, count)];
  }
  // Returns the most bytes that one edge adds to the distance.
  uint32_t increase_max() const { return increase_max_; }
  size_t num_bytes() const;

 private:
  friend class EndDistanceSearch;
  explicit EndDistances(const Network& network) : network_(&network) {}

  size_t state_of(NodeId node, uint32_t count) const {
    const uint32_t need_max = offsets_[node + 1] - offsets_[node] - 1;
    return offsets_[node] + (count < need_max ? need_max - count : 0);
  }

  const Network* network_;
  std::vector<uint32_t> offsets_;    // [node] index of its distance with no tick required
  std::vector<uint32_t> distances_;  // bytes; behind each offset by the number of ticks required
  uint32_t increase_max_ = 0;
};

}  // namespace espalier::grammar
