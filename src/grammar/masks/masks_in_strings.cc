// Masks of positions inside strings: inside lexemes, whose masks the vocabulary holds, and inside
// patterns.
#include <algorithm>
#include <span>
#include <utility>

#include "grammar/masks/mask_cache.h"

namespace espalier::grammar {

// One item inside a lexeme: the vocabulary knows which tokens stay inside, and what other tokens
// contain after the end of the lexeme is a few bytes.
bool MaskCache::by_lexeme(SetId set, StoredMask& mask) {
  const EarleyRecogniser::Inside inside = earley_.inside(set);
  if (inside.tag == 0) return false;
  const LexemeTag tag = to_tag(inside.tag);
  const LexemeAutomaton& automaton = lexeme_automaton(tag.lexeme);
  if (tag.state == automaton.end) return false;
  const LexemeMasks& masks = trie_.lexeme(tag.lexeme)[tag.state];
  const LexemeTails::Found& tails = tails_.find(masks, earley_.after_lexeme(set));
  const bool any_length = inside.least == 0 && inside.most >= masks.characters_max;
  if (any_length) {
    mask.start_from(tails.whole_ends ? masks.inside_or_end : masks.inside);
  } else if (inside.most >= masks.characters_max) {
    mask.start_from(masks.inside);
  } else {
    const auto end = std::ranges::upper_bound(masks.inside_characters, inside.most);
    size_t first = 0;
    const auto& up_to = trie_.string_up_to();
    if (tag.lexeme == Lexeme::kString && tag.state == automaton.inside) {
      const size_t characters = std::min<size_t>(inside.most, up_to.size() - 1);
      mask.start_from(up_to[characters]);
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
  for (const uint32_t t : tails.allowed) {
    if (fits(t)) mask.allow(masks.tails.token_ids[t]);
  }
  for (const uint32_t t : tails.conditional) {
    if (fits(t)) mask.add_conditional(masks.tails.token_ids[t]);
  }
  return true;
}

// Handles a string's inside outside of lexemes that continues unchanged, or from set to set until
// it must end: its tokens are allowed at once, and the rests of the other tokens are walked.
bool MaskCache::inside_string(SetId set, StoredMask& mask) {
  const SetId next = insides_.next(set);
  if (next == EarleySets::kDead) return false;
  if (next == set || earley_.canonical(next) == set) {
    mask.start_from(trie_.string_inside_mask());
    walk_into(trie_.rests(), set, WalkSteps::kByStates, mask);
    return true;
  }
  // The sets after each number of characters, as far as tokens reach.
  const std::vector<TrieWalk>& rests = trie_.rests_after();
  const size_t longest = std::max(trie_.inside_characters_max(), rests.size());
  std::vector<SetId> chain = {set};
  while (chain.size() <= longest) {
    const SetId now = insides_.next(chain.back());
    if (now == EarleySets::kDead) break;
    chain.push_back(now);
  }
  if (chain.size() <= longest && !insides_.ends(chain.back())) return false;
  for (size_t i = 0; i < std::min(chain.size(), rests.size()); ++i)
    walk_into(rests[i], chain[i], WalkSteps::kByStates, mask);
  std::vector<uint32_t> words(scratch_.size(), 0);
  trie_.add_string_inside(chain.size() - 1, words);
  mask.start_from(std::move(words));
  return true;
}

// Where the inside of a string continues for ever, its tokens are allowed at once and the others
// are walked, but for those whose rest comes before the string may end (a pattern that wants 160
// characters first).
bool MaskCache::by_staying_inside(SetId set, StoredMask& mask) {
  const auto node = earley_.only_node(set);
  if (!node || !insides_.stays(*node)) return false;
  mask.start_from(trie_.string_inside_mask());
  const TrieWalk& tokens = trie_.not_string_inside();
  walk_.scan(
      tokens, set, [&](uint32_t t) { mask.allow(tokens.token_ids[t]); },
      [&](uint32_t begin, uint32_t end) { mask.add_conditional(tokens, begin, end); },
      [&, exit = insides_.characters_to_exit(*node)](uint32_t at) {
        return trie_.characters_before_rest()[at] < exit;
      });
  return true;
}

// Returns the mask of a set inside a string, if it is one.
const StoredMask* MaskCache::known_inside(SetId set) {
  if (const auto it = kept_.find(set); it != kept_.end()) return &it->second;
  StoredMask mask;
  if (earley_.accepting(set) || (!by_lexeme(set, mask) && !inside_string(set, mask))) {
    return nullptr;
  }
  return &keep(set, std::move(mask));
}

// Where most characters lead to a set that a string's inside leaves unchanged (a key that is none
// of the declared ones so far), the mask is that set's mask with differences: both sets are walked
// side by side and abandoned where they meet.
bool MaskCache::by_difference(SetId set, StoredMask& mask) {
  constexpr int kMost = 48;  // of the 93 characters that are tried
  // Where a string stays inside, its tokens need no comparison.
  if (const auto node = earley_.only_node(set); node && insides_.known_to_stay(*node)) return false;
  const EarleyPosition here = positions_.position_of(set);
  std::vector<std::pair<EarleyPosition, int>> counts;
  for (int b = 0x20; b < 0x7f; ++b) {
    if (b == '"' || b == '\\') continue;
    const EarleyPosition to = positions_.step(here, static_cast<uint8_t>(b));
    const auto known = std::ranges::find(counts, to, &std::pair<EarleyPosition, int>::first);
    if (known == counts.end()) {
      counts.emplace_back(to, 1);
    } else {
      ++known->second;
    }
  }
  const auto [other, count] =
      *std::ranges::max_element(counts, {}, &std::pair<EarleyPosition, int>::second);
  if (count < kMost || !other.leads_on() || other == here || positions_.step(other, 'a') != other)
    return false;
  const StoredMask* const base = known_inside(positions_.set_of(other));
  if (base == nullptr) return false;
  mask.refer_to(*base);
  const TrieWalk& tokens = trie_.all();
  std::ranges::fill(scratch_, 0);  // becomes the tokens whose verdict the comparison finds
  constexpr int kManyBytes = 64;   // bytes that distinguish the two sets
  ByteMask differing;
  positions_.add_differing_bytes(here, other, differing);
  comparison_.run(
      tokens, here, other,
      differing.count() > kManyBytes ? WalkSteps::kByStates : WalkSteps::kInRules,
      [&](uint32_t begin, uint32_t end, bool on) {
        for (uint32_t t = begin; t < end; ++t) {
          on ? mask.allow(tokens.token_ids[t]) : mask.refuse(tokens.token_ids[t]);
          set_token(scratch_, tokens.token_ids[t], true);
        }
      },
      [&](uint32_t begin, uint32_t end) { mask.add_conditional(tokens, begin, end); });
  for (const TokenId token : base->conditional()) {
    const auto index = static_cast<uint32_t>(token);
    if ((scratch_[index / 32] >> (index % 32) & 1) == 0) mask.add_conditional(token);
  }
  return true;
}

}  // namespace espalier::grammar
