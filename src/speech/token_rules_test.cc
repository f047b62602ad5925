#include "speech/token_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace espalier::speech {
namespace {

// Text is 0 to 9, 10 is the end; 11 to 14 are special; times are 15 to 19.
WhisperTokens small_tokens() {
  WhisperTokens tokens;
  tokens.start = 11;
  tokens.end = 10;
  tokens.no_speech = 13;
  tokens.no_timestamps = 14;
  tokens.suppressed = {3, 11};
  tokens.suppressed_first = {4, 10};
  tokens.max_initial_timestamp = 2;
  tokens.languages = {{"en", 11}, {"de", 12}};
  return tokens;
}

std::set<TokenId> allowed(const std::vector<TokenId>& generated, bool timestamps,
                          std::vector<float> logits = std::vector<float>(20, 0.0f)) {
  apply_rules(small_tokens(), generated, timestamps, logits);
  std::set<TokenId> out;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) out.insert(static_cast<TokenId>(i));
  }
  return out;
}

// Text so likely that times do not outweigh it together.
std::vector<float> likely_text() {
  std::vector<float> logits(20, 0.0f);
  logits[5] = 9;
  return logits;
}

TEST(TokenRules, WithoutTimesTheyAreForbidden) {
  EXPECT_EQ(allowed({}, false), (std::set<TokenId>{0, 1, 2, 5, 6, 7, 8, 9, 12, 13, 14}));
  EXPECT_EQ(allowed({5}, false), (std::set<TokenId>{0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14}));
}

TEST(TokenRules, AWindowBeginsWithATimeThatIsNear) {
  EXPECT_EQ(allowed({}, true, likely_text()), (std::set<TokenId>{15, 16, 17}));
}

TEST(TokenRules, TimesComeInPairsAndDoNotGoBack) {
  // Behind the first time there is text.
  EXPECT_EQ(allowed({16}, true, likely_text()),
            (std::set<TokenId>{0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 13}));
  // Behind text a later time may follow, and text.
  EXPECT_EQ(allowed({16, 5}, true, likely_text()),
            (std::set<TokenId>{0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 13, 17, 18, 19}));
  // Behind the time that ends a segment the same time, a later one, or the end.
  EXPECT_EQ(allowed({16, 5, 18}, true, likely_text()), (std::set<TokenId>{18, 19}));
  std::vector<float> likely_end(20, 0.0f);
  likely_end[10] = 9;
  EXPECT_EQ(allowed({16, 5, 18}, true, likely_end), (std::set<TokenId>{10, 12, 13, 18, 19}));
  EXPECT_EQ(allowed({16, 5, 18, 18}, true, likely_text()),
            (std::set<TokenId>{0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 13}));
}

TEST(TokenRules, ATimeIsTakenWhereTimesTogetherAreLikelierThanAnyText) {
  std::vector<float> logits(20, -9.0f);
  logits[5] = 1;
  EXPECT_TRUE(allowed({16, 5}, true, logits).contains(5));
  logits[17] = logits[18] = logits[19] = 0.5f;  // log(3 exp(0.5)) is above 1
  EXPECT_EQ(allowed({16, 5}, true, logits), (std::set<TokenId>{17, 18, 19}));
}

TEST(TokenRules, TheLargestIsChosenAndDrawsFollowTheirShares) {
  std::vector<float> logits = {0, 1, -INFINITY, 1};
  const auto best = choose_token(logits, 0, 0.99);
  ASSERT_TRUE(best);
  EXPECT_EQ(best->token, 1);
  EXPECT_NEAR(best->logprob, std::log(std::exp(1.0) / (1 + 2 * std::exp(1.0))), 1e-6);
  const double low = std::exp(-2.0) / (2 + std::exp(-2.0));  // of token 0 at temperature 1/2
  EXPECT_EQ(choose_token(logits, 0.5, low - 1e-6)->token, 0);
  EXPECT_EQ(choose_token(logits, 0.5, low + 1e-6)->token, 1);
  EXPECT_EQ(choose_token(logits, 0.5, 0.999999)->token, 3);
}

TEST(TokenRules, NothingIsChosenOfInfiniteLogits) {
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_FALSE(choose_token(std::vector<float>{0, INFINITY, 1}, temperature, 0.5));
    EXPECT_FALSE(choose_token(std::vector<float>{-INFINITY, -INFINITY}, temperature, 0.5));
    EXPECT_FALSE(choose_token({}, temperature, 0.5));
  }
}

TEST(TokenRules, LanguagesAreChosenAmongThemselves) {
  std::vector<float> logits(20, 0.0f);
  logits[5] = 9;
  logits[12] = 0.1f;
  EXPECT_EQ(choose_language(small_tokens(), logits).code, "de");
  logits[11] = 0.2f;
  EXPECT_EQ(choose_language(small_tokens(), logits).code, "en");
}

TEST(TokenRules, ProbabilityIsTheShareOfTheSoftmax) {
  const std::vector<float> logits = {0, 0, std::log(2.0f)};
  EXPECT_NEAR(probability(logits, 2), 0.5, 1e-6);
  EXPECT_EQ(probability(logits, -1), 0);
}

}  // namespace
}  // namespace espalier::speech
