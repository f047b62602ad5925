#include "engine/requests/score.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace espalier {
namespace {

Status check_list(const std::vector<TokenId>& labels, int32_t vocab_size) {
  if (labels.empty())
    return invalid_argument(
        "label_token_ids is missing: which tokens' probabilities are the scores?");
  for (const TokenId id : labels)
    if (id < 0 || id >= vocab_size)
      return invalid_argument(
          "label_token_ids: Token ID {} is out of vocabulary, whose tokens are in [0, {})", id,
          vocab_size);
  if (std::set(labels.begin(), labels.end()).size() != labels.size())
    return invalid_argument("label_token_ids names a token twice: name each once");
  return {};
}

Status check_labels(const ScoreRequest& request, const ModelInfo& info) {
  if (info.pooled && !info.pooled->is_scores)
    return error(StatusCode::kFailedPrecondition,
                 "{} makes embeddings, which score no items; /v1/rerank compares them",
                 info.architecture);
  if (info.pooled) return {};
  if (!(request.temperature > 0) || !std::isfinite(request.temperature))
    return invalid_argument("temperature is {}, but must be a finite number above 0",
                            request.temperature);
  if (request.temperature != 1 && !request.apply_softmax)
    return invalid_argument("temperature is {}, but only apply_softmax uses it",
                            request.temperature);
  if (request.item_label_ids.empty()) return check_list(request.label_token_ids, info.vocab_size);
  if (request.item_label_ids.size() != request.items.size() + request.item_ids.size())
    return invalid_argument("label_token_ids holds {} lists for {} items",
                            request.item_label_ids.size(),
                            request.items.size() + request.item_ids.size());
  for (const std::vector<TokenId>& labels : request.item_label_ids)
    ESP_RETURN_IF_ERROR(check_list(labels, info.vocab_size));
  return {};
}

}  // namespace

Result<std::vector<GenerateRequest>> score_prompts(const ScoreRequest& request,
                                                   const ModelInfo& info) {
  ESP_RETURN_IF_ERROR(check_labels(request, info));
  const bool as_ids = !request.query_ids.empty() || !request.item_ids.empty();
  const size_t count = as_ids ? request.item_ids.size() : request.items.size();
  if (count == 0) return fail(invalid_argument("items is empty"));
  GenerateRequest common;
  if (info.pooled) {
    common.embed = true;
  } else {
    common.sampling = {.max_new_tokens = 0};
    common.return_logprob = true;
    common.token_ids_logprob = request.label_token_ids;
  }
  std::vector<GenerateRequest> prompts(count, common);
  for (size_t i = 0; i < count; ++i) {
    if (!info.pooled && !request.item_label_ids.empty())
      prompts[i].token_ids_logprob = request.item_label_ids[i];
    if (!as_ids) {
      prompts[i].text =
          request.item_first ? request.items[i] + request.query : request.query + request.items[i];
      continue;
    }
    const std::vector<TokenId>*first = &request.query_ids, *second = &request.item_ids[i];
    if (request.item_first) std::swap(first, second);
    prompts[i].input_ids = *first;
    prompts[i].input_ids.insert(prompts[i].input_ids.end(), second->begin(), second->end());
    if (prompts[i].input_ids.empty()) return fail(invalid_argument("item {} holds no token", i));
  }
  return prompts;
}

std::vector<float> softmax(std::span<const float> values, float temperature) {
  std::vector<float> out(values.begin(), values.end());
  if (out.empty()) return out;
  const float most = *std::ranges::max_element(out);
  double sum = 0;
  for (float& v : out) sum += double{v = std::exp((v - most) / temperature)};
  for (float& v : out) v = static_cast<float>(v / sum);
  return out;
}

std::vector<float> scores_of(const ScoreRequest& request, std::span<const float> embedding,
                             const std::optional<TokenLogprobs>& next) {
  std::vector<float> scores(embedding.begin(), embedding.end());
  if (next)
    for (const auto& [id, logprob] : next->wanted) scores.push_back(logprob);
  if (request.apply_softmax) return softmax(scores, request.temperature);
  if (next)
    for (float& score : scores) score = std::exp(score);
  return scores;
}

float cosine(std::span<const float> a, std::span<const float> b) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    dot += double{a[i]} * double{b[i]};
    aa += double{a[i]} * double{a[i]};
    bb += double{b[i]} * double{b[i]};
  }
  return aa == 0 || bb == 0 ? 0.0f : static_cast<float>(dot / std::sqrt(aa * bb));
}

}  // namespace espalier
