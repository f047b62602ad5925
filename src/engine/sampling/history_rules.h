// What the tokens so far change of the next one's logits: repeated n-grams, DRY, the budget of
// reasoning and an operator's own processor (HistoryValues in seams/sampling.h).
//
// Pure but for the processor, which keeps a state of its sample.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "seams/sampling.h"

namespace espalier {

// The prompt and the output of a sample, in order.
struct TokenHistory {
  std::vector<TokenId> tokens;
  int32_t num_prompt = 0;

  void reset(std::span<const TokenId> prompt_ids, std::span<const TokenId> output_ids);
};

// Bans by -infinity every token that would end an n-gram which `tokens` holds. n >= 1.
void ban_repeated_ngrams(std::span<const TokenId> tokens, int32_t n, std::span<float> logits);

// Takes the DRY penalty of `spec` from the logits of tokens that continue a repetition. Linear in
// the tokens.
void penalise_repetitions(const SamplingSpec& spec, std::span<const TokenId> tokens,
                          std::span<float> logits);

// Whether the reasoning is open and has spent its budget, so that only its end may come.
bool budget_is_spent(const SamplingSpec& spec, std::span<const TokenId> tokens);

// Whether a GPU leaves the draw to the host.
inline bool needs_host(const SamplingSpec& spec) {
  return spec.reads_order() || spec.xtc_probability > 0.0f;
}

// All of them in this order, then the processor. kInternal where the processor fails or gives a
// logit that is NaN or +infinity.
Status apply_history(const SamplingSpec& spec, const TokenHistory& history,
                     std::span<float> logits);

}  // namespace espalier
