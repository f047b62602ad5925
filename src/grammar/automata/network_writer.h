// Appends the automata of rules to a network, and finds which bytes a network distinguishes.
// Internal to automata/.
//
// Thread safety: none. Ownership: borrows the network.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/automata/nfa.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// How the lists of a network grow: by doubling, which copies least, or by a sixteenth, so that the
// unused end of a list is small. The allocator takes that end from memory that was in use before,
// so it is resident although the list has not written it.
enum class NetworkGrowth : uint8_t { kDoubles, kTight };

// See the head of this file.
class NetworkWriter {
 public:
  NetworkWriter(Network& network, NetworkGrowth growth) : network_(network), growth_(growth) {}

  // Append the automaton of a rule: a deterministic graph, which stays as it is, or any automaton.
  // Returns the start.
  NodeId add_rule(const IrRules::Rule& rule, const Ir::Graph& graph);
  NodeId add_rule(const IrRules::Rule& rule, const Nfa& nfa);

 private:
  NodeId append_graph(const IrRules::Rule& from, const Ir::Graph& graph);
  NodeId append_nfa(const IrRules::Rule& from, const Nfa& nfa);
  void find_room(NodeId base, size_t counter);
  void finish(NodeId base, NodeId start, const IrRules::Rule& rule);
  bool is_deterministic(NodeId base) const;
  bool follow_string(NodeId base, NodeId start, std::vector<uint8_t>& states) const;
  void find_string_states(NodeId base, NodeId start);
  template <typename T>
  void append(std::vector<T>& list, const T& value) const {
    constexpr size_t kFew = 64;
    const size_t size = list.size();
    if (growth_ == NetworkGrowth::kTight && size == list.capacity())
      list.reserve(size + std::max({size / 16, std::min(size, kFew), size_t{1}}));
    list.push_back(value);
  }

  Network& network_;
  const NetworkGrowth growth_;
};

// Fills byte_class, class_sample and class_size: two bytes are in one class when the same byte sets
// and arcs of these expressions contain both.
void classify_bytes(const Ir& ir, std::span<const ExprId> reached, Network& network);

}  // namespace espalier::grammar
