// How select decides between texts from their log-probabilities. Pure functions.
//
//   token_length_normalized              the mean log-probability of a choice's tokens is largest
//   greedy_token_selection               the choice that greedy decoding, constrained to the choices,
//                                        would write: token by token the most probable one stays;
//                                        an ended choice continues with its own mean
//   unconditional_likelihood_normalized  the mean of log p(token | prompt) - log p(token) is
//                                        largest: texts that are likely anywhere gain nothing by it
//   exact                                log p(text | prompt), summed over every way to tokenise it
//
// SGLang's first three raise where a first token has no log-probability (it stands at the start of
// the text); here such a token counts for nothing in both sums.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lang/options.h"

namespace espalier::lang {

// What a back end measured of one choice. All choices of a call are scored from the same place: the
// tokens after those that the prompt shares with each "prompt + choice".
struct ChoiceScore {
  std::string text;
  std::vector<int32_t> tokens;                 // of the scored part
  std::vector<std::optional<float>> logprobs;  // log p(token | all before it); none at position 0
  std::vector<std::optional<float>> unconditional_logprobs;  // log p(token | the choice's part)
  std::optional<double> exact_logprob;                       // of the text; the exact method alone
};

struct Decision {
  size_t index = 0;
  std::string text;
  std::vector<double> scores;  // of each choice, larger is better
};

// kInvalidArgument: no choices, two that are equal, an empty one, scores that are missing.
Status validate_choices(const std::vector<std::string>& choices);
Result<Decision> decide(ChoicesMethod method, const std::vector<ChoiceScore>& choices);

}  // namespace espalier::lang
