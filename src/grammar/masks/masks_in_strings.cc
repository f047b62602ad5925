// Masks of positions inside strings: inside lexemes, whose masks the vocabulary holds, and inside
// patterns.
#include <algorithm>
#include <span>
#include <utility>

#include "grammar/masks/mask_cache.h"

namespace espalier::grammar {
namespace {

// Bounds on the sets and the automaton positions that are examined together.
constexpr size_t kInsideStatesMax = 8;
constexpr size_t kInsidePlacesMax = 8000;

// A position of a string's inside: between characters (0), or within one, by the bytes that it
// still needs. Bytes low to high lead to the position `to`.
struct InsideStep {
  uint8_t low, high, to;
};
std::span<const InsideStep> inside_steps(uint8_t kind) {
  static constexpr InsideStep kBetween[] = {{0x20, 0x21, 0}, {0x23, 0x5b, 0}, {0x5d, 0x7f, 0},
                                            {0xc2, 0xdf, 1}, {0xe0, 0xe0, 4}, {0xe1, 0xec, 2},
                                            {0xed, 0xed, 5}, {0xee, 0xef, 2}, {0xf0, 0xf0, 6},
                                            {0xf1, 0xf3, 3}, {0xf4, 0xf4, 7}};
  static constexpr InsideStep kAmid[] = {{0x80, 0xbf, 0}, {0x80, 0xbf, 1}, {0x80, 0xbf, 2},
                                         {0xa0, 0xbf, 1}, {0x80, 0x9f, 1}, {0x90, 0xbf, 2},
                                         {0x80, 0x8f, 2}};
  if (kind == 0) return kBetween;
  return {kAmid + kind - 1, 1};
}

}  // namespace

// Returns the tokens that may end a lexeme, by what they contain after its end; cached by the set
// that follows the lexeme.
const MaskCache::Found& MaskCache::tails_of(const LexemeMasks& masks, SetId after) {
  const auto [it, added] = tails_.try_emplace({&masks, after});
  Found& found = it->second;
  if (!added) return found;
  found.whole_ends = after != EarleyRecogniser::kNeedsText;
  if (!found.whole_ends) {
    for (uint32_t t = 0; t < masks.tails.token_ids.size(); ++t) found.asked.push_back(t);
    return found;
  }
  walk_.run(
      masks.tails, after, TokenWalk::Steps::kInRules,
      [&](uint32_t t) { found.allowed.push_back(t); },
      [&](uint32_t begin, uint32_t end) {
        for (uint32_t t = begin; t < end; ++t) found.asked.push_back(t);
      },
      [](uint32_t) { return false; });
  return found;
}

// One item inside a lexeme: the vocabulary knows which tokens stay inside, and what other tokens
// contain after the end of the lexeme is a few bytes.
bool MaskCache::by_lexeme(SetId set, Mask& mask) {
  const EarleyRecogniser::Inside inside = earley_.inside(set);
  if (inside.tag == 0) return false;
  const LexemeTag tag = to_tag(inside.tag);
  const LexemeAutomaton& automaton = lexeme_automaton(tag.lexeme);
  if (tag.state == automaton.end) return false;
  const LexemeMasks& masks = trie_.lexeme(tag.lexeme)[tag.state];
  const Found& tails = tails_of(masks, earley_.after_lexeme(set));
  const bool any_length = inside.least == 0 && inside.most >= masks.characters_max;
  if (any_length) {
    mask.base = tails.whole_ends ? &masks.inside_or_end : &masks.inside;
  } else if (inside.most >= masks.characters_max) {
    mask.base = &masks.inside;
  } else {
    const auto end = std::ranges::upper_bound(masks.inside_characters, inside.most);
    size_t first = 0;
    const auto& up_to = trie_.string_up_to();
    if (tag.lexeme == Lexeme::kString && tag.state == automaton.inside) {
      const size_t characters = std::min<size_t>(inside.most, up_to.size() - 1);
      mask.base = &up_to[characters];
      first = static_cast<size_t>(std::ranges::upper_bound(masks.inside_characters, characters) -
                                  masks.inside_characters.begin());
    }
    const auto last = static_cast<size_t>(end - masks.inside_characters.begin());
    for (size_t i = first; i < last; ++i) mask.allow(masks.inside_ids[i]);
  }
  const auto fits = [&](uint32_t t) {
    const uint32_t characters = masks.tail_characters[t];
    return inside.least <= characters && characters <= inside.most;
  };
  if (tails.whole_ends && !any_length) {
    for (uint32_t t = 0; t < masks.num_whole_ends(); ++t) {
      if (fits(t)) mask.allow(masks.tails.token_ids[t]);
    }
  }
  for (uint32_t t : tails.allowed) {
    if (fits(t)) mask.allow(masks.tails.token_ids[t]);
  }
  for (uint32_t t : tails.asked) {
    if (fits(t)) mask.asked.push_back(masks.tails.token_ids[t]);
  }
  return true;
}

// Collects the sets that characters of a JSON string's inside lead to. Returns false where some
// character leads nowhere, or to more than kInsideStatesMax sets.
bool MaskCache::inside_successors(SetId set, std::vector<SetId>& out) {
  struct Tail {
    int lead_low, lead_high, low, high, more;  // lead bytes, second byte, number of further bytes
  };
  constexpr Tail kTails[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1},
                             {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
                             {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
                             {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};
  const auto lead_to = [&](auto&& self, SetId from, int low, int high, int more) -> bool {
    SetId last = EarleyRecogniser::kDead;
    for (int b = low; b <= high; ++b) {
      const SetId to = step(from, b);
      if (!leads_on(to)) return false;
      if (to == last) continue;
      last = to;
      if (more > 0) {
        if (!self(self, to, 0x80, 0xbf, more - 1)) return false;
      } else if (std::ranges::find(out, to) == out.end()) {
        if (out.size() == kInsideStatesMax) return false;
        out.push_back(to);
      }
    }
    return true;
  };
  constexpr std::pair<int, int> kAscii[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7f}};
  // Most sets that are not inside a string are rejected here.
  ByteMask wanted, bytes;
  for (const auto& [low, high] : kAscii) wanted.add(low, high);
  wanted.add(0xc2, 0xf4);
  earley_.add_bytes(earley_.position_of(set), bytes);
  for (size_t w = 0; w < bytes.words.size(); ++w) {
    if ((wanted.words[w] & ~bytes.words[w]) != 0) return false;
  }
  for (const auto& [low, high] : kAscii) {
    if (!lead_to(lead_to, set, low, high, 0)) return false;
  }
  for (const Tail& tail : kTails) {
    SetId last = EarleyRecogniser::kDead;
    for (int lead = tail.lead_low; lead <= tail.lead_high; ++lead) {
      const SetId to = step(set, lead);
      if (!leads_on(to)) return false;
      if (to != last && !lead_to(lead_to, to, tail.low, tail.high, tail.more)) return false;
      last = to;
    }
  }
  return true;
}

// Returns the one set that all these characters lead to, or kDead; cached.
SetId MaskCache::next_inside(SetId set) {
  const auto [it, added] = next_inside_.try_emplace(set, EarleyRecogniser::kDead);
  if (!added) return it->second;
  std::vector<SetId> next;
  const bool one = inside_successors(set, next) && next.size() == 1;
  return next_inside_[set] = one ? next[0] : EarleyRecogniser::kDead;
}

// Returns whether the inside of a string continues for ever from this node by nodes of its rule. It
// computes the greatest set of positions that lead to such positions by every character.
bool MaskCache::stays_inside(NodeId start) {
  const Network& network = earley_.network();
  const auto key = [](NodeId node, uint8_t kind) { return uint64_t{node} << 3 | kind; };
  if (const auto it = stays_inside_.find(key(start, 0)); it != stays_inside_.end())
    return it->second;
  std::vector<uint64_t> places = {key(start, 0)};
  std::unordered_map<uint64_t, bool> holds = {{places[0], true}};
  for (size_t i = 0; i < places.size(); ++i) {
    const auto node = static_cast<NodeId>(places[i] >> 3);
    if (network.nodes[node].counter >= 0 || places.size() > kInsidePlacesMax) {
      return stays_inside_[places[0]] = false;
    }
    for (const InsideStep& step : inside_steps(places[i] & 7)) {
      for (const Network::ByteEdge& edge : network.bytes_of(node)) {
        if (edge.high < step.low || step.high < edge.low) continue;
        if (holds.emplace(key(edge.target, step.to), true).second) {
          places.push_back(key(edge.target, step.to));
        }
      }
    }
  }
  const auto covered = [&](NodeId node, const InsideStep& step) {
    int next = step.low;
    for (bool more = true; more && next <= step.high;) {
      more = false;
      for (const Network::ByteEdge& edge : network.bytes_of(node)) {
        if (next > step.high || edge.low > next || edge.high < next ||
            !holds.at(key(edge.target, step.to)))
          continue;
        next = edge.high + 1;
        more = true;
      }
    }
    return next > step.high;
  };
  for (bool changed = true; changed && holds.at(places[0]);) {
    changed = false;
    for (size_t i = places.size(); i-- > 0;) {
      bool& now = holds.at(places[i]);
      if (!now) continue;
      now = std::ranges::all_of(inside_steps(places[i] & 7), [&](const InsideStep& step) {
        return covered(static_cast<NodeId>(places[i] >> 3), step);
      });
      changed |= !now;
    }
  }
  if (!holds.at(places[0])) return stays_inside_[places[0]] = false;
  stays_inside_.insert(holds.begin(), holds.end());
  return true;
}

// Returns whether no character of a string's inside leads on. REQUIRES: only bytes of characters
// lead on.
bool MaskCache::inside_ends(SetId set) {
  for (int b = 0x20; b < 0x100; ++b) {
    if (b == '"' || b == '\\') continue;
    if (step(set, b) != EarleyRecogniser::kDead) return false;
  }
  return true;
}

// Handles a string's inside outside of lexemes that continues unchanged, or from set to set until
// it must end: its tokens are allowed at once, and the rests of the other tokens are walked.
// Returns false elsewhere.
bool MaskCache::inside_string(SetId set, Mask& mask) {
  const SetId next = next_inside(set);
  if (next == EarleyRecogniser::kDead) return false;
  if (next == set || earley_.canonical(next) == set) {
    mask.base = &trie_.string_inside_mask();
    walk_into(trie_.rests(), set, TokenWalk::Steps::kByStates, mask);
  } else {
    // The sets after each number of characters, as far as tokens reach.
    const std::vector<TrieWalk>& rests = trie_.rests_after();
    const size_t longest = std::max(trie_.inside_characters_max(), rests.size());
    std::vector<SetId> chain = {set};
    while (chain.size() <= longest) {
      const SetId now = next_inside(chain.back());
      if (now == EarleyRecogniser::kDead) break;
      chain.push_back(now);
    }
    if (chain.size() <= longest && !inside_ends(chain.back())) return false;
    for (size_t i = 0; i < std::min(chain.size(), rests.size()); ++i)
      walk_into(rests[i], chain[i], TokenWalk::Steps::kByStates, mask);
    mask.words.assign(scratch_.size(), 0);
    trie_.add_string_inside(chain.size() - 1, mask.words);
  }
  return true;
}

// Where the inside of a string continues for ever, its tokens are allowed at once and the others
// are walked.
bool MaskCache::by_staying_inside(SetId set, Mask& mask) {
  const auto node = earley_.only_node(set);
  if (!node || !stays_inside(*node)) return false;
  mask.base = &trie_.string_inside_mask();
  walk_into(trie_.not_string_inside(), set, TokenWalk::Steps::kByStates, mask);
  return true;
}

// Returns the mask of a set inside a string, if it is one.
const MaskCache::Mask* MaskCache::known_inside(SetId set) {
  if (const auto it = kept_.find(set); it != kept_.end()) return &it->second;
  Mask mask;
  if (earley_.accepting(set) || (!by_lexeme(set, mask) && !inside_string(set, mask))) {
    return nullptr;
  }
  return &keep(set, std::move(mask));
}

// Where most characters lead to a set that a string's inside leaves unchanged (a key that is none
// of the declared ones so far), the mask is that set's mask with differences: both sets are walked
// side by side and abandoned where they meet.
bool MaskCache::by_difference(SetId set, Mask& mask) {
  constexpr int kMost = 48;  // of the 93 characters that are tried
  const EarleyRecogniser::Position here = earley_.position_of(set);
  std::vector<std::pair<EarleyRecogniser::Position, int>> counts;
  for (int b = 0x20; b < 0x7f; ++b) {
    if (b == '"' || b == '\\') continue;
    const EarleyRecogniser::Position to = earley_.step_without_text(here, static_cast<uint8_t>(b));
    const auto known =
        std::ranges::find(counts, to, &std::pair<EarleyRecogniser::Position, int>::first);
    if (known == counts.end()) {
      counts.emplace_back(to, 1);
    } else {
      ++known->second;
    }
  }
  const auto [other, count] =
      *std::ranges::max_element(counts, {}, &std::pair<EarleyRecogniser::Position, int>::second);
  if (count < kMost || !other.leads_on() || other == here ||
      earley_.step_without_text(other, 'a') != other)
    return false;
  const Mask* const base = known_inside(earley_.set_of(other));
  if (base == nullptr) return false;
  mask.base = base->base;
  mask.words = base->words;
  mask.changes = base->changes;
  mask.asked = base->asked;
  const TrieWalk& tokens = trie_.all();
  constexpr int kManyBytes = 64;  // bytes that distinguish the two sets
  ByteMask differing;
  earley_.add_differing_bytes(here, other, differing);
  using enum TokenWalk::Steps;
  walk_.compare(
      tokens, here, other, differing.count() > kManyBytes ? kByStates : kInRules,
      [&](uint32_t begin, uint32_t end, bool on) {
        for (uint32_t t = begin; t < end; ++t) {
          on ? mask.allow(tokens.token_ids[t]) : mask.refuse(tokens.token_ids[t]);
        }
      },
      [&](uint32_t begin, uint32_t end) { mask.ask(tokens, begin, end); });
  return true;
}

}  // namespace espalier::grammar
