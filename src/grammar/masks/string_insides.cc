#include "grammar/masks/string_insides.h"

#include <algorithm>
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
    for (const CharStep& step : char_steps(char_position_of(positions[i]))) {
      for (const Network::ByteEdge& edge : network.bytes_of(node)) {
        if (edge.high < step.low || step.high < edge.low) continue;
        const uint64_t to = key_of(edge.target, step.to);
        if (holds.emplace(to, true).second) positions.push_back(to);
      }
    }
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
  return true;
}

}  // namespace espalier::grammar
