// How one request's next token is drawn: what the scheduler hands to the executor, and the executor
// to its sampler, without either knowing an API's field names.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "seams/vocab_view.h"

namespace espalier {

// Immutable while its request runs; values are already validated (engine/sampling/params.h).
struct SamplingSpec {
  float temperature = 1.0f;         // 0 is greedy: the largest logit, the smallest id among equals
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  int32_t top_k = -1;               // -1: no limit
  float frequency_penalty = 0.0f;   // logit -= penalty * count in the output
  float presence_penalty = 0.0f;    // logit -= penalty where the output holds the token
  float repetition_penalty = 1.0f;  // divides positive, multiplies negative logits of seen tokens
  std::vector<std::pair<TokenId, float>> logit_bias;

  // The draw at output position i of a request is a function of (seed, i) and the logits alone.
  uint64_t seed = 0;

  // Until this many tokens are out, `banned_before_min` (end-of-sequence and stop ids) cannot come.
  int32_t min_new_tokens = 0;
  std::vector<TokenId> banned_before_min;

  // Log-probabilities of sampled tokens, after softmax of the raw logits (no temperature, penalty,
  // bias or mask), natural logarithm.
  bool return_logprob = false;
  int32_t top_logprobs_num = 0;
  std::vector<TokenId> token_ids_logprob;  // ids whose log-probability is wanted at each position

  bool greedy() const { return temperature == 0.0f; }
  bool has_penalties() const {
    return frequency_penalty != 0.0f || presence_penalty != 0.0f || repetition_penalty != 1.0f;
  }
};

// Log-probabilities at one position.
struct TokenLogprobs {
  float logprob = 0.0f;                           // of the token itself
  std::vector<std::pair<TokenId, float>> top;     // best first, top_logprobs_num of them
  std::vector<std::pair<TokenId, float>> wanted;  // in token_ids_logprob's order
};

}  // namespace espalier
