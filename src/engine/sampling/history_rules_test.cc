// The rules against plain definitions.
#include "engine/sampling/history_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/rng.h"
#include "engine/sampling/history_params.h"
#include "engine/sampling/sampler.h"

namespace espalier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> with_banned_ngrams(const std::vector<TokenId>& tokens, int32_t n, size_t vocab) {
  std::vector<float> logits(vocab);
  ban_repeated_ngrams(tokens, n, logits);
  return logits;
}

// By the definition; transformers' cases are in engine/insides_engine_test.cc.
TEST(RepeatedNgrams, AreBannedByTheirDefinition) {
  Rng rng(3);
  for (int i = 0; i < 500; ++i) {
    const size_t n = 1 + rng.below(4), vocab = 2 + rng.below(3);
    std::vector<TokenId> tokens(rng.below(20));
    for (TokenId& id : tokens) id = static_cast<TokenId>(rng.below(vocab));
    const auto logits = with_banned_ngrams(tokens, static_cast<int32_t>(n), vocab);
    for (size_t id = 0; id < vocab; ++id) {
      std::vector<TokenId> gram = tokens;
      gram.push_back(static_cast<TokenId>(id));
      bool banned = false;
      if (gram.size() >= n) {
        gram.erase(gram.begin(), gram.end() - static_cast<std::ptrdiff_t>(n));
        banned = !std::ranges::search(tokens, gram).empty();
      }
      EXPECT_EQ(logits[id] == -kInfinity, banned) << "case " << i << ", n " << n;
    }
  }
}

// By the definition: how many of the last tokens stand before each token.
std::map<TokenId, int32_t> longest_repetitions(const std::vector<TokenId>& tokens,
                                               const SamplingSpec& spec) {
  const auto n = static_cast<int32_t>(tokens.size());
  const int32_t begin = spec.dry_range < 0 ? 0 : std::max(0, n - spec.dry_range);
  const auto at = [&](int32_t i) { return tokens[static_cast<size_t>(i)]; };
  const auto breaks = [&](TokenId id) { return std::ranges::count(spec.dry_breakers, id) > 0; };
  std::map<TokenId, int32_t> longest;
  for (int32_t next = begin + 1; next < n; ++next) {
    int32_t length = 0;
    while (next - 1 - length >= begin && at(next - 1 - length) == at(n - 1 - length) &&
           !breaks(at(n - 1 - length)))
      ++length;
    if (length >= spec.dry_allowed_length && !breaks(at(next)))
      longest[at(next)] = std::max(longest[at(next)], length);
  }
  return longest;
}

TEST(Dry, IsItsDefinition) {
  Rng rng(7);
  int num_penalised = 0;
  for (int i = 0; i < 2000; ++i) {
    SamplingSpec spec;
    spec.dry_multiplier = 0.5f + static_cast<float>(rng.below(4));
    spec.dry_base = 1 + static_cast<float>(rng.below(3)) / 4;
    spec.dry_allowed_length = 1 + static_cast<int32_t>(rng.below(3));
    spec.dry_range = rng.below(3) == 0 ? static_cast<int32_t>(rng.below(30)) : -1;
    if (rng.below(2) == 0) spec.dry_breakers = {3};
    const size_t vocab = 2 + rng.below(4);
    std::vector<TokenId> tokens(rng.below(40));
    for (TokenId& id : tokens) id = static_cast<TokenId>(rng.below(vocab));
    std::vector<float> logits(vocab, 1.0f);
    penalise_repetitions(spec, tokens, logits);
    std::map<TokenId, int32_t> longest = longest_repetitions(tokens, spec);
    num_penalised += !longest.empty();
    for (size_t id = 0; id < vocab; ++id) {
      double expected = 1;
      if (const auto it = longest.find(static_cast<TokenId>(id)); it != longest.end())
        expected -= double{spec.dry_multiplier} *
                    std::pow(double{spec.dry_base}, it->second - spec.dry_allowed_length);
      EXPECT_NEAR(logits[id], expected, 1e-5 * std::abs(expected)) << "case " << i;
    }
  }
  EXPECT_GT(num_penalised, 500);
}

TEST(Dry, StaysFiniteInALongRepetition) {
  SamplingSpec spec;
  spec.dry_multiplier = 1;
  spec.dry_base = 4;
  std::vector<float> logits(2);
  penalise_repetitions(spec, std::vector<TokenId>(5000, 1), logits);
  EXPECT_THAT(logits, ElementsAre(0.0f, -std::numeric_limits<float>::max()));
}

TEST(Dry, LeavesBannedTokensBanned) {
  SamplingSpec spec;
  spec.no_repeat_ngram_size = 1;
  spec.dry_multiplier = 1;
  TokenHistory history;
  history.reset(std::vector<TokenId>(8, 1), {});
  std::vector<float> logits(2);
  ASSERT_TRUE(apply_history(spec, history, logits).ok());
  EXPECT_THAT(logits, ElementsAre(0.0f, -kInfinity));
}

TEST(ThinkingBudget, ClosesWhatIsOpenAndSpent) {
  SamplingSpec spec;
  spec.thinking_budget = 2;
  spec.thinking_begin = 8;
  spec.thinking_end = 9;
  using Ids = std::vector<TokenId>;
  EXPECT_FALSE(budget_is_spent(spec, Ids{1, 2, 3, 4}));
  EXPECT_FALSE(budget_is_spent(spec, Ids{1, 8, 3}));
  EXPECT_TRUE(budget_is_spent(spec, Ids{1, 8, 3, 4}));
  EXPECT_TRUE(budget_is_spent(spec, Ids{1, 8, 3, 4, 5}));
  EXPECT_FALSE(budget_is_spent(spec, Ids{1, 8, 3, 4, 9}));
  EXPECT_FALSE(budget_is_spent(spec, Ids{8, 3, 4, 9, 1, 1, 1}));
  EXPECT_TRUE(budget_is_spent(spec, Ids{8, 3, 4, 9, 8, 1, 1}));
  spec.thinking_budget = 0;
  EXPECT_TRUE(budget_is_spent(spec, Ids{8}));
  TokenHistory history{.tokens = {8, 1}};
  std::vector<float> logits(10, 1.0f);
  ASSERT_TRUE(apply_history(spec, history, logits).ok());
  EXPECT_THAT(std::span(logits).first(9), Each(-kInfinity));
  EXPECT_EQ(logits[9], 1.0f);
}

// Of all seeds a token may come only where XTC leaves it; the share of draws is its probability's.
TEST(Xtc, DropsAllButTheLeastLikelyOfTheLikely) {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f),
                                     std::log(0.1f)};
  SamplingSpec spec;
  spec.xtc_threshold = 0.15f;
  Sampler sampler(4);
  const auto draws = [&](float probability) {
    spec.xtc_probability = probability;
    std::vector<int> counts(4);
    for (int seed = 0; seed < 4000; ++seed) {
      spec.seed = static_cast<uint64_t>(seed);
      const auto token = sampler.sample({.logits = logits, .spec = &spec});
      ++counts[static_cast<size_t>(token.value())];
    }
    return counts;
  };
  const auto always = draws(1);
  EXPECT_EQ(always[0] + always[1], 0);
  EXPECT_NEAR(always[2], 4000 * 2 / 3, 120);
  const auto half = draws(0.5f);
  EXPECT_NEAR(half[0], 4000 * 0.5 * 0.4, 120);
  EXPECT_NEAR(half[2], 4000 * (0.5 * 0.2 + 0.5 * 2 / 3), 130);
  spec.top_k = 2;  // the third likeliest is not kept, so the second is the least likely one
  EXPECT_THAT(draws(1), ElementsAre(0, 4000, 0, 0));
  spec.top_k = -1;
  spec.xtc_threshold = 0.35f;  // one token alone is above: nothing is dropped
  EXPECT_NEAR(draws(1)[0], 1600, 120);
  spec.temperature = 0;
  EXPECT_THAT(draws(1), ElementsAre(4000, 0, 0, 0));
}

class Doubler final : public LogitHook {
 public:
  float factor = 2;
  std::string failure;
  std::string apply(std::span<const TokenId> tokens, int32_t num_prompt,
                    std::span<float> logits) override {
    EXPECT_EQ(tokens.size(), 3u);
    EXPECT_EQ(num_prompt, 2);
    for (float& x : logits) x *= factor;
    return failure;
  }
};

TEST(Hook, ChangesLogitsAndMayFail) {
  const auto hook = std::make_shared<Doubler>();
  SamplingSpec spec;
  spec.hook = hook;
  const TokenHistory history{.tokens = {1, 0, 1}, .num_prompt = 2};
  std::vector<float> logits = {1, -2};
  ASSERT_TRUE(apply_history(spec, history, logits).ok());
  EXPECT_THAT(logits, ElementsAre(2, -4));
  hook->factor = std::nanf("");
  EXPECT_THAT(apply_history(spec, history, logits).message(), HasSubstr("token 0"));
  hook->failure = "out of ideas";
  EXPECT_THAT(apply_history(spec, history, logits).message(), HasSubstr("out of ideas"));
}

TEST(HistoryFields, AreRefusedWhereTheyCannotBe) {
  SamplingParams params;
  SamplingSpec spec, plain;
  spec.no_repeat_ngram_size = 3;
  EXPECT_TRUE(resolve_history(params, {}, spec).ok());
  EXPECT_TRUE(needs_host(spec));
  EXPECT_FALSE(needs_host(plain));
  SamplingSpec thinking;
  thinking.thinking_budget = 5;
  EXPECT_THAT(resolve_history(params, {}, thinking).message(), HasSubstr("thinking_budget"));
  EXPECT_TRUE(resolve_history(params, {.thinking_begin = 1, .thinking_end = 2}, thinking).ok());
  EXPECT_EQ(thinking.thinking_end, 2);
  params.logit_processor = "mine";
  EXPECT_THAT(resolve_history(params, {}, spec).message(), HasSubstr("--logit-processor-library"));
  params.logit_processor_params = std::string("5\0006", 3);
  EXPECT_THAT(resolve_history(params, {}, spec).message(), HasSubstr("zero byte"));
}

TEST(DryBreakers, AreTokensThatHoldOne) {
  const std::string_view tokens[] = {"a", "b:", "\n\n", "", "*", "c"};
  SamplingParams params;
  SamplingSpec spec;
  spec.dry_multiplier = 1;
  const HistoryContext context{.token_bytes = tokens};
  ASSERT_TRUE(resolve_history(params, context, spec).ok());
  EXPECT_THAT(spec.dry_breakers, ElementsAre(1, 2, 4));
  params.dry_sequence_breakers = {"c", "b"};
  ASSERT_TRUE(resolve_history(params, context, spec).ok());
  EXPECT_THAT(spec.dry_breakers, ElementsAre(1, 5));
  params.dry_sequence_breakers = {""};
  EXPECT_THAT(resolve_history(params, context, spec).message(), HasSubstr("empty text"));
  params.dry_sequence_breakers.assign(kDryBreakersMax, "c");
  EXPECT_TRUE(resolve_history(params, context, spec).ok());
  params.dry_sequence_breakers.emplace_back("c");
  EXPECT_THAT(resolve_history(params, context, spec).message(), HasSubstr("64 at most"));
}

}  // namespace
}  // namespace espalier
