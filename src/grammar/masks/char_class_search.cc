#include "grammar/masks/char_class_search.h"

#include <algorithm>
#include <set>

namespace espalier::grammar {

// Follows the rest of a character of the class from a position inside it.
bool CharClassSearch::follow(int kind, uint8_t position, SetId at, bool& any) {
  bool all = true;
  SetId last = EarleySets::kDead;
  for (const Edge& edge : edges_[static_cast<size_t>(kind)]) {
    if (edge.from != position) continue;
    const SetId to = earley_.step_without_text(at, edge.byte);
    if (!EarleySets::leads_on(to)) {
      all = false;
      continue;
    }
    any = true;
    if (edge.to != CharClassAutomaton::kWhole) {
      if (std::ranges::find(within_, std::pair(edge.to, to)) != within_.end()) continue;
      within_.emplace_back(edge.to, to);
      all &= follow(kind, edge.to, to, any);
    } else if (to != last) {
      last = to;
      const SetId next = earley_.canonical(to);
      if (rounds_.size() <= next) rounds_.resize(earley_.num_sets() + next, 0);
      if (std::exchange(rounds_[next], round_) != round_) found_.push_back(next);
    }
  }
  return all;
}

// Adds to found_ the sets between characters that one character of the class leads to; returns
// false where some such character leads nowhere. Sets `any` where some byte leads on.
bool CharClassSearch::lead(int kind, SetId from, bool& any) {
  within_.clear();
  return follow(kind, CharClassAutomaton::kStart, from, any);
}

CharClassSearch::Absorbed CharClassSearch::absorbed(SetId set) {
  constexpr size_t kSetsMax = 300;
  if (edges_[0].empty()) make_edges();
  for (CharClassSet kinds = kAllCharClasses; kinds != 0;) {
    ++round_;
    found_ = {set};
    CharClassSet failed = 0;
    size_t begin = 0;
    for (size_t level = 0; begin < found_.size() && level <= longest_; ++level) {
      bool any = false;
      for (const size_t end = found_.size(); begin < end; ++begin) {
        for (int kind = 0; kind < kNumCharClasses; ++kind) {
          if (kinds >> kind & 1 && !lead(kind, found_[begin], any))
            failed |= static_cast<CharClassSet>(1 << kind);
        }
      }
      if (level > 0 && !any) {
        // ASCII tokens are selected by length; the other tokens are walked.
        failed = kinds & ~kAsciiCharClasses;
        if (failed == 0) return {kinds, level};
        break;
      }
      if (found_.size() > kSetsMax) return {};
      if (failed != 0) break;
    }
    if (failed == 0) return {kinds};
    kinds &= ~failed;
  }
  return {};
}

void CharClassSearch::make_edges() {
  const Network& network = earley_.network();
  for (int kind = 0; kind < kNumCharClasses; ++kind) {
    const CharClassAutomaton& automaton = char_class_automaton(kind);
    for (size_t from = 0; from < automaton.next.size(); ++from) {
      std::set<std::pair<uint8_t, uint8_t>> known;  // (class, to)
      for (size_t b = 0; b < 256; ++b) {
        const uint8_t to = automaton.next[from][b];
        if (to == CharClassAutomaton::kDead) continue;
        if (!known.emplace(network.byte_class[b], to).second) continue;
        edges_[static_cast<size_t>(kind)].push_back(
            {static_cast<uint8_t>(from), static_cast<uint8_t>(b), to});
      }
    }
  }
}

}  // namespace espalier::grammar
