// The probability of a text after a prompt, whatever tokens it comes in: the sum over all ways to
// spell it (the question that the SGLang paper's appendix B.3 leaves open). The search knows no
// engine; what it asks becomes requests of one token.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/requests/request.h"
#include "seams/vocab_view.h"

namespace espalier {

// Which tokens a text begins with. Immutable, shared by searches; special tokens spell nothing.
class Speller {
 public:
  explicit Speller(const VocabView& vocab);
  // Each with its size in bytes.
  std::vector<std::pair<TokenId, size_t>> beginnings(std::string_view text) const;

 private:
  std::unordered_map<std::string_view, std::vector<TokenId>> ids_;
  size_t longest_ = 0;
};

struct ExactOptions {
  // What is left out of the probability is at most so much of it.
  double relative_error_max = 1e-7;
  int num_forwards_max = 4000;  // beyond, it is given up
};

struct ExactProbability {
  double logprob = 0;       // natural logarithm of the sum found
  double left_out_max = 0;  // what the spellings that were not followed can add to exp(logprob)
  int num_spellings = 0;    // followed to their end
  int num_forwards = 0;
};

// How the search asks a model: the log-probability of each of `wanted` after `tokens` (the prompt's
// not among them). `done` comes once, from any thread.
using AskNext =
    std::function<void(const std::vector<TokenId>& tokens, const std::vector<TokenId>& wanted,
                       std::function<void(Result<std::vector<float>>)> done)>;

// Follows spellings from the most probable on: what has been read of the text bounds what can still
// come of it, so the search ends with a bound on its error. One question at a time; returns at
// once. kInvalidArgument: a text that the vocabulary cannot spell, or in too many ways.
void exact_probability(std::shared_ptr<const Speller> speller, std::string text,
                       const ExactOptions& options, AskNext ask,
                       std::function<void(Result<ExactProbability>)> done);

// A question as a request: after `prompt` and `tokens`, what of each of `wanted`?
GenerateRequest next_token_request(std::string rid, const std::vector<TokenId>& prompt,
                                   const std::vector<TokenId>& tokens, std::vector<TokenId> wanted);
// Gathers the answer from the request's events, in the order of `wanted`.
void take_next_token(const TokenEvent& event, std::vector<float>& logprobs);

}  // namespace espalier
