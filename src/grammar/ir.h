// The intermediate representation that every frontend lowers to: rules whose bodies are expressions
// over bytes. automata/transition_network.h compiles it.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::grammar {

using ByteSet = std::bitset<256>;
using ExprId = uint32_t;
using RuleId = uint32_t;

inline constexpr int32_t kUnbounded = -1;

inline constexpr uint32_t kMaxCodePoint = 0x10ffff;

// A closed range of Unicode code points.
struct CodeRange {
  uint32_t low = 0, high = 0;
  friend bool operator==(const CodeRange&, const CodeRange&) = default;
};

// Returns the ranges sorted, disjoint, not adjacent, within [0, 0x10ffff] and without surrogates.
std::vector<CodeRange> normalized(std::vector<CodeRange> ranges);
std::vector<CodeRange> complement(const std::vector<CodeRange>& normalized_ranges);

// Judges a JSON value that a text has just completed, where no grammar of practical size can: see
// IrRules::set_check. Called under the grammar's lock, by one thread at a time.
class ValueChecker {
 public:
  virtual ~ValueChecker() = default;
  // `before`: the text before the value.
  virtual bool holds(uint32_t check, std::string_view before, std::string_view value) = 0;
  // Returns whether the check compares an item of an array with those before it.
  virtual bool compares_items(uint32_t check) const = 0;
  virtual size_t num_bytes() const = 0;  // held; an estimate
};

// An open-addressing hash index of ids. Not thread-safe.
class FlatIndex {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};
  // Returns the id filed under the hash for which `same` holds, or kNone.
  template <typename Same>
  uint32_t find(uint64_t hash, Same same) const {
    if (slots_.empty()) return kNone;
    const size_t mask = slots_.size() - 1;
    for (size_t at = hash & mask; slots_[at].id != kNone; at = (at + 1) & mask) {
      if (slots_[at].tag == tag_of(hash) && same(slots_[at].id)) return slots_[at].id;
    }
    return kNone;
  }
  void add(uint64_t hash, uint32_t id);
  size_t num_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t tag = 0, id = kNone;  // the tag is the low bits of the hash
  };
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash); }
  void put(Slot slot);

  std::vector<Slot> slots_;  // size is a power of two, at most half full
  size_t count_ = 0;
};

// The rules of a grammar: their bodies, counters and checks. Rules are never removed. Not
// thread-safe.
class IrRules {
 public:
  struct Rule {
    std::string name;
    ExprId body = 0;
    int32_t check = -1;    // index into checks(), or -1
    int32_t counter = -1;  // index into counters(), or -1
  };
  // Bounds on the ticks in one match of a rule: repetition without a state for each count.
  struct Counter {
    uint32_t min = 0, max = 0;  // kNoMax: unbounded
  };
  static constexpr uint32_t kNoMax = ~uint32_t{0};
  struct Check {
    std::shared_ptr<ValueChecker> checker;  // shared with the networks built from this Ir
    uint32_t number = 0;                    // the checker's own number
  };

  RuleId add(std::string name);  // its body is Ir::never() until set_body()
  void set_body(RuleId rule, ExprId body);
  // REQUIRES of the rule's body, so that no match is stuck between min and max: with a minimum, the
  // body can end from every position after any number of further ticks that is not below the least
  // one from there; and every path to its end passes kEnough, after which it does not tick.
  void set_counter(RuleId rule, Counter counter);
  // Requires that what the rule matched also passes `check`. The check runs where the rule
  // certainly ends, that is, at ends after which the rule cannot continue: closing brackets,
  // quotes, ends of words. REQUIRES: the rule matches whole JSON values; uncertain ends need no
  // check.
  void set_check(RuleId rule, Check check);

  size_t size() const { return rules_.size(); }
  const Rule& operator[](RuleId rule) const { return rules_[rule]; }
  const std::vector<Counter>& counters() const { return counters_; }
  const std::vector<Check>& checks() const { return checks_; }
  size_t num_bytes() const;  // held, with what the checkers hold

 private:
  std::vector<Rule> rules_;
  std::vector<Counter> counters_;
  std::vector<Check> checks_;
};

// An arena of hash-consed expressions: equal expressions have equal ids. Construction simplifies
// (nested sequences flatten, a choice of byte sets is one byte set, kNever absorbs). Not
// thread-safe.
class Ir {
 public:
  enum class Op : uint8_t {
    kNever,     // matches nothing
    kEmpty,     // matches the empty string
    kBytes,     // one byte out of a set
    kSequence,  // all children, in order
    kChoice,    // any one child
    kRepeat,    // the child min to max times (kUnbounded: no maximum)
    kRule,      // a reference to a rule; rules may recurse
    // a small automaton whose edges are expressions, for what repetition and choice would copy many
    // times
    kGraph,
    kTick,    // matches the empty text and increments the counter of the rule, up to its maximum
    kEnough,  // matches the empty text once the counter of the rule has reached its minimum
  };
  // States are 0 (the start) to num_states - 1.
  struct GraphEdge {
    uint32_t from = 0;
    ExprId expr = 0;
    uint32_t to = 0;
    friend bool operator==(const GraphEdge&, const GraphEdge&) = default;
  };
  // An edge of a deterministic graph: the bytes low to high, or a symbol of the counter.
  struct Arc {
    enum class Symbol : uint8_t { kBytes, kTick, kEnough };
    uint32_t from = 0, to = 0;
    uint8_t low = 0, high = 0;
    Symbol symbol = Symbol::kBytes;
    friend bool operator==(const Arc&, const Arc&) = default;
  };
  struct Graph {
    uint32_t num_states = 0;
    std::vector<GraphEdge> edges;
    std::vector<uint32_t> finals;
    // A deterministic graph has arcs, sorted by state, and no edges; each state leads to a final
    // one.
    bool deterministic = false;
    std::vector<Arc> arcs;
    std::vector<uint16_t> tags;  // [state] lexeme tags (lexeme.h), or empty
    friend bool operator==(const Graph&, const Graph&) = default;
  };
  struct Node {
    Op op = Op::kNever;
    uint32_t first = 0;  // kBytes: index of the byte set; kRule: the rule; else index into children
    uint32_t count = 0;  // number of children (of a graph: the expressions of its edges)
    uint32_t graph = 0;  // kGraph: index of the graph
    int32_t min = 0, max = 0;
  };
  Ir();

  ExprId never() const { return 0; }
  ExprId empty() const { return 1; }
  ExprId bytes(const ByteSet& set);
  ExprId byte(uint8_t value);
  ExprId literal(std::string_view text);
  ExprId sequence(std::span<const ExprId> parts);
  ExprId sequence(std::initializer_list<ExprId> parts) {
    return sequence(std::span(parts.begin(), parts.size()));
  }
  ExprId choice(std::span<const ExprId> parts);
  ExprId choice(std::initializer_list<ExprId> parts) {
    return choice(std::span(parts.begin(), parts.size()));
  }
  ExprId repeat(ExprId part, int32_t min, int32_t max);  // 0 <= min, min <= max or kUnbounded
  ExprId optional(ExprId part) { return repeat(part, 0, 1); }
  ExprId star(ExprId part) { return repeat(part, 0, kUnbounded); }

  ExprId graph(Graph graph);

  // Returns one UTF-8 encoded character out of `ranges`, in any order.
  ExprId chars(std::vector<CodeRange> ranges);

  // Returns a choice of literals as a trie, so that thousands share their prefixes.
  ExprId literals(std::vector<std::string> texts);

  ExprId rule(RuleId rule);

  ExprId tick() { return intern(Op::kTick, {}, 0, 0, 0); }
  ExprId enough() { return intern(Op::kEnough, {}, 0, 0, 0); }

  const Node& node(ExprId id) const { return nodes_[id]; }
  std::span<const ExprId> children(ExprId id) const {
    return {children_.data() + nodes_[id].first, nodes_[id].count};
  }
  const Graph& graph_of(ExprId id) const { return graphs_[nodes_[id].graph]; }
  const std::vector<Graph>& graphs() const { return graphs_; }
  const ByteSet& byte_set(ExprId id) const { return sets_[nodes_[id].first]; }
  IrRules& rules() { return rules_; }
  const IrRules& rules() const { return rules_; }
  size_t size() const { return nodes_.size(); }
  size_t num_bytes() const;  // held, with what the checkers hold

 private:
  // REQUIRES: `parts` does not alias children_.
  ExprId intern(Op op, std::span<const ExprId> parts, uint32_t payload, int32_t min, int32_t max);
  ExprId flat_sequence();

  std::vector<Node> nodes_;
  std::vector<ExprId> children_;
  std::vector<ByteSet> sets_;
  std::vector<Graph> graphs_;
  IrRules rules_;
  FlatIndex set_index_, index_;             // byte sets and nodes by hash
  std::array<ExprId, 256> single_bytes_{};  // [byte] its expression; never(): not made yet
  // Scratch of one call.
  std::vector<ExprId> flat_;
  std::vector<uint32_t> seen_;  // [expression] the last choice that visited it
  uint32_t choices_ = 0;
};

}  // namespace espalier::grammar
