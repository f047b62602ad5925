#include "grammar/masks/string_insides.h"

#include <algorithm>
#include <deque>
#include <span>
#include <utility>

namespace espalier::grammar {
namespace {

// Bounds on the sets and the automaton positions that are examined together.
constexpr size_t kSetsMax = 8;
constexpr size_t kPositionsMax = 8000;

constexpr std::pair<int, int> kAscii[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7f}};

// The characters of more than one byte, by their lead byte.
struct MultiByte {
  int lead_low, lead_high, low, high, more;  // lead bytes, second byte, number of further bytes
};
constexpr MultiByte kMultiByte[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1},
                                    {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
                                    {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
                                    {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};

// A step between positions inside a character: bytes low to high lead to the position `to`.
// Position 0 is between characters; the others are named by the bytes that the character needs.
struct CharStep {
  uint8_t low, high, to;
};
std::span<const CharStep> char_steps(uint8_t position) {
  static constexpr CharStep kBetween[] = {{0x20, 0x21, 0}, {0x23, 0x5b, 0}, {0x5d, 0x7f, 0},
                                          {0xc2, 0xdf, 1}, {0xe0, 0xe0, 4}, {0xe1, 0xec, 2},
                                          {0xed, 0xed, 5}, {0xee, 0xef, 2}, {0xf0, 0xf0, 6},
                                          {0xf1, 0xf3, 3}, {0xf4, 0xf4, 7}};
  static constexpr CharStep kWithin[] = {{0x80, 0xbf, 0}, {0x80, 0xbf, 1}, {0x80, 0xbf, 2},
                                         {0xa0, 0xbf, 1}, {0x80, 0x9f, 1}, {0x90, 0xbf, 2},
                                         {0x80, 0x8f, 2}};
  if (position == 0) return kBetween;
  return {kWithin + position - 1, 1};
}

uint64_t key_of(NodeId node, uint8_t char_position) { return uint64_t{node} << 3 | char_position; }
NodeId node_of(uint64_t key) { return static_cast<NodeId>(key >> 3); }
uint8_t char_position_of(uint64_t key) { return key & 7; }

// Calls use(position) for each position that one byte of a character leads to within the rule.
template <typename Use>
void for_each_next(const Network& network, uint64_t position, Use use) {
  for (const CharStep& step : char_steps(char_position_of(position))) {
    for (const Network::ByteEdge& edge : network.bytes_of(node_of(position))) {
      if (edge.high >= step.low && step.high >= edge.low) use(key_of(edge.target, step.to));
    }
  }
}

}  // namespace

// Returns whether a character of a string's inside may begin with any byte that begins one.
bool StringInsides::may_begin_all(const EarleyPosition& position) const {
  ByteMask wanted, bytes;
  for (const auto& [low, high] : kAscii) wanted.add(low, high);
  wanted.add(0xc2, 0xf4);
  positions_.add_bytes(position, bytes);
  for (size_t w = 0; w < bytes.words.size(); ++w) {
    if ((wanted.words[w] & ~bytes.words[w]) != 0) return false;
  }
  return true;
}

// Adds the sets that `more` + 1 bytes lead to, the first of them in [low, high]. Returns false
// where some of them lead nowhere, or to more than kSetsMax sets.
bool StringInsides::lead(SetId from, int low, int high, int more, std::vector<SetId>& out) {
  SetId last = EarleySets::kDead;
  for (int b = low; b <= high; ++b) {
    const SetId to = earley_.step_without_text(from, static_cast<uint8_t>(b));
    if (!EarleySets::leads_on(to)) return false;
    if (to == last) continue;
    last = to;
    if (more > 0) {
      if (!lead(to, 0x80, 0xbf, more - 1, out)) return false;
    } else if (std::ranges::find(out, to) == out.end()) {
      if (out.size() == kSetsMax) return false;
      out.push_back(to);
    }
  }
  return true;
}

// Collects the sets that characters of a JSON string's inside lead to. Returns false where some
// character leads nowhere, or to more than kSetsMax sets.
bool StringInsides::successors(SetId set, std::vector<SetId>& out) {
  // Most sets that are not inside a string are rejected here.
  if (!may_begin_all(positions_.position_of(set))) return false;
  for (const auto& [low, high] : kAscii) {
    if (!lead(set, low, high, 0, out)) return false;
  }
  for (const MultiByte& chars : kMultiByte) {
    SetId last = EarleySets::kDead;
    for (int first = chars.lead_low; first <= chars.lead_high; ++first) {
      const SetId to = earley_.step_without_text(set, static_cast<uint8_t>(first));
      if (!EarleySets::leads_on(to)) return false;
      if (to != last && !lead(to, chars.low, chars.high, chars.more, out)) return false;
      last = to;
    }
  }
  return true;
}

SetId StringInsides::next(SetId set) {
  const auto [it, added] = next_.try_emplace(set, EarleySets::kDead);
  if (!added) return it->second;
  std::vector<SetId> next;
  const bool one = successors(set, next) && next.size() == 1;
  return next_[set] = one ? next[0] : EarleySets::kDead;
}

bool StringInsides::ends(SetId set) {
  for (int b = 0x20; b < 0x100; ++b) {
    if (b == '"' || b == '\\') continue;
    if (earley_.step_without_text(set, static_cast<uint8_t>(b)) != EarleySets::kDead) return false;
  }
  return true;
}

// Collects all positions that characters lead to from the first one. Returns false where a counter
// counts, or there are too many.
bool StringInsides::collect(std::vector<uint64_t>& positions, Candidates& holds) const {
  const Network& network = earley_.network();
  for (size_t i = 0; i < positions.size(); ++i) {
    const NodeId node = node_of(positions[i]);
    if (network.nodes[node].counter >= 0 || positions.size() > kPositionsMax) return false;
    for_each_next(network, positions[i], [&](uint64_t to) {
      if (holds.emplace(to, true).second) positions.push_back(to);
    });
  }
  return true;
}

// Removes positions from which some character does not lead to a remaining position, until no such
// position remains or the first one is removed.
void StringInsides::reduce(const std::vector<uint64_t>& positions, Candidates& holds) const {
  const Network& network = earley_.network();
  const auto covered = [&](NodeId node, const CharStep& step) {
    int next = step.low;
    for (bool more = true; more && next <= step.high;) {
      more = false;
      for (const Network::ByteEdge& edge : network.bytes_of(node)) {
        if (next > step.high || edge.low > next || edge.high < next ||
            !holds.at(key_of(edge.target, step.to)))
          continue;
        next = edge.high + 1;
        more = true;
      }
    }
    return next > step.high;
  };
  for (bool changed = true; changed && holds.at(positions[0]);) {
    changed = false;
    for (size_t i = positions.size(); i-- > 0;) {
      bool& now = holds.at(positions[i]);
      if (!now) continue;
      now = std::ranges::all_of(
          char_steps(char_position_of(positions[i])),
          [&](const CharStep& step) { return covered(node_of(positions[i]), step); });
      changed |= !now;
    }
  }
}

// Returns whether a quote or a control character may follow, in the rule or behind it.
bool StringInsides::may_exit(NodeId id) const {
  const Network& network = earley_.network();
  if (network.nodes[id].final || !network.calls_of(id).empty() || !network.counts_of(id).empty())
    return true;
  return std::ranges::any_of(network.bytes_of(id), [](const Network::ByteEdge& edge) {
    return edge.low < 0x20 || (edge.low <= '"' && '"' <= edge.high);
  });
}

// Fills exits_ by a search from the exits backwards, in which a step to a position between
// characters counts as one and the others as none. REQUIRES: `positions` has every position that
// one of them leads to.
void StringInsides::measure(const std::vector<uint64_t>& positions) {
  std::vector<std::pair<uint64_t, uint64_t>> steps;  // (to, from)
  std::deque<uint64_t> open;
  for (const uint64_t from : positions) {
    for_each_next(earley_.network(), from, [&](uint64_t to) { steps.emplace_back(to, from); });
    if (char_position_of(from) != 0 || !may_exit(node_of(from))) continue;
    exits_[from] = 0;
    open.push_back(from);
  }
  std::ranges::sort(steps);
  while (!open.empty()) {
    const uint64_t to = open.front();
    open.pop_front();
    const bool counts = char_position_of(to) == 0;
    const auto characters = static_cast<uint16_t>(exits_.at(to) + (counts ? 1 : 0));
    for (auto step = std::ranges::lower_bound(steps, std::pair(to, uint64_t{0}));
         step != steps.end() && step->first == to; ++step) {
      const auto [at, added] = exits_.try_emplace(step->second, characters);
      if (!added && at->second <= characters) continue;
      at->second = characters;
      counts ? open.push_back(step->second) : open.push_front(step->second);
    }
  }
}

bool StringInsides::known_to_stay(NodeId node) const {
  const auto known = stays_.find(key_of(node, 0));
  return known != stays_.end() && known->second;
}

uint16_t StringInsides::characters_to_exit(NodeId node) const {
  const auto known = exits_.find(key_of(node, 0));
  return known == exits_.end() ? kNever : known->second;
}

// Computes the greatest set of positions that lead to such positions by every character.
bool StringInsides::stays(NodeId start) {
  const uint64_t first = key_of(start, 0);
  if (const auto it = stays_.find(first); it != stays_.end()) return it->second;
  // Most nodes of patterns are rejected here, before all positions are collected.
  if (!may_begin_all({EarleyPosition::kInRule, start})) return false;
  std::vector<uint64_t> positions = {first};
  Candidates holds = {{first, true}};
  if (!collect(positions, holds)) return stays_[first] = false;
  reduce(positions, holds);
  if (!holds.at(first)) return stays_[first] = false;
  stays_.insert(holds.begin(), holds.end());
  measure(positions);
  return true;
}

}  // namespace espalier::grammar
