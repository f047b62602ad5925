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
  if (info.pooled && !info.pooled->is_scores && !info.pooled->each_token)
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

// Of an encoder of texts: pairs, or the query and then the items.
Result<std::vector<GenerateRequest>> encoder_prompts(const ScoreRequest& request,
                                                     const ModelInfo& info) {
  using TextRole = GenerateRequest::TextRole;
  if (!request.query_ids.empty() || !request.item_ids.empty())
    return fail(invalid_argument(
        "query and items are token ids, but {} joins texts itself: send texts", info.architecture));
  GenerateRequest common;
  common.embed = true;
  common.truncate_to = request.truncate_to;
  std::vector<GenerateRequest> prompts;
  if (info.pooled->each_token) {
    prompts.push_back(common);
    prompts[0].text = request.query;
    prompts[0].text_role = TextRole::kQuery;
  }
  for (const std::string& item : request.items) {
    GenerateRequest& prompt = prompts.emplace_back(common);
    if (info.pooled->each_token) {
      prompt.text = item;
      prompt.text_role = TextRole::kDocument;
    } else {
      prompt.text = request.item_first ? item : request.query;
      prompt.text_pair = request.item_first ? request.query : item;
    }
  }
  return prompts;
}

}  // namespace

Result<std::vector<GenerateRequest>> score_prompts(const ScoreRequest& request,
                                                   const ModelInfo& info) {
  ESP_RETURN_IF_ERROR(check_labels(request, info));
  const bool as_ids = !request.query_ids.empty() || !request.item_ids.empty();
  const size_t count = as_ids ? request.item_ids.size() : request.items.size();
  if (count == 0) return fail(invalid_argument("items is empty"));
  if (info.pooled && (info.pooled->pairs || info.pooled->each_token))
    return encoder_prompts(request, info);
  GenerateRequest common;
  common.truncate_to = request.truncate_to;
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

float fitting_score(std::span<const float> scores, const PooledInfo& pooled) {
  if (scores.size() == 2) return softmax(scores)[1];
  return pooled.sigmoid ? 1 / (1 + std::exp(-scores[0])) : scores[0];
}

float max_sim(std::span<const float> query, std::span<const float> document, int32_t width) {
  const auto columns = static_cast<size_t>(width);
  double sum = 0;
  for (size_t q = 0; q < query.size(); q += columns) {
    float best = -INFINITY;
    for (size_t d = 0; d < document.size(); d += columns) {
      float dot = 0;
      for (size_t i = 0; i < columns; ++i) dot += query[q + i] * document[d + i];
      best = std::max(best, dot);
    }
    sum += best;
  }
  return static_cast<float>(sum);
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
