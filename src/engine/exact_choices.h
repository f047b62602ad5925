// The probability of a text after a prompt, whatever tokens it comes in: the sum over all ways to
// tokenise it (the question that the SGLang paper's appendix B.3 leaves open).
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace espalier {

struct ExactChoicesOptions {
  // What is left out of each choice's probability is at most so much of it, or so much in all.
  double relative_error_max = 1e-7;
  int32_t num_forwards_max = 20000;  // kResourceExhausted beyond
  std::string extra_key;             // of the requests: who shares cached prefixes with whom
};

struct ExactChoice {
  double logprob = 0;       // natural logarithm of the sum found
  double left_out_max = 0;  // what the tokenisations that were not followed can add to exp(logprob)
  int64_t num_tokenisations = 0;  // followed to their end
};

struct ExactChoices {
  std::vector<ExactChoice> choices;  // in the order asked
  std::vector<double> shares;        // exp(logprob) of each over their sum
  int64_t num_forwards = 0;
};

// Follows tokenisations from the most probable on: what has been read of a choice bounds what can
// still come of it, so the search ends with a bound on its error. Prefixes are shared by the radix
// cache. Blocks; thread-safe. kInvalidArgument: an empty prompt, no choices, an empty choice, or
// one that the vocabulary cannot spell. kFailedPrecondition: no tokenizer.
Result<ExactChoices> exact_choices(Engine& engine, const std::vector<TokenId>& prompt_ids,
                                   const std::vector<std::string>& choices,
                                   const ExactChoicesOptions& options = {});

}  // namespace espalier
