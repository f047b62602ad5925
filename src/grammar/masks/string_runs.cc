#include "grammar/masks/string_runs.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace espalier::grammar {
namespace {

// Rows deeper than this, or with fewer nodes below them, have no runs.
constexpr uint16_t kStringDepthMax = 4;
constexpr uint32_t kStringNodesMin = 16;
constexpr size_t kStringRunsMax = 1000;

using TextOf = std::function<std::string_view(TokenId)>;

StringRun run_of(const TrieWalk& all, uint32_t node, Lexeme lexeme, const TextOf& text_of) {
  const LexemeAutomaton& automaton = lexeme_automaton(lexeme);
  StringRun out;
  struct Tail {
    uint32_t token;
    uint16_t characters;
    std::string_view text;
  };
  std::unordered_map<TokenId, Tail> tails;
  std::vector<TokenId> tail_ids;
  const uint32_t end = all.nodes[all.nodes[node].skip].tokens_begin;
  for (uint32_t t = all.nodes[node + 1].tokens_begin; t < end; ++t) {
    const TokenId id = all.token_ids[t];
    std::string_view rest = text_of(id).substr(all.nodes[node].depth + size_t{1});
    uint8_t state = automaton.inside;
    uint16_t characters = 0;
    while (!rest.empty() && state != LexemeAutomaton::kDead && state != automaton.end) {
      const uint8_t to = automaton.next[state][static_cast<uint8_t>(rest[0])];
      if (state == automaton.inside && to != automaton.end) ++characters;
      state = to;
      rest.remove_prefix(1);
    }
    if (state == LexemeAutomaton::kDead) continue;
    out.characters_max = std::max<uint32_t>(out.characters_max, characters);
    if (state == automaton.end) {
      tails.emplace(id, Tail{t, characters, rest});
      tail_ids.push_back(id);
    } else {
      out.run.whole.push_back(t);
      out.run.whole_ids.push_back(id);
    }
  }
  out.run.rests =
      build_plain_walk(std::move(tail_ids), [&](TokenId id) { return tails.at(id).text; });
  for (const TokenId id : out.run.rests.token_ids) {
    out.run.rests_of.push_back(tails.at(id).token);
    out.characters.push_back(tails.at(id).characters);
  }
  return out;
}

}  // namespace

void StringRuns::build(const TrieWalk& all, const TextOf& text_of) {
  std::vector<uint32_t> open;  // the nodes above the current one, and itself
  for (uint32_t i = 0; i + 1 < all.nodes.size() && runs_.size() < kStringRunsMax; ++i) {
    while (!open.empty() && all.nodes[open.back()].skip <= i) open.pop_back();
    open.push_back(i);
    if (all.nodes[i].depth >= kStringDepthMax || all.nodes[i].skip - i <= kStringNodesMin) continue;
    if (std::ranges::none_of(open, [&](uint32_t node) { return all.nodes[node].byte == '"'; }))
      continue;
    at_.resize(i + size_t{2}, 0);
    runs_.push_back(
        {run_of(all, i, Lexeme::kString, text_of), run_of(all, i, Lexeme::kKey, text_of)});
    at_[i + 1] = static_cast<uint16_t>(runs_.size());
  }
}

}  // namespace espalier::grammar
