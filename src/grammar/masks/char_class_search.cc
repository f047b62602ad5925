#include "grammar/masks/char_class_search.h"

#include <algorithm>
#include <set>

namespace espalier::grammar {

// Follows the rest of a character of the class from a position inside it. The sets behind the
// character are appended to targets_, each once from its last list on.
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
      const auto begin = targets_.begin() + static_cast<std::ptrdiff_t>(targets_begin_);
      if (std::find(begin, targets_.end(), next) == targets_.end()) targets_.push_back(next);
    }
  }
  return all;
}

const CharClassSearch::Led& CharClassSearch::lead(int kind, SetId from) {
  const auto [it, added] = led_.try_emplace(uint64_t{from} << 4 | static_cast<uint64_t>(kind));
  Led& led = it->second;
  if (!added) return led;
  within_.clear();
  targets_begin_ = targets_.size();
  led.all = follow(kind, CharClassAutomaton::kStart, from, led.any);
  led.begin = static_cast<uint32_t>(targets_begin_);
  led.end = static_cast<uint32_t>(targets_.size());
  return led;
}

// Adds the sets that led_ names to found_, each once in a search.
void CharClassSearch::find(const Led& led) {
  for (uint32_t i = led.begin; i < led.end; ++i) {
    const SetId next = targets_[i];
    if (rounds_.size() <= next) rounds_.resize(earley_.num_sets() + next, 0);
    if (std::exchange(rounds_[next], round_) != round_) found_.push_back(next);
  }
}

CharClassSearch::Absorbed CharClassSearch::absorbed(SetId set) {
  constexpr size_t kSetsMax = 300;
  if (edges_[0].empty()) make_edges();
  if (led_.size() + targets_.size() > kLedMax) {
    led_.clear();
    targets_.clear();
  }
  for (CharClassSet kinds = kAllCharClasses; kinds != 0;) {
    ++round_;
    found_ = {set};
    CharClassSet failed = 0;
    size_t begin = 0;
    for (size_t level = 0; begin < found_.size() && level <= longest_; ++level) {
      bool any = false;
      for (const size_t end = found_.size(); begin < end; ++begin) {
        for (int kind = 0; kind < kNumCharClasses; ++kind) {
          if (!(kinds >> kind & 1)) continue;
          const Led& led = lead(kind, found_[begin]);
          any |= led.any;
          if (!led.all) failed |= static_cast<CharClassSet>(1 << kind);
          find(led);
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
