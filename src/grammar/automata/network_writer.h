// Appends the automata of rules to a network, and finds which bytes a network distinguishes.
// Internal to automata/.
//
// Thread safety: none. Ownership: borrows the network.
#pragma once

#include <cstddef>
#include <span>

#include "grammar/automata/nfa.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// See the head of this file.
class NetworkWriter {
 public:
  explicit NetworkWriter(Network& network) : network_(network) {}

  // Append the automaton of a rule: a deterministic graph, which stays as it is, or any automaton.
  // Returns the start.
  NodeId add_rule(const IrRules::Rule& rule, const Ir::Graph& graph);
  NodeId add_rule(const IrRules::Rule& rule, const Nfa& nfa);

 private:
  NodeId append_graph(const IrRules::Rule& from, const Ir::Graph& graph);
  NodeId append_nfa(const IrRules::Rule& from, const Nfa& nfa);
  void find_room(NodeId base, size_t counter);
  void finish(NodeId base, const IrRules::Rule& rule);

  Network& network_;
};

// Fills byte_class, class_sample and class_size: two bytes are in one class when the same byte sets
// and arcs of these expressions contain both.
void classify_bytes(const Ir& ir, std::span<const ExprId> reached, Network& network);

}  // namespace espalier::grammar
