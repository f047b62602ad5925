#include "grammar/automata/network_writer.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "grammar/automata/lexeme.h"

namespace espalier::grammar {

NodeId NetworkWriter::add_rule(const IrRules::Rule& rule, const Ir::Graph& graph) {
  const NodeId base = append_graph(rule, graph);
  finish(base, base, rule);
  return base;
}

NodeId NetworkWriter::add_rule(const IrRules::Rule& rule, const Nfa& nfa) {
  const NodeId base = append_nfa(rule, nfa);
  finish(base, base + nfa.start, rule);
  return base + nfa.start;
}

// Completes the nodes from `base` on, which are those of one rule.
void NetworkWriter::finish(NodeId base, NodeId start, const IrRules::Rule& rule) {
  if (rule.counter >= 0) find_room(base, static_cast<size_t>(rule.counter));
  const auto end = static_cast<NodeId>(network_.nodes.size());
  bool closed = true;
  for (NodeId id = base; id < end && closed; ++id)
    closed =
        network_.calls_of(id).empty() && (!network_.nodes[id].final || network_.only_final(id));
  for (NodeId id = base; id < end; ++id) network_.nodes[id].closed = closed;
  if (closed) find_string_states(base, start);
}

bool NetworkWriter::is_deterministic(NodeId base) const {
  const auto overlap = [](const auto& a, const auto& b) { return b.low <= a.high; };
  for (auto id = base; id < network_.nodes.size(); ++id) {
    const std::span<const Network::ByteEdge> edges = network_.bytes_of(id);
    if (!network_.counts_of(id).empty() ||
        std::ranges::adjacent_find(edges, overlap) != edges.end())
      return false;
  }
  return true;
}

// Follows the rule's texts beside the automaton of JSON strings; states[i] becomes the state at
// node base + i. Returns false where some text is no string, or a node is reached in two states.
bool NetworkWriter::follow_string(NodeId base, NodeId start, std::vector<uint8_t>& states) const {
  const LexemeAutomaton& strings = lexeme_automaton(Lexeme::kString);
  std::vector<NodeId> open = {start};
  states[start - base] = LexemeAutomaton::kStart;
  bool alike = true;
  const auto reach = [&](NodeId id, uint8_t state) {
    uint8_t& known = states[id - base];
    if (known == Network::Node::kNoState) open.push_back(id);
    alike &= state != LexemeAutomaton::kDead &&
             (known == Network::Node::kNoState || known == state) &&
             network_.nodes[id].final == (state == strings.end);
    known = state;
  };
  while (alike && !open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    const uint8_t state = states[id - base];
    for (const Network::CountEdge& edge : network_.counts_of(id)) reach(edge.target, state);
    for (const Network::ByteEdge& edge : network_.bytes_of(id)) {
      for (size_t byte = edge.low; byte <= edge.high; ++byte)
        reach(edge.target, strings.next[state][byte]);
    }
  }
  return alike;
}

void NetworkWriter::find_string_states(NodeId base, NodeId start) {
  const auto nodes = std::span(network_.nodes).subspan(base);
  const auto is_final = [](const Network::Node& node) { return node.final; };
  const auto final_node = std::ranges::find_if(nodes, is_final);
  const auto has_tag = [](const Network::Node& node) { return node.tag != 0; };
  std::vector<uint8_t> states(nodes.size(), Network::Node::kNoState);
  if (std::ranges::any_of(nodes, has_tag) || std::ranges::count_if(nodes, is_final) != 1 ||
      !follow_string(base, start, states))
    return;
  const bool deterministic = is_deterministic(base);
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].string_state = states[i];
    nodes[i].deterministic = deterministic;
    nodes[i].end = base + static_cast<NodeId>(final_node - nodes.begin());
  }
}

// Appends a deterministic graph unchanged.
NodeId NetworkWriter::append_graph(const IrRules::Rule& from, const Ir::Graph& graph) {
  const auto base = static_cast<NodeId>(network_.nodes.size());
  std::vector<uint32_t> ends(graph.num_states + 1, 0);  // of each state's arcs, by counting
  for (const Ir::Arc& arc : graph.arcs) ++ends[arc.from + 1];
  for (size_t s = 1; s < ends.size(); ++s) ends[s] += ends[s - 1];
  std::vector<const Ir::Arc*> arcs(graph.arcs.size());
  std::vector<uint32_t> next(ends.begin(), ends.end() - 1);
  for (const Ir::Arc& arc : graph.arcs) arcs[next[arc.from]++] = &arc;
  for (uint32_t s = 0; s < graph.num_states; ++s) {
    Network::Node node;
    if (!graph.tags.empty()) node.tag = graph.tags[s];
    node.end = base + graph.finals.back();  // a graph with tags has one final state
    node.check = from.check;
    node.counter = from.counter;
    node.bytes_begin = static_cast<uint32_t>(network_.byte_edges.size());
    node.counts_begin = static_cast<uint32_t>(network_.count_edges.size());
    node.calls_begin = node.calls_end = static_cast<uint32_t>(network_.call_edges.size());
    for (uint32_t i = ends[s]; i < ends[s + 1]; ++i) {
      const Ir::Arc& arc = *arcs[i];
      if (arc.symbol == Ir::Arc::Symbol::kBytes) {
        append(network_.byte_edges, {arc.low, arc.high, base + arc.to});
      } else {
        append(network_.count_edges, {base + arc.to, arc.symbol == Ir::Arc::Symbol::kTick, 0});
      }
    }
    node.bytes_end = static_cast<uint32_t>(network_.byte_edges.size());
    node.counts_end = static_cast<uint32_t>(network_.count_edges.size());
    append(network_.nodes, node);
  }
  for (uint32_t state : graph.finals) network_.nodes[base + state].final = true;
  return base;
}

NodeId NetworkWriter::append_nfa(const IrRules::Rule& from, const Nfa& nfa) {
  const auto base = static_cast<NodeId>(network_.nodes.size());
  for (NodeId s = 0; s < nfa.states.size(); ++s) {
    Network::Node node;
    node.final = nfa.states[s].final;
    node.check = from.check;
    node.counter = from.counter;
    node.counts_begin = static_cast<uint32_t>(network_.count_edges.size());
    node.bytes_begin = static_cast<uint32_t>(network_.byte_edges.size());
    node.calls_begin = static_cast<uint32_t>(network_.call_edges.size());
    for (const Nfa::Edge& e : nfa.edges_of(s)) {
      if (e.is_empty) {
        append(network_.call_edges, {Network::kNoRule, base + e.target, false});
      } else if (e.call < 0) {
        append(network_.byte_edges, {e.low, e.high, base + e.target});
      } else if (e.call >= kTickCall) {
        append(network_.count_edges, {base + e.target, e.call == kTickCall, 0});
      } else {
        // A rule with a check must return itself, so it is no tail call.
        const bool tail =
            from.check < 0 && nfa.states[e.target].final && nfa.edges_of(e.target).empty();
        append(network_.call_edges, {static_cast<RuleId>(e.call), base + e.target, tail});
      }
    }
    node.bytes_end = static_cast<uint32_t>(network_.byte_edges.size());
    node.calls_end = static_cast<uint32_t>(network_.call_edges.size());
    node.counts_end = static_cast<uint32_t>(network_.count_edges.size());
    append(network_.nodes, node);
  }
  return base;
}

// Computes the least number of ticks from each node of a counted rule to its end, by relaxation;
// such rules are small.
void NetworkWriter::find_room(NodeId base, size_t counter) {
  constexpr uint32_t kFar = 1u << 30;
  const auto end = static_cast<NodeId>(network_.nodes.size());
  std::vector<uint32_t> least(end - base, kFar);
  for (NodeId id = base; id < end; ++id) {
    if (network_.nodes[id].final) least[id - base] = 0;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (NodeId id = end; id-- > base;) {
      uint32_t now = least[id - base];
      for (const auto& e : network_.bytes_of(id)) now = std::min(now, least[e.target - base]);
      for (const auto& e : network_.calls_of(id)) now = std::min(now, least[e.target - base]);
      for (const auto& e : network_.counts_of(id)) {
        now = std::min(now, least[e.target - base] + (e.tick ? 1 : 0));
      }
      changed |= now != least[id - base];
      least[id - base] = now;
    }
  }
  for (NodeId id = base; id < end; ++id) {
    network_.nodes[id].room = least[id - base];
    for (uint32_t i = network_.nodes[id].counts_begin; i < network_.nodes[id].counts_end; ++i) {
      Network::CountEdge& edge = network_.count_edges[i];
      edge.room = least[edge.target - base];
      network_.room_max[counter] = std::max(network_.room_max[counter], edge.room);
    }
  }
}

// Each byte's hash sums over the sets and arcs that cover it.
void classify_bytes(const Ir& ir, std::span<const ExprId> reached, Network& network) {
  std::array<uint64_t, 257> delta{};
  const auto add = [&](int low, int high, uint64_t h) {
    delta[static_cast<size_t>(low)] += h;
    delta[static_cast<size_t>(high) + 1] -= h;
  };
  for (ExprId id : reached) {
    const Ir::Node& node = ir.node(id);
    if (node.op == Ir::Op::kBytes) {
      const uint64_t h = mix64(id);
      const ByteSet& set = ir.byte_set(id);
      for (size_t low = set._Find_first(); low < 256;) {
        size_t high = low;
        while (high < 255 && set[high + 1]) ++high;
        add(static_cast<int>(low), static_cast<int>(high), h);
        low = set._Find_next(high);
      }
    } else if (node.op == Ir::Op::kGraph) {
      const uint64_t seed = mix64(id);
      for (const Ir::Arc& arc : ir.graph_of(id).arcs) {
        if (arc.symbol != Ir::Arc::Symbol::kBytes) continue;
        add(arc.low, arc.high, mix64(seed ^ (uint64_t{arc.from} << 32 | arc.to)));
      }
    }
  }
  std::unordered_map<uint64_t, uint8_t> classes;
  uint64_t sum = 0;
  for (size_t b = 0; b < 256; ++b) {
    sum += delta[b];
    const auto [it, added] = classes.try_emplace(sum, static_cast<uint8_t>(classes.size()));
    if (added) {
      network.class_sample.push_back(static_cast<uint8_t>(b));
      network.class_size.push_back(0);
    }
    network.byte_class[b] = it->second;
    ++network.class_size[it->second];
  }
}

}  // namespace espalier::grammar
