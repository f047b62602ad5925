#include "grammar/masks/char_class_walk.h"

#include <bit>

namespace espalier::grammar {

void CharClassWalk::fill(SetId set, CharClassSet kinds, CharClassSet live, StoredMask& mask) {
  const std::vector<uint32_t>* const known = kinds == 0 ? nullptr : trie_.of_char_classes(kinds);
  if (known != nullptr) {
    words_ = *known;
  } else {
    words_.assign(static_cast<size_t>(trie_.words_per_mask()), 0);
    if (kinds != 0) trie_.add_char_classes(kinds, words_);
  }
  allowed_ = kinds;
  asked_.clear();
  visit_nodes(set, kinds, trie_.class_sets_between(kinds, live));
  if (any_marked_) walk_marked(set);
  store(mask);
}

void CharClassWalk::visit_nodes(SetId set, CharClassSet kinds, uint64_t wanted) {
  const CharClassTrie& classes = trie_.classes();
  const std::vector<CharClassTrie::Node>& nodes = classes.nodes();
  path_.resize(classes.depth_max() + size_t{1});
  path_[0] = set;
  any_marked_ = false;
  add_tokens_of(0, set, kinds);
  for (uint32_t i = 1; i + 1 < nodes.size();) {
    const CharClassTrie::Node& node = nodes[i];
    const SetId to = (node.class_sets & wanted) == 0
                         ? EarleySets::kDead
                         : search_.target(path_[node.depth - size_t{1}], node.kind);
    if (to == CharClassSearch::kMixed) mark_below(i, wanted);
    if (!EarleySets::leads_on(to)) {
      i = node.skip;
      continue;
    }
    path_[node.depth] = to;
    add_tokens_of(i, to, kinds);
    ++i;
  }
}

void CharClassWalk::add_tokens_of(uint32_t node, SetId at, CharClassSet kinds) {
  const CharClassTrie& classes = trie_.classes();
  const CharClassTrie::Node& here = classes.nodes()[node];
  if (here.tokens_begin != here.rests_begin && (here.path_classes & ~kinds) != 0) {
    classes.add_whole(node, words_);
    allowed_ |= here.path_classes;
  }
  if (here.rests < 0) return;
  const TrieWalk& rests = classes.rests(node);
  walk_.scan(
      rests, at, [&](uint32_t t) { set_token(words_, rests.token_ids[t], true); },
      [&](uint32_t begin, uint32_t end) {
        asked_.insert(asked_.end(), rests.token_ids.begin() + begin, rests.token_ids.begin() + end);
      },
      [](uint32_t) { return false; });
}

void CharClassWalk::mark_below(uint32_t node, uint64_t wanted) {
  if (!any_marked_) marked_.assign(trie_.all().token_ids.size() / 64 + 1, 0);
  any_marked_ = true;
  const std::span<const uint32_t> ranks = trie_.classes().ranks_below(node);
  const std::span<const uint8_t> class_sets = trie_.classes().class_sets_below(node);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const uint64_t bit = wanted >> class_sets[i] & 1;
    marked_[ranks[i] / 64] |= bit << (ranks[i] % 64);
  }
}

// Returns whether a token of the ranks [begin, end) is marked.
bool CharClassWalk::any_marked(uint32_t begin, uint32_t end) const {
  if (begin == end) return false;
  const uint64_t first = ~uint64_t{0} << (begin % 64);
  const uint64_t last = ~uint64_t{0} >> (63 - (end - 1) % 64);
  size_t word = begin / 64;
  const size_t last_word = (end - 1) / 64;
  if (word == last_word) return (marked_[word] & first & last) != 0;
  if ((marked_[word] & first) != 0) return true;
  while (++word < last_word) {
    if (marked_[word] != 0) return true;
  }
  return (marked_[last_word] & last) != 0;
}

void CharClassWalk::walk_marked(SetId set) {
  const TrieWalk& all = trie_.all();
  walk_.scan(
      all, set, [&](uint32_t t) { set_token(words_, all.token_ids[t], true); },
      [&](uint32_t begin, uint32_t end) {
        asked_.insert(asked_.end(), all.token_ids.begin() + begin, all.token_ids.begin() + end);
      },
      [&](uint32_t node) {
        return !any_marked(all.nodes[node].tokens_begin, tokens_end_of(all, node));
      });
}

// Stores the words as differences from the tokens of the allowed classes where these are few.
void CharClassWalk::store(StoredMask& mask) {
  constexpr int kDifferencesMax = 256;
  for (const TokenId token : asked_) mask.add_conditional(token);
  const std::vector<uint32_t>* const known = trie_.of_char_classes(allowed_);
  if (known == nullptr) return mask.start_from(std::vector(words_));
  const std::vector<uint32_t>& base = *known;
  int differences = 0;
  for (size_t i = 0; i < words_.size() && differences <= kDifferencesMax; ++i)
    differences += std::popcount(words_[i] ^ base[i]);
  if (differences > kDifferencesMax) return mask.start_from(std::vector(words_));
  mask.start_from(base);
  for (size_t i = 0; differences > 0 && i < words_.size(); ++i) {
    for (uint32_t bits = words_[i] ^ base[i]; bits != 0; bits &= bits - 1, --differences) {
      const int bit = std::countr_zero(bits);
      const auto token = static_cast<TokenId>(32 * i) + bit;
      (words_[i] >> bit & 1) != 0 ? mask.allow(token) : mask.refuse(token);
    }
  }
}

}  // namespace espalier::grammar
