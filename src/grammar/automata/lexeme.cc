#include "grammar/automata/lexeme.h"

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

#include "base/check.h"
#include "grammar/automata/nfa.h"
#include "grammar/schema/json_syntax.h"

namespace espalier::grammar {
namespace {

constexpr uint8_t kDead = LexemeAutomaton::kDead;

// Returns the minimal DFA of the expression, with its start as state 0.
Ir::Graph minimal_graph(const Ir& ir, ExprId expr) {
  const Nfa nfa = nfa_of(ir, expr, [](RuleId) { return kInlineRule; }, {});
  const std::optional<Nfa> dfa = determinised(nfa, 4096, {});
  ESP_CHECK(dfa.has_value());
  return graph_of(minimised(*dfa, {}));
}

ExprId quoted_repeat(Ir& ir, ExprId one, ExprId last) {
  const ExprId quote = ir.literal("\"");
  return ir.sequence({quote, ir.star(one), last, quote});
}

LexemeAutomaton make_automaton(Lexeme lexeme) {
  Ir ir;
  const ExprId one = lexeme == Lexeme::kString ? JsonSyntax(ir, Whitespace::kCompact).string_char()
                                               : serialised_char(ir, {{0, 0x10ffff}});
  const Ir::Graph graph = minimal_graph(ir, quoted_repeat(ir, one, ir.empty()));
  ESP_CHECK(graph.num_states < kDead && graph.finals.size() == 1);
  LexemeAutomaton made;
  made.next.resize(graph.num_states);
  for (auto& row : made.next) row.fill(kDead);
  for (const Ir::Arc& arc : graph.arcs) {
    for (int b = arc.low; b <= arc.high; ++b) {
      made.next[arc.from][static_cast<size_t>(b)] = static_cast<uint8_t>(arc.to);
    }
  }
  made.inside = made.next[LexemeAutomaton::kStart]['"'];
  made.end = static_cast<uint8_t>(graph.finals[0]);
  made.arcs = graph.arcs;
  return made;
}

// Builds the graph once, in an Ir of its own.
Ir::Graph make_lexeme_graph(Lexeme lexeme) {
  const LexemeAutomaton& automaton = lexeme_automaton(lexeme);
  Ir::Graph graph;
  graph.deterministic = true;
  graph.num_states = static_cast<uint32_t>(automaton.next.size());
  graph.arcs = automaton.arcs;
  graph.finals = {automaton.end};
  for (uint32_t s = 0; s < graph.num_states; ++s) {
    graph.tags.push_back(to_number({lexeme, false, static_cast<uint8_t>(s)}));
  }
  return graph;
}

// The counted automaton's states carry the tags of the plain automaton's states that the same bytes
// lead to; ticks and kEnough stay within a state of the plain automaton.
Ir::Graph make_counted_graph() {
  Ir ir;
  const ExprId one = JsonSyntax(ir, Whitespace::kCompact).string_char();
  Ir::Graph graph =
      minimal_graph(ir, quoted_repeat(ir, ir.sequence({ir.tick(), one}), ir.enough()));
  const LexemeAutomaton& plain = lexeme_automaton(Lexeme::kString);
  std::vector<uint8_t> meant(graph.num_states, kDead);
  meant[0] = LexemeAutomaton::kStart;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Ir::Arc& arc : graph.arcs) {
      if (meant[arc.from] == kDead || meant[arc.to] != kDead) continue;
      const bool symbol = arc.symbol != Ir::Arc::Symbol::kBytes;
      meant[arc.to] = symbol ? meant[arc.from] : plain.next[meant[arc.from]][arc.low];
      changed = true;
    }
  }
  for (uint8_t state : meant) graph.tags.push_back(to_number({Lexeme::kString, true, state}));
  return graph;
}

}  // namespace

ExprId serialised_char(Ir& ir, const std::vector<CodeRange>& ranges) {
  constexpr std::pair<uint32_t, const char*> kEscapes[] = {
      {'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"},
      {'\n', "\\n"}, {'\r', "\\r"},  {'\t', "\\t"}};
  std::vector<ExprId> parts;
  std::vector<CodeRange> plain;
  for (const CodeRange& r : normalized(ranges)) {
    uint32_t from = r.low;
    for (; from < 0x20 && from <= r.high; ++from) {
      constexpr char kHex[] = "0123456789abcdef";
      const auto* known =
          std::ranges::find(kEscapes, from, &std::pair<uint32_t, const char*>::first);
      if (known != std::end(kEscapes)) {
        parts.push_back(ir.literal(known->second));
      } else {
        const std::string head = std::string("\\u00") + kHex[from >> 4];
        const char low = kHex[from & 15];
        const ExprId last = low >= 'a' ? ir.choice({ir.byte(static_cast<uint8_t>(low)),
                                                    ir.byte(static_cast<uint8_t>(low - 32))})
                                       : ir.byte(static_cast<uint8_t>(low));
        parts.push_back(ir.sequence({ir.literal(head), last}));
      }
    }
    for (uint32_t special : {uint32_t{'"'}, uint32_t{'\\'}}) {
      if (from > special || special > r.high) continue;
      if (special > from) plain.push_back({from, special - 1});
      parts.push_back(ir.literal(special == '"' ? "\\\"" : "\\\\"));
      from = special + 1;
    }
    if (from <= r.high) plain.push_back({from, r.high});
  }
  parts.push_back(ir.chars(std::move(plain)));
  return ir.choice(parts);
}

const LexemeAutomaton& lexeme_automaton(Lexeme lexeme) {
  static const std::array<LexemeAutomaton, kNumLexemes> kAll = {make_automaton(Lexeme::kString),
                                                                make_automaton(Lexeme::kKey)};
  return kAll[static_cast<size_t>(lexeme)];
}

ExprId lexeme(Ir& ir, Lexeme lexeme) {
  static const std::array<Ir::Graph, kNumLexemes> kAll = {make_lexeme_graph(Lexeme::kString),
                                                          make_lexeme_graph(Lexeme::kKey)};
  return ir.graph(kAll[static_cast<size_t>(lexeme)]);
}

ExprId counted_string(Ir& ir) {
  static const Ir::Graph kGraph = make_counted_graph();
  return ir.graph(kGraph);
}

// The result runs the key automaton beside the trie of the names. While a text is a prefix of a
// name it is at a trie state, which has no edge for the closing quote of a name; any other byte
// leads into the key automaton's own states.
ExprId other_keys(Ir& ir, std::vector<std::string> names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.empty()) return lexeme(ir, Lexeme::kKey);
  const LexemeAutomaton& keys = lexeme_automaton(Lexeme::kKey);
  const auto shift = [&](uint8_t state) { return static_cast<uint32_t>(state) + 1; };
  // of the trie: names [begin, end) share `depth` bytes and are at `state` of the key automaton
  struct Place {
    size_t begin, end, depth;
    uint32_t id;
    uint8_t state;
  };
  Ir::Graph graph;
  graph.deterministic = true;
  graph.num_states = 1 + static_cast<uint32_t>(keys.next.size());
  graph.finals = {shift(keys.end)};
  std::vector<Place> work = {{0, names.size(), 0, 0, LexemeAutomaton::kStart}};
  std::vector<Ir::Arc> arcs;
  for (size_t i = 0; i < work.size(); ++i) {
    const Place place = work[i];
    auto child = place.begin;
    const auto [first, last] = std::ranges::equal_range(keys.arcs, place.state, {}, &Ir::Arc::from);
    for (auto arc = first; arc != last; ++arc) {
      uint32_t low = arc->low;
      // A name that the key automaton cannot spell is no key and is skipped.
      while (child < place.end && static_cast<uint8_t>(names[child][place.depth]) < arc->low)
        ++child;
      while (child < place.end && static_cast<uint8_t>(names[child][place.depth]) <= arc->high) {
        const auto byte = static_cast<uint8_t>(names[child][place.depth]);
        size_t end = child;
        while (end < place.end && static_cast<uint8_t>(names[end][place.depth]) == byte) ++end;
        if (low < byte) {
          arcs.push_back({place.id, shift(static_cast<uint8_t>(arc->to)), static_cast<uint8_t>(low),
                          static_cast<uint8_t>(byte - 1)});
        }
        if (names[child].size() > place.depth + 1) {
          arcs.push_back({place.id, graph.num_states, byte, byte});
          work.push_back(
              {child, end, place.depth + 1, graph.num_states++, static_cast<uint8_t>(arc->to)});
        }
        low = byte + 1u;
        child = end;
      }
      if (low <= arc->high) {
        arcs.push_back(
            {place.id, shift(static_cast<uint8_t>(arc->to)), static_cast<uint8_t>(low), arc->high});
      }
    }
  }
  graph.arcs.reserve(arcs.size() + keys.arcs.size());
  // The key automaton's own states follow the start.
  size_t at = 0;
  while (at < arcs.size() && arcs[at].from == 0) graph.arcs.push_back(arcs[at++]);
  for (Ir::Arc arc : keys.arcs) {
    arc.from = shift(static_cast<uint8_t>(arc.from));
    arc.to = shift(static_cast<uint8_t>(arc.to));
    graph.arcs.push_back(arc);
  }
  graph.arcs.insert(graph.arcs.end(), arcs.begin() + static_cast<std::ptrdiff_t>(at), arcs.end());
  graph.tags.assign(graph.num_states, 0);
  for (uint32_t s = 0; s < keys.next.size(); ++s) {
    graph.tags[s + 1] = to_number({Lexeme::kKey, false, static_cast<uint8_t>(s)});
  }
  return ir.graph(std::move(graph));
}

}  // namespace espalier::grammar
