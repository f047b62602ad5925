// The exact probability of a text against every spelling, enumerated, over a model whose
// probabilities are drawn from the tokens before.
#include "engine/requests/exact_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<std::string_view> kBytes = {"a", "b", "ab", "ba", "aba", "", "abab", "x", "aa"};

VocabView vocab() {
  return {.token_bytes = kBytes, .special_ids = {7}, .eos_ids = {7}};  // "x" is special
}

// The distribution after some tokens: the same for the same seed and tokens.
std::vector<double> distribution(uint32_t seed, const std::vector<TokenId>& tokens) {
  std::vector<uint32_t> values{seed};
  for (const TokenId id : tokens) values.push_back(static_cast<uint32_t>(id) + 1);
  std::seed_seq sequence(values.begin(), values.end());
  std::mt19937 rng(sequence);
  std::vector<double> p(kBytes.size());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(std::uniform_real_distribution<>(-3, 3)(rng));
  for (double& x : p) x /= sum;
  return p;
}

AskNext asks(uint32_t seed) {
  return [seed](const std::vector<TokenId>& tokens, const std::vector<TokenId>& wanted,
                const std::function<void(Result<std::vector<float>>)>& done) {
    const std::vector<double> p = distribution(seed, tokens);
    std::vector<float> logprobs;
    for (const TokenId id : wanted)
      logprobs.push_back(static_cast<float>(std::log(p[static_cast<size_t>(id)])));
    done(std::move(logprobs));
  };
}

double enumerated(uint32_t seed, std::string_view text, std::vector<TokenId>& tokens, int& count) {
  if (text.empty()) {
    ++count;
    return 1;
  }
  double sum = 0;
  const std::vector<double> p = distribution(seed, tokens);
  for (size_t id = 0; id < kBytes.size(); ++id) {
    if (kBytes[id].empty() || id == 7 || !text.starts_with(kBytes[id])) continue;
    tokens.push_back(static_cast<TokenId>(id));
    sum += p[id] * enumerated(seed, text.substr(kBytes[id].size()), tokens, count);
    tokens.pop_back();
  }
  return sum;
}

Result<ExactProbability> search(const std::string& text, const AskNext& ask,
                                const ExactOptions& options = {}) {
  Result<ExactProbability> found = fail(error(StatusCode::kInternal, "done was not called"));
  exact_probability(std::make_shared<Speller>(vocab()), text, options, ask,
                    [&](Result<ExactProbability> r) { found = std::move(r); });
  return found;
}

TEST(ExactSearch, IsTheSumOverAllSpellings) {
  std::mt19937 rng(20261121);
  for (int round = 0; round < 50; ++round) {
    std::string text;
    for (size_t n = 1 + rng() % 10; text.size() < n;) text += rng() % 2 == 0 ? 'a' : 'b';
    const auto seed = static_cast<uint32_t>(rng());
    SCOPED_TRACE(text + " with seed " + std::to_string(seed));
    const auto found = search(text, asks(seed));
    ASSERT_TRUE(found) << found.error().to_string();
    std::vector<TokenId> tokens;
    int count = 0;
    const double sum = enumerated(seed, text, tokens, count);
    EXPECT_NEAR(std::exp(found->logprob) / sum, 1, 1e-5);
    EXPECT_LE(found->num_spellings, count);
    EXPECT_LE(found->left_out_max, 1.01e-7 * sum);
    EXPECT_GE(sum * (1 + 1e-5), std::exp(found->logprob));
  }
}

TEST(ExactSearch, ALooserBoundAsksLess) {
  const std::string text = "abaababaabab";
  const auto exact = search(text, asks(3));
  const auto loose = search(text, asks(3), {.relative_error_max = 0.2});
  ASSERT_TRUE(exact && loose);
  EXPECT_LT(loose->num_forwards, exact->num_forwards);
  EXPECT_GE(std::exp(loose->logprob) + loose->left_out_max, std::exp(exact->logprob) * 0.9999);
}

TEST(ExactSearch, WhatIsWrongIsSaid) {
  EXPECT_EQ(search("abx", asks(1)).error().code(), StatusCode::kInvalidArgument);
  const Status many = search("ababababab", asks(1), {.num_forwards_max = 3}).error();
  EXPECT_EQ(many.code(), StatusCode::kInvalidArgument);  // the same again would be no better
  EXPECT_THAT(many.message(), HasSubstr("the choice \"ababababab\" can be spelled in too many"));
  EXPECT_THAT(search(std::string(5000, 'a'), asks(1), {.num_forwards_max = 3}).error().message(),
              StartsWith("a choice of 5000 bytes"));
  const AskNext lost = [](const auto&, const auto&, const auto& done) {
    done(fail(error(StatusCode::kAborted, "gone")));
  };
  EXPECT_EQ(search("ab", lost).error().code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace espalier
