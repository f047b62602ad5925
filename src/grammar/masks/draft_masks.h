// For speculation under a grammar: masks along a tree of drafted tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/grammar.h"

namespace espalier::grammar {

// Token i comes behind token parents[i], or, where that is -1, behind what the matcher has read.
// REQUIRES: parents[i] < i.
struct DraftTree {
  std::span<const TokenId> tokens;
  std::span<const int32_t> parents;
};

// Row 0 of `masks` is what may come now, row i + 1 what may come behind token i; (tokens + 1) rows
// of matcher.words_per_mask() words. A token that the grammar does not take, and all behind it,
// have rows without a bit, and so has what comes behind an end. The matcher is as it was
// afterwards. Returns whether each token is taken.
std::vector<bool> fill_draft_masks(Matcher& matcher, const DraftTree& tree,
                                   std::span<uint32_t> masks);

}  // namespace espalier::grammar
