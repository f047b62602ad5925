// The loop of byte-pair encoding: of all adjacent pairs that can merge, the one of lowest rank, the
// leftmost of equal ones, again and again.
// Both versions below merge in the same order. Up to kShortWord symbols a scan over a row of ranks
// finds the next pair; beyond that a heap does, so that a long word without a break costs O(n log
// n) instead of O(n^2). Thread-safe: the caller owns the symbols, and `lookup` is const.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

#include "seams/vocab_view.h"

namespace espalier {

// A token of a word that is being merged; -1: characters that are no token.
struct MergeSymbol {
  TokenId id = -1;
  uint32_t begin = 0;  // of its bytes in the word; they end where the next symbol's begin
};

// What a pair becomes, and how early.
struct MergeOf {
  static constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
  uint32_t rank = kNoRank;  // kNoRank: the pair does not merge
  TokenId id = -1;
};

namespace internal {

// Up to here looking for the smallest rank in a row of ranks beats a heap.
inline constexpr size_t kShortWord = 48;

template <typename Lookup>
void merge_short(std::vector<MergeSymbol>& symbols, uint32_t word_size, const Lookup& lookup) {
  size_t count = symbols.size();
  const auto end_of = [&](size_t i) { return i + 1 < count ? symbols[i + 1].begin : word_size; };
  std::array<MergeOf, kShortWord> merges;  // [i]: of symbols i and i + 1
  for (size_t i = 0; i + 1 < count; ++i)
    merges[i] = lookup(symbols[i], symbols[i + 1], end_of(i + 1));
  while (count >= 2) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == MergeOf::kNoRank) break;
    symbols[best].id = merges[best].id;
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    std::copy(merges.begin() + best + 1, merges.begin() + count - 1, merges.begin() + best);
    --count;
    if (best > 0) merges[best - 1] = lookup(symbols[best - 1], symbols[best], end_of(best));
    if (best + 1 < count) merges[best] = lookup(symbols[best], symbols[best + 1], end_of(best + 1));
  }
  symbols.resize(count);
}

// A doubly linked list of symbols and a heap of the pairs that can merge. A heap entry is out of
// date when its symbol no longer starts a pair of that rank; it is then passed over.
template <typename Lookup>
void merge_long(std::vector<MergeSymbol>& symbols, uint32_t word_size, const Lookup& lookup) {
  constexpr uint32_t kGone = std::numeric_limits<uint32_t>::max();
  const auto count = static_cast<uint32_t>(symbols.size());
  struct Link {
    uint32_t previous, next;  // `count` where there is none
    MergeOf merge;            // of the pair that starts here
  };
  std::vector<Link> links(count);
  std::vector<uint64_t> entries;  // rank above place: the smallest rank first, then the leftmost
  const auto entry_of = [&](uint32_t i) {
    return (static_cast<uint64_t>(links[i].merge.rank) << 32) | i;
  };
  const auto look_up = [&](uint32_t i) {
    const uint32_t right = links[i].next;
    if (right >= count) {
      links[i].merge = {};
      return;
    }
    const uint32_t after = links[right].next;
    links[i].merge =
        lookup(symbols[i], symbols[right], after < count ? symbols[after].begin : word_size);
  };
  for (uint32_t i = 0; i < count; ++i) links[i] = {i == 0 ? count : i - 1, i + 1, {}};
  for (uint32_t i = 0; i < count; ++i) {
    look_up(i);
    if (links[i].merge.rank != MergeOf::kNoRank) entries.push_back(entry_of(i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>{},
                                                                             std::move(entries));
  while (!queue.empty()) {
    const uint64_t entry = queue.top();
    queue.pop();
    const auto i = static_cast<uint32_t>(entry);
    if (links[i].previous == kGone || links[i].merge.rank != entry >> 32) continue;
    const uint32_t right = links[i].next;
    symbols[i].id = links[i].merge.id;
    links[i].next = links[right].next;
    if (links[i].next < count) links[links[i].next].previous = i;
    links[right] = {kGone, kGone, {}};
    for (const uint32_t place : {links[i].previous, i}) {
      if (place >= count) continue;
      look_up(place);
      if (links[place].merge.rank != MergeOf::kNoRank) queue.push(entry_of(place));
    }
  }
  size_t out = 0;
  for (uint32_t i = 0; i < count; i = links[i].next) symbols[out++] = symbols[i];
  symbols.resize(out);
}

}  // namespace internal

// `symbols`: of a word of `word_size` bytes, in order. lookup(left, right, right's end) -> MergeOf.
// O(n log n).
template <typename Lookup>
void merge_symbols(std::vector<MergeSymbol>& symbols, uint32_t word_size, const Lookup& lookup) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= internal::kShortWord) {
    internal::merge_short(symbols, word_size, lookup);
  } else {
    internal::merge_long(symbols, word_size, lookup);
  }
}

}  // namespace espalier
