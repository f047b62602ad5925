// Token masks along a tree of draft tokens, for speculative decoding under a grammar. Not
// thread-safe with respect to the matcher.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/grammar.h"

namespace espalier::grammar {

// Draft token i follows token parents[i], or what the matcher has read where that is -1. REQUIRES:
// parents[i] < i.
struct DraftTree {
  std::span<const TokenId> tokens;
  std::span<const int32_t> parents;
};

// Fills `masks`: (tokens + 1) rows of matcher.words_per_mask() words. Row 0 is the mask now and row
// i + 1 the mask after draft token i. A token that the grammar rejects, every token after it, and
// everything after an end have rows without a bit. Restores the matcher. Returns for each token
// whether the grammar accepts it.
std::vector<bool> fill_draft_masks(Matcher& matcher, const DraftTree& tree,
                                   std::span<uint32_t> masks);

}  // namespace espalier::grammar
