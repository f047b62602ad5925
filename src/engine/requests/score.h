// How well each item goes with a query: the probability of label tokens behind both, where the
// generates; its scores of both, where it has a head for classes or rewards (a cross-encoder's of
// both as a pair); the cosine of the angle between their vectors, where it makes embeddings; the
// sum of the best matches of their tokens, where every token has a vector.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/requests/request.h"
#include "models/model.h"
#include "seams/sampling.h"

namespace espalier {

// Texts, or ids: the query and all items are the same.
struct ScoreRequest {
  std::string query;
  std::vector<std::string> items;
  std::vector<TokenId> query_ids;
  std::vector<std::vector<TokenId>> item_ids;
  std::vector<TokenId> label_token_ids;  // of a model that generates; at least one
  // The labels of each item, where they are not the same for all.
  std::vector<std::vector<TokenId>> item_label_ids;
  bool apply_softmax = false;  // over the labels; else their probabilities among all
  float temperature = 1.0f;    // above 0: divides the log-probabilities of that softmax
  bool item_first = false;     // the item stands before the query
  int32_t truncate_to = 0;     // GenerateRequest's
};

// One request for each item, in their order; where every token has a vector, the query's in front
// of them. Fails for a model that makes embeddings (their
// cosine needs no common text), for labels that are missing or not of the vocabulary.
Result<std::vector<GenerateRequest>> score_prompts(const ScoreRequest& request,
                                                   const ModelInfo& info);

// An item's scores, from what came for its prompt: [labels], or the model's own. `next`: the
// log-probabilities of the token behind the prompt, of a model that generates.
std::vector<float> scores_of(const ScoreRequest& request, std::span<const float> embedding,
                             const std::optional<TokenLogprobs>& next);

// How well a pair fits by a head's scores: the probability of the second of two classes, or the one
// score, through a sigmoid where the model has one.
float fitting_score(std::span<const float> scores, const PooledInfo& pooled);

// The sum over the query's tokens of the largest cosine with one of the document's, for vectors of
// length 1 (Khattab and Zaharia 2020). Both: [tokens, width].
float max_sim(std::span<const float> query, std::span<const float> document, int32_t width);

// Of the angle between two vectors of one size; 0 where one of them is 0.
float cosine(std::span<const float> a, std::span<const float> b);
std::vector<float> softmax(std::span<const float> values, float temperature = 1.0f);

}  // namespace espalier
