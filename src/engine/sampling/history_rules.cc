#include "engine/sampling/history_rules.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

namespace espalier {
namespace {

constexpr float kBannedLogit = -std::numeric_limits<float>::infinity();

void ban(TokenId id, std::span<float> logits) {
  if (static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] = kBannedLogit;
}

// For each k in [0, tokens.size()) how many tokens before the end equal those before the end less
// k (the Z function of the reversed tokens), at most `length_max`; of k = 0 it is 0.
std::vector<int32_t> repeated_lengths(std::span<const TokenId> tokens, int32_t length_max) {
  const auto n = static_cast<int32_t>(tokens.size());
  const auto at = [&](int32_t i) { return tokens[static_cast<size_t>(n - 1 - i)]; };
  std::vector<int32_t> lengths(tokens.size());
  int32_t begin = 0, end = 0;  // the rightmost range [begin, end) that equals a prefix
  for (int32_t k = 1; k < n; ++k) {
    int32_t length = k < end ? std::min(end - k, lengths[static_cast<size_t>(k - begin)]) : 0;
    while (k + length < n && at(length) == at(k + length)) ++length;
    if (k + length > end) begin = k, end = k + length;
    lengths[static_cast<size_t>(k)] = length;
  }
  for (int32_t& length : lengths) length = std::min(length, length_max);
  return lengths;
}

bool is_breaker(const SamplingSpec& spec, TokenId id) {
  return std::ranges::binary_search(spec.dry_breakers, id);
}

}  // namespace

void TokenHistory::reset(std::span<const TokenId> prompt_ids, std::span<const TokenId> output_ids) {
  tokens.assign(prompt_ids.begin(), prompt_ids.end());
  tokens.insert(tokens.end(), output_ids.begin(), output_ids.end());
  num_prompt = static_cast<int32_t>(prompt_ids.size());
}

void ban_repeated_ngrams(std::span<const TokenId> tokens, int32_t n, std::span<float> logits) {
  const auto before = static_cast<size_t>(n - 1);
  if (tokens.size() < before + 1) return;
  const std::span<const TokenId> last = tokens.last(before);
  for (size_t i = 0; i + before < tokens.size(); ++i)
    if (std::ranges::equal(tokens.subspan(i, before), last)) ban(tokens[i + before], logits);
}

void penalise_repetitions(const SamplingSpec& spec, std::span<const TokenId> tokens,
                          std::span<float> logits) {
  if (spec.dry_range >= 0)
    tokens = tokens.last(std::min(tokens.size(), static_cast<size_t>(spec.dry_range)));
  int32_t unbroken = 0;  // tokens at the end without a breaker
  for (size_t i = tokens.size(); i > 0 && !is_breaker(spec, tokens[i - 1]); --i) ++unbroken;
  if (unbroken < spec.dry_allowed_length) return;
  const std::vector<int32_t> lengths = repeated_lengths(tokens, unbroken);
  std::vector<std::pair<TokenId, int32_t>> longest;  // of each token that would continue one
  for (size_t k = 1; k < tokens.size(); ++k) {
    const TokenId next = tokens[tokens.size() - k];
    if (lengths[k] < spec.dry_allowed_length || is_breaker(spec, next)) continue;
    longest.emplace_back(next, -lengths[k]);
  }
  std::ranges::sort(longest);
  TokenId done = -1;
  for (const auto& [id, length] : longest) {
    if (id == done || static_cast<size_t>(id) >= logits.size()) continue;
    done = id;
    const double penalty =
        double{spec.dry_multiplier} *
        std::pow(double{spec.dry_base}, double(-length - spec.dry_allowed_length));
    float& x = logits[static_cast<size_t>(id)];
    if (x == kBannedLogit) continue;
    x = static_cast<float>(std::max(double{x} - penalty, -double{FLT_MAX}));
  }
}

bool budget_is_spent(const SamplingSpec& spec, std::span<const TokenId> tokens) {
  if (spec.thinking_budget < 0) return false;
  size_t behind = 0;  // tokens behind the mark
  for (auto it = tokens.rbegin(); it != tokens.rend(); ++it, ++behind) {
    if (*it == spec.thinking_end) return false;
    if (*it == spec.thinking_begin) return behind >= static_cast<size_t>(spec.thinking_budget);
  }
  return false;
}

Status apply_history(const SamplingSpec& spec, const TokenHistory& history,
                     std::span<float> logits) {
  if (spec.no_repeat_ngram_size > 0)
    ban_repeated_ngrams(history.tokens, spec.no_repeat_ngram_size, logits);
  if (spec.dry_multiplier > 0) penalise_repetitions(spec, history.tokens, logits);
  if (budget_is_spent(spec, history.tokens))
    for (size_t id = 0; id < logits.size(); ++id)
      if (static_cast<TokenId>(id) != spec.thinking_end) logits[id] = kBannedLogit;
  if (spec.hook == nullptr) return {};
  const std::string failure = spec.hook->apply(history.tokens, history.num_prompt, logits);
  if (!failure.empty()) return error(StatusCode::kInternal, "logit_processor failed: {}", failure);
  const auto is_wrong = [](float x) { return !(x <= FLT_MAX); };
  if (const auto wrong = std::ranges::find_if(logits, is_wrong); wrong != logits.end())
    return error(StatusCode::kInternal,
                 "logit_processor made the logit of token {} {}: it must be finite, or -infinity "
                 "for a token that may not come",
                 wrong - logits.begin(), *wrong);
  return {};
}

}  // namespace espalier
