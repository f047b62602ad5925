// From rules over bytes to automata: a recursive transition network. Each rule that recurses keeps
// an automaton of its own, and calls between rules are edges; everything else is inlined, made
// deterministic and minimal where that stays within bounds. What stays non-deterministic is still
// right: the recogniser (earley.h) follows sets of nodes.
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

// Bounds on what one grammar may cost; beyond them compilation fails with kResourceExhausted, it
// never stalls.
struct GrammarLimits {
  size_t nodes_max = 2'000'000;        // automaton nodes in all, before determinising
  size_t dfa_growth_max = 4;           // determinising may grow an automaton by this factor
  size_t dfa_nodes_max = 10'000;       // of one pattern, where keywords are intersected
  int32_t inline_nodes_max = 64;       // a rule that does not recurse is inlined up to this size
  size_t earley_sets_max = 4'000'000;  // interned states of one grammar while matching
  size_t earley_items_max = 100'000;   // where a text may be at once, in one of these states
  size_t earley_bytes_max = size_t{1} << 30;  // which all these states take
  size_t earley_items_per_call_max =
      2'000'000;  // places followed for one mask or token: a fifth of a second
  double compile_seconds_max = 5.0;
  TimePoint deadline{};  // made from compile_seconds_max by compile_grammar; zero: none
  const std::atomic<bool>* cancelled = nullptr;  // the caller's; set to end a compilation early

  // kResourceExhausted once the deadline has passed, kAborted once cancelled.
  Status check_time() const;
  // Whether check_time() would fail; what takes long asks every few microseconds and then leaves
  // with whatever it has, and its caller asks check_time().
  bool interrupted() const;
};

struct Network {
  struct ByteEdge {
    uint8_t low, high;  // bytes, both included
    NodeId target;
  };
  struct CallEdge {
    RuleId rule;  // index into `starts`; or kNoRule, and the target is reached without a byte
    NodeId target;
    bool tail;  // nothing can follow in the caller: its return address is handed on
  };
  static constexpr RuleId kNoRule = ~RuleId{0};
  // Taken without a byte: a tick of the rule's counter, or the question whether it is enough.
  struct CountEdge {
    NodeId target;
    bool tick;
    uint32_t room;  // ticks that the way from target to the rule's end takes at least
  };
  struct Node {
    uint32_t bytes_begin = 0, bytes_end = 0;
    uint32_t calls_begin = 0, calls_end = 0;
    uint32_t counts_begin = 0, counts_end = 0;
    int32_t counter = -1;  // its rule's: into counters
    uint32_t room = 0;     // with a counter: ticks to the rule's end at least
    bool final = false;
    uint16_t tag = 0;    // see lexeme.h
    NodeId end = 0;      // of a node with a tag: where its rule ends
    int32_t check = -1;  // what its rule asks of the value that ends here: into checks
    // Its rule calls none and goes on nowhere from its ends (strings): what follows it does not
    // matter before it is over.
    bool closed = false;
  };
  std::vector<Node> nodes;
  std::vector<ByteEdge> byte_edges;  // by node, sorted by (low, target)
  std::vector<CallEdge> call_edges;
  std::vector<CountEdge> count_edges;
  std::vector<Ir::Counter> counters;
  std::vector<uint32_t> room_max;  // [counter] of its count edges
  std::vector<NodeId> starts;      // [rule]; rule 0 is the root; kNotMade
  static constexpr NodeId kNotBuilt = ~NodeId{0};
  std::vector<uint8_t> nullable;  // [rule]
  std::vector<std::string> rule_names;
  std::vector<Ir::Check> checks;

  // Bytes that no edge tells apart share a class: transitions are tables over classes.
  std::array<uint8_t, 256> byte_class{};
  std::vector<uint8_t> class_sample;  // [num_classes] a byte of each
  std::vector<uint16_t> class_size;   // [num_classes]
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
  // Whether nothing but its rule's end follows.
  bool only_final(NodeId id) const {
    const Node& node = nodes[id];
    return node.final && node.bytes_begin == node.bytes_end && node.calls_begin == node.calls_end &&
           node.counts_begin == node.counts_end;
  }
};

// Makes a network's rules as they are asked for. What can fail fails when the plan is made; making
// a rule later takes bounded time. Not thread-safe.
class NetworkBuilder {
 public:
  // Of what is reachable from `root`: which rules are written out where they stand and which are
  // called, what can end, what a rule may leave out. Rules that take long are made at once.
  // kInvalidArgument when nothing at all can match. `ir`: shared with nobody who changes it.
  static Result<std::unique_ptr<NetworkBuilder>> plan(std::shared_ptr<const Ir> ir, RuleId root,
                                                      const GrammarLimits& limits);
  ~NetworkBuilder();

  Network& network();
  void make(RuleId rule);  // of the network; nothing when it is made already

 private:
  class Impl;
  explicit NetworkBuilder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// All of it at once.
Result<Network> build_network(const Ir& ir, RuleId root, const GrammarLimits& limits);

}  // namespace espalier::grammar
