// Compiles rules over bytes into a recursive transition network (RTN). A rule that recurses keeps
// an automaton of its own, and calls between rules are edges. Other rules are inlined, determinised
// and minimised where that stays within bounds. What stays non-deterministic is still exact, since
// the recogniser (earley.h) follows sets of nodes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "grammar/ir.h"

namespace espalier::grammar {

using NodeId = uint32_t;

// Bounds on the cost of one grammar. Beyond them compilation fails with kResourceExhausted; it
// never stalls.
struct GrammarLimits {
  size_t nodes_max = 2'000'000;        // automaton nodes in total, before determinisation
  size_t dfa_growth_max = 4;           // determinisation may grow an automaton by this factor
  size_t dfa_nodes_max = 10'000;       // of one pattern, where keywords are intersected
  int32_t inline_nodes_max = 64;       // a rule that does not recurse is inlined up to this size
  size_t earley_sets_max = 4'000'000;  // interned Earley sets of one grammar
  size_t earley_items_max = 100'000;   // items in one Earley set
  size_t earley_bytes_max = size_t{1} << 30;  // held by all Earley sets of one grammar
  size_t earley_items_per_call_max =
      2'000'000;                     // items processed for one mask or token; about 0.2 s
  double compile_seconds_max = 5.0;  // processor time of the compiling thread
  Duration cpu_deadline{};  // of that thread's processor time, set by start_budget(); zero: none
  // owned by the caller, who sets it to cancel a compilation
  const std::atomic<bool>* cancelled = nullptr;

  // Starts the budget of compile_seconds_max on the calling thread, unless it has been started. The
  // budget is processor time, so that a busy system refuses no grammar that an idle one compiles.
  void start_budget();
  // Returns kResourceExhausted once the budget is spent and kAborted once cancelled.
  Status check_time() const;
  // Returns whether check_time() would fail. Long computations poll it every few microseconds and
  // then return early; their caller calls check_time().
  bool interrupted() const;
};

struct Network {
  struct ByteEdge {
    uint8_t low, high;  // both inclusive
    NodeId target;
  };
  struct CallEdge {
    RuleId rule;  // index into `starts`, or kNoRule for an epsilon edge
    NodeId target;
    bool tail;  // nothing can follow in the caller, so its return state is passed on
  };
  static constexpr RuleId kNoRule = ~RuleId{0};
  // An edge that reads no byte: a tick of the rule's counter, or the test of its minimum.
  struct CountEdge {
    NodeId target;
    bool tick;
    uint32_t room;  // least number of ticks from target to the end of the rule
  };
  struct Node {
    uint32_t bytes_begin = 0, bytes_end = 0;
    uint32_t calls_begin = 0, calls_end = 0;
    uint32_t counts_begin = 0, counts_end = 0;
    int32_t counter = -1;  // index into counters, of the node's rule
    uint32_t room = 0;     // with a counter: least number of ticks to the end of the rule
    bool final = false;
    uint16_t tag = 0;    // a state of a lexeme (lexeme.h), or 0
    NodeId end = 0;      // of a node with a tag or a string state: the final node of its rule
    int32_t check = -1;  // index into checks: what must hold of the value that ends here
    // The rule calls no other and has no edges at its final nodes (a string, for example), so what
    // follows it is irrelevant inside it.
    bool closed = false;
    // In a rule whose texts are JSON strings, as that of a pattern or a format: the state of
    // Lexeme::kString that a text at the node has reached. `deterministic`: the rule counts
    // nothing, and no byte leads from one of its nodes to two.
    static constexpr uint8_t kNoState = 0xff;
    uint8_t string_state = kNoState;
    bool deterministic = false;
  };
  std::vector<Node> nodes;
  std::vector<ByteEdge> byte_edges;  // by node, sorted by (low, target)
  std::vector<CallEdge> call_edges;
  std::vector<CountEdge> count_edges;
  std::vector<IrRules::Counter> counters;
  std::vector<uint32_t> room_max;  // [counter] the largest `room` of its count edges
  std::vector<NodeId> starts;      // [rule]; rule 0 is the root; kNotBuilt: see NetworkBuilder
  static constexpr NodeId kNotBuilt = ~NodeId{0};
  std::vector<uint8_t> nullable;  // [rule]
  std::vector<std::string> rule_names;
  std::vector<IrRules::Check> checks;

  size_t num_bytes() const;  // held, in constant time but for the names of rules

  // Bytes that no edge distinguishes share a class; transition tables are indexed by class.
  std::array<uint8_t, 256> byte_class{};
  std::vector<uint8_t> class_sample;  // [num_classes] one byte of each
  std::vector<uint16_t> class_size;   // [num_classes] number of bytes
  int32_t num_classes() const { return static_cast<int32_t>(class_sample.size()); }

  std::span<const ByteEdge> bytes_of(NodeId id) const {
    return {byte_edges.data() + nodes[id].bytes_begin, byte_edges.data() + nodes[id].bytes_end};
  }
  std::span<const CallEdge> calls_of(NodeId id) const {
    return {call_edges.data() + nodes[id].calls_begin, call_edges.data() + nodes[id].calls_end};
  }
  std::span<const CountEdge> counts_of(NodeId id) const {
    return {count_edges.data() + nodes[id].counts_begin, count_edges.data() + nodes[id].counts_end};
  }
  // Returns whether the node has byte edges only, so that one item at it is a whole Earley set.
  bool only_bytes(NodeId id) const {
    const Node& node = nodes[id];
    return !node.final && node.calls_begin == node.calls_end &&
           node.counts_begin == node.counts_end;
  }
  // Returns whether, after `count` ticks, the ticks between the node and the end of its rule still
  // fit under the counter's maximum.
  bool has_room(NodeId id, uint32_t count) const {
    const Node& node = nodes[id];
    if (node.counter < 0) return true;
    const uint32_t max = counters[static_cast<size_t>(node.counter)].max;
    return max == IrRules::kNoMax || uint64_t{count} + node.room <= max;
  }
  // Returns whether nothing but the end of the rule follows.
  bool only_final(NodeId id) const {
    const Node& node = nodes[id];
    return node.final && node.bytes_begin == node.bytes_end && node.calls_begin == node.calls_end &&
           node.counts_begin == node.counts_end;
  }
};

// Builds the rules of a network on demand. Everything that can fail fails in plan(); building a
// rule later takes bounded time. Not thread-safe.
class NetworkBuilder {
 public:
  // Decides for everything reachable from `root` which rules are inlined and which are called, and
  // computes productive and nullable rules. Large rules are built at once. kInvalidArgument when
  // nothing at all can match. `ir` is shared and must not change afterwards.
  static Result<std::unique_ptr<NetworkBuilder>> plan(std::shared_ptr<const Ir> ir, RuleId root,
                                                      const GrammarLimits& limits);
  ~NetworkBuilder();

  Network& network();
  void make(RuleId rule);  // builds one rule of the network unless it exists
  // The bytes that the network, the rules and the plan hold. Any thread may call it.
  size_t num_bytes() const;

 private:
  class Impl;
  explicit NetworkBuilder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Builds the complete network.
Result<Network> build_network(const Ir& ir, RuleId root, const GrammarLimits& limits);

}  // namespace espalier::grammar
