#include "lang/choices.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace espalier::lang {
namespace {

ChoiceScore choice(std::string text, std::vector<std::optional<float>> logprobs,
                   std::vector<std::optional<float>> unconditional = {}) {
  ChoiceScore score{.text = std::move(text)};
  score.logprobs = std::move(logprobs);
  score.unconditional_logprobs = std::move(unconditional);
  return score;
}

TEST(Choices, LengthNormalisedTakesTheBestMean) {
  const auto decision =
      decide(token_length_normalized, {choice("no", {-1.0f}), choice("yes, it is", {-2, -.1f, 0})});
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->text, "yes, it is");  // -0.7, though its sum is smaller
  EXPECT_NEAR(decision->scores[1], -0.7, 1e-6);
}

TEST(Choices, ATokenWithoutALogprobCountsForNothing) {
  const auto decision = decide(token_length_normalized,
                               {choice("a", {std::nullopt, -3.0f}), choice("b", {-2.0f, -2.0f})});
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->index, 1u);
  EXPECT_DOUBLE_EQ(decision->scores[0], -3.0);
}

TEST(Choices, GreedyGoesColumnByColumn) {
  // The first token decides, whatever follows it.
  const auto decision = decide(greedy_token_selection,
                               {choice("a b", {-0.5f, -9.0f}), choice("c d", {-0.6f, -0.1f})});
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->text, "a b");
}

TEST(Choices, GreedyLetsAShortChoiceGoOnWithItsMean) {
  const std::vector<ChoiceScore> tied = {choice("a", {-0.5f}), choice("ab", {-0.5f, -0.4f})};
  EXPECT_EQ(decide(greedy_token_selection, tied)->text, "ab");
  const std::vector<ChoiceScore> worse = {choice("a", {-0.5f}), choice("ab", {-0.5f, -0.6f})};
  EXPECT_EQ(decide(greedy_token_selection, worse)->text, "a");
}

TEST(Choices, UnconditionalTakesOffWhatIsLikelyAnywhere) {
  const std::vector<ChoiceScore> scores = {choice("common", {-1.0f, -1.0f}, {std::nullopt, -0.5f}),
                                           choice("rare", {-2.0f, -2.0f}, {std::nullopt, -8.0f})};
  EXPECT_EQ(decide(token_length_normalized, scores)->text, "common");
  const auto decision = decide(unconditional_likelihood_normalized, scores);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->text, "rare");
  EXPECT_DOUBLE_EQ(decision->scores[1], (-2.0 + 6.0) / 2);
}

TEST(Choices, ExactNeedsItsScore) {
  ChoiceScore a = choice("a", {-1.0f}), b = choice("b", {-9.0f});
  EXPECT_EQ(decide(exact_likelihood, {a, b}).error().code(), StatusCode::kInternal);
  a.exact_logprob = -1.0;
  b.exact_logprob = -0.9;
  EXPECT_EQ(decide(exact_likelihood, {a, b})->text, "b");
}

TEST(Choices, EveryMethodPrefersAChoiceThatIsBetterEverywhere) {
  const uint64_t seed = 11;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<ChoiceScore> scores;
    const size_t best = rng.below(4);
    for (size_t i = 0; i < 4; ++i) {
      ChoiceScore& s = scores.emplace_back(choice(std::string(1, static_cast<char>('a' + i)), {}));
      const auto num_tokens = rng.between(1, 5);
      for (int64_t t = 0; t < num_tokens; ++t) {
        const float logprob = static_cast<float>(-rng.uniform() - (i == best ? 0.0 : 1.5));
        s.logprobs.emplace_back(logprob);
        s.unconditional_logprobs.emplace_back(-2.0f);
      }
      s.exact_logprob = i == best ? -1.0 : -2.0;
    }
    for (ChoicesMethod method : {token_length_normalized, greedy_token_selection,
                                 unconditional_likelihood_normalized, exact_likelihood})
      EXPECT_EQ(decide(method, scores)->index, best) << choices_method_name(method);
  }
}

TEST(Choices, RefusesWhatCannotBeDecided) {
  EXPECT_FALSE(validate_choices({}).ok());
  EXPECT_EQ(validate_choices({"yes", ""}).message(), "choice 1 of the select is empty");
  EXPECT_EQ(validate_choices({"yes", "no", "yes"}).message(),
            "choices 0 and 2 of the select are equal: \"yes\"");
  EXPECT_TRUE(validate_choices({"yes", "no"}).ok());
  EXPECT_FALSE(decide(token_length_normalized, {}));
}

TEST(Choices, MethodsHaveNames) {
  for (ChoicesMethod method : {token_length_normalized, greedy_token_selection,
                               unconditional_likelihood_normalized, exact_likelihood})
    EXPECT_EQ(parse_choices_method(choices_method_name(method)).value(), method);
  EXPECT_FALSE(parse_choices_method("best"));
}

}  // namespace
}  // namespace espalier::lang
