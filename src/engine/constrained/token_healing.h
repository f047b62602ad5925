// Token healing: a prompt that ends amid what would have been a longer token ("http:" before "://")
// leads a model astray. Its last tokens are taken back, and what is generated must begin with their
// text, in whatever tokens the model likes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "engine/constrained/tokens_by_bytes.h"
#include "grammar/grammar.h"

namespace espalier {

// Of a prompt, at most so many tokens are taken back.
inline constexpr size_t kHealedTokensMax = 4;

// How many of the prompt's last tokens to take back: as many as there is a longer token for that
// begins with all of their text. At least one token stays, and those without bytes (special ones)
// do; the text taken back begins with a whole character.
size_t num_tokens_to_heal(const TokensByBytes& tokens, std::span<const TokenId> prompt);

// The mask of tokens that spell `left` (not empty), or its beginning, or go on behind it as
// `matcher` may (null: in any way). Bits beyond are cleared. The matcher is as it was afterwards.
void fill_healing_mask(const TokensByBytes& tokens, std::string_view left,
                       grammar::Matcher* matcher, std::span<uint32_t> words);

}  // namespace espalier
