// Masks of positions where whole character classes lead on, such as the classes of a pattern.
#include <algorithm>
#include <set>
#include <utility>

#include "grammar/masks/mask_cache.h"

namespace espalier::grammar {

// Adds to absorbing_ the sets between characters that one character of the class leads to; returns
// false where some such character leads nowhere. Sets `any` where some byte leads on.
bool MaskCache::lead_by_char_class(int kind, SetId from, bool& any) {
  const std::vector<CharClassEdge>& edges = char_class_edges_[static_cast<size_t>(kind)];
  bool all = true;
  amid_.clear();
  const auto follow = [&](auto&& self, uint8_t position, SetId at) -> void {
    SetId last = EarleyRecogniser::kDead;
    for (const CharClassEdge& edge : edges) {
      if (edge.from != position) continue;
      const SetId to = step(at, edge.byte);
      if (!leads_on(to)) {
        all = false;
        continue;
      }
      any = true;
      if (edge.to != CharClassAutomaton::kWhole) {
        if (std::ranges::find(amid_, std::pair(edge.to, to)) != amid_.end()) continue;
        amid_.emplace_back(edge.to, to);
        self(self, edge.to, to);
      } else if (to != last) {
        last = to;
        const SetId next = earley_.canonical(to);
        if (absorb_rounds_.size() <= next) absorb_rounds_.resize(earley_.num_sets() + next, 0);
        if (std::exchange(absorb_rounds_[next], absorb_round_) != absorb_round_) {
          absorbing_.push_back(next);
        }
      }
    }
  };
  follow(follow, CharClassAutomaton::kStart, from);
  return all;
}

// Returns the classes whose characters lead on however often they come, or, with `characters` set,
// up to that many characters, after which none of them may follow.
CharClassSet MaskCache::absorbed(SetId set, size_t& characters) {
  constexpr size_t kStatesMax = 300;
  const auto longest = static_cast<size_t>(trie_.all().depth_max);
  characters = std::string_view::npos;
  for (CharClassSet kinds = kAllCharClasses; kinds != 0;) {
    ++absorb_round_;
    absorbing_ = {set};
    CharClassSet failed = 0;
    size_t begin = 0;
    for (size_t level = 0; begin < absorbing_.size() && level <= longest; ++level) {
      bool any = false;
      for (const size_t end = absorbing_.size(); begin < end; ++begin) {
        for (int kind = 0; kind < kNumCharClasses; ++kind) {
          if (kinds >> kind & 1 && !lead_by_char_class(kind, absorbing_[begin], any))
            failed |= static_cast<CharClassSet>(1 << kind);
        }
      }
      if (level > 0 && !any) {
        // ASCII tokens are selected by length; the other tokens are walked.
        failed = kinds & ~kAsciiCharClasses;
        if (failed != 0) break;
        characters = level;
        return kinds;
      }
      if (absorbing_.size() > kStatesMax) return 0;
      if (failed != 0) break;
    }
    if (failed == 0) return kinds;
    kinds &= ~failed;
  }
  return 0;
}

// Allows at once the tokens made of classes that lead on; the others are walked.
bool MaskCache::by_char_classes(SetId set, Mask& mask) {
  if (char_class_edges_[0].empty()) make_char_class_edges();
  size_t characters = 0;
  const CharClassSet kinds = absorbed(set, characters);
  if (kinds == 0) return false;
  if (characters == std::string_view::npos) {
    mask.base = &trie_.of_char_classes(kinds);
  } else {
    mask.words.assign(scratch_.size(), 0);
    trie_.add_of_char_classes(kinds, characters, mask.words);
  }
  const TrieWalk& all = trie_.all();
  const std::vector<CharClassSet>& below = trie_.char_classes_below();
  walk_.run(
      all, set, TokenWalk::Steps::kByStates, [&](uint32_t t) { mask.allow(all.token_ids[t]); },
      [&](uint32_t begin, uint32_t end) { mask.ask(all, begin, end); },
      [&](uint32_t node) { return (below[node] & ~kinds) == 0; });
  return true;
}

void MaskCache::make_char_class_edges() {
  const Network& network = earley_.network();
  for (int kind = 0; kind < kNumCharClasses; ++kind) {
    const CharClassAutomaton& automaton = char_class_automaton(kind);
    for (size_t from = 0; from < automaton.next.size(); ++from) {
      std::set<std::pair<uint8_t, uint8_t>> known;  // (class, to)
      for (size_t b = 0; b < 256; ++b) {
        const uint8_t to = automaton.next[from][b];
        if (to == CharClassAutomaton::kDead) continue;
        if (!known.emplace(network.byte_class[b], to).second) continue;
        char_class_edges_[static_cast<size_t>(kind)].push_back(
            {static_cast<uint8_t>(from), static_cast<uint8_t>(b), to});
      }
    }
  }
}

}  // namespace espalier::grammar
