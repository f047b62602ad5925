#include "speech/token_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace espalier::speech {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// log(sum(exp(logits))).
double log_sum(std::span<const float> logits) {
  const float largest = *std::ranges::max_element(logits);
  if (largest == kNever) return -std::numeric_limits<double>::infinity();
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  return static_cast<double>(largest) + std::log(sum);
}

void forbid(std::span<float> logits, int64_t begin, int64_t end) {
  const int64_t size = std::ssize(logits);
  for (int64_t i = std::max<int64_t>(begin, 0); i < std::min(end, size); ++i) {
    logits[static_cast<size_t>(i)] = kNever;
  }
}

// Times come in pairs, an end and a start, but at the begin and directly before the end.
void forbid_by_pairs(const WhisperTokens& tokens, std::span<const TokenId> generated,
                     std::span<float> logits) {
  const int64_t size = std::ssize(logits);
  const bool last = !generated.empty() && tokens.is_timestamp(generated.back());
  const bool before = generated.size() < 2 || tokens.is_timestamp(generated[generated.size() - 2]);
  if (last && before) forbid(logits, tokens.first_timestamp(), size);
  if (last && !before) forbid(logits, 0, tokens.end);
  const auto time = std::find_if(generated.rbegin(), generated.rend(),
                                 [&](TokenId token) { return tokens.is_timestamp(token); });
  if (time == generated.rend()) return;
  // A pair's second time may equal its first; no other time is repeated.
  forbid(logits, tokens.first_timestamp(), *time + (last && !before ? 0 : 1));
}

}  // namespace

void apply_rules(const WhisperTokens& tokens, std::span<const TokenId> generated, bool timestamps,
                 std::span<float> logits) {
  const int64_t size = std::ssize(logits);
  if (generated.empty()) {
    for (const TokenId token : tokens.suppressed_first) forbid(logits, token, token + 1);
  }
  for (const TokenId token : tokens.suppressed) forbid(logits, token, token + 1);
  if (!timestamps) return forbid(logits, tokens.first_timestamp(), size);
  forbid(logits, tokens.no_timestamps, tokens.no_timestamps + 1);
  forbid_by_pairs(tokens, generated, logits);
  if (generated.empty()) {
    forbid(logits, 0, tokens.first_timestamp());
    if (tokens.max_initial_timestamp) {
      forbid(logits, tokens.first_timestamp() + *tokens.max_initial_timestamp + 1, size);
    }
  }
  const auto first = static_cast<size_t>(tokens.first_timestamp());
  if (first >= logits.size()) return;
  const float text = *std::ranges::max_element(logits.first(first));
  if (log_sum(logits.subspan(first)) > static_cast<double>(text)) {
    forbid(logits, 0, tokens.first_timestamp());
  }
}

std::optional<TokenChoice> choose_token(std::span<const float> logits, double temperature,
                                        double uniform) {
  const auto largest = std::ranges::max_element(logits);
  if (largest == logits.end() || !std::isfinite(*largest)) return std::nullopt;
  auto index = static_cast<size_t>(largest - logits.begin());
  if (temperature > 0) {
    double sum = 0;
    const auto weight = [&](float logit) {
      return std::exp(static_cast<double>(logit - *largest) / temperature);
    };
    for (const float logit : logits) sum += weight(logit);
    double rest = uniform * sum;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] == kNever) continue;
      index = i;
      rest -= weight(logits[i]);
      if (rest < 0) break;
    }
  }
  return TokenChoice{static_cast<TokenId>(index),
                     static_cast<double>(logits[index]) - log_sum(logits)};
}

const LanguageToken& choose_language(const WhisperTokens& tokens, std::span<const float> logits) {
  ESP_CHECK(tokens.multilingual());
  return *std::ranges::max_element(tokens.languages, {}, [&](const LanguageToken& language) {
    return logits[static_cast<size_t>(language.token)];
  });
}

double probability(std::span<const float> logits, TokenId token) {
  if (token < 0 || token >= std::ssize(logits)) return 0;
  return std::exp(static_cast<double>(logits[static_cast<size_t>(token)]) - log_sum(logits));
}

}  // namespace espalier::speech
