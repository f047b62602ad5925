// All the ways in which a vocabulary can spell a text: what the exact probability of a text sums
// over.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "seams/vocab_view.h"

namespace espalier::lang {

// Each a list of token ids whose bytes are `text`; the longest tokens first. There are up to
// 2^(bytes - 1) of them: kResourceExhausted beyond `max`.
Result<std::vector<std::vector<TokenId>>> tokenisations(std::string_view text,
                                                        const VocabView& vocab, size_t max);

}  // namespace espalier::lang
