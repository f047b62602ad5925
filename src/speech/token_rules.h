// Which token a Whisper model's logits become: what is never generated, how times come in pairs and
// never go back, and when a time is more likely than any text.
// Source: Radford et al. 2022 (arXiv:2212.04356), section 4.5, and transformers'
// WhisperTimeStampLogitsProcessor, whose order of steps this has.
//
// Pure functions of their arguments; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "speech/whisper_config.h"

namespace espalier::speech {

struct TokenChoice {
  TokenId token = -1;
  double logprob = 0;  // under the logits as the rules leave them, at temperature 1
};

// Sets the logits of what may not come next to minus infinity. generated: the window's tokens so
// far, without its prefix. timestamps: times are wanted; without, the prefix has said that there
// are none.
void apply_rules(const WhisperTokens& tokens, std::span<const TokenId> generated, bool timestamps,
                 std::span<float> logits);

// The most likely token, the first of equals; at a temperature above 0 one drawn by `uniform`, in
// [0, 1). Nothing where no token is allowed, or the largest logit is infinite.
std::optional<TokenChoice> choose_token(std::span<const float> logits, double temperature,
                                        double uniform);

// The language whose token is the most likely. REQUIRES: the model is multilingual.
const LanguageToken& choose_language(const WhisperTokens& tokens, std::span<const float> logits);

// The token's share of the softmax.
double probability(std::span<const float> logits, TokenId token);

}  // namespace espalier::speech
