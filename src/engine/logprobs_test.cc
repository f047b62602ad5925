// Log-probabilities of answers by the model that ships: classification under a grammar, the modes,
// and the distribution behind a prompt of which nothing is generated.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine.h"

namespace espalier {
namespace {

std::unique_ptr<Engine> make_engine(const std::string& mode) {
  EngineConfig config{.model = {.model_path = "share/default_model"},
                      .cache = {.max_total_tokens = 2048}};
  config.sampling.logprobs_mode = mode;
  auto engine = Engine::create(config);
  EXPECT_TRUE(engine) << engine.error().to_string();
  return std::move(*engine);
}

GenerateRequest request_of(SamplingParams sampling, int32_t top_logprobs_num) {
  return {.text = "Question: is Paris the capital of France? Answer:",
          .sampling = std::move(sampling),
          .return_logprob = true,
          .top_logprobs_num = top_logprobs_num,
          .token_ids_logprob = {5, 300}};
}

TokenLogprobs first_of(Engine& engine, const SamplingParams& sampling, int32_t top_logprobs_num) {
  const auto answer = engine.generate(request_of(sampling, top_logprobs_num));
  EXPECT_TRUE(answer) << answer.error().to_string();
  if (!answer || answer->output_logprobs.empty()) return {};
  return answer->output_logprobs[0];
}

TEST(Logprobs, OfTokensThatAGrammarAllowsSumToOne) {
  const auto engine = make_engine("processed");
  double distance = 0;
  for (const float temperature : {0.0f, 0.5f, 1.0f, 2.0f}) {
    const SamplingParams sampling{.max_new_tokens = 1,
                                  .temperature = temperature,
                                  .choices = {" Yes", " No", " maybe", " it is"}};
    const TokenLogprobs first = first_of(*engine, sampling, 6);
    ASSERT_EQ(first.top.size(), 6u);
    double sum = 0;
    for (const auto& [id, logprob] : first.top) sum += std::exp(logprob);
    EXPECT_NEAR(sum, 1, 1e-4) << temperature;
    EXPECT_LT(first.top.back().second, -1e38f);  // fewer than six tokens may come
    // A temperature scales the distance of two log-probabilities; greedy ones have none.
    const double scaled =
        (first.top[0].second - first.top[1].second) * (temperature == 0 ? 1 : temperature);
    if (temperature == 0) distance = scaled;
    EXPECT_NEAR(scaled, distance, 1e-3);
  }
  EXPECT_GT(distance, 0.01);
}

TEST(Logprobs, ModesDifferByTemperatureAndBias) {
  const auto processed = make_engine("processed"), original = make_engine("original"),
             raw = make_engine("raw");
  const SamplingParams plain{.max_new_tokens = 1, .temperature = 0.0f};
  const TokenLogprobs model = first_of(*raw, plain, 3);
  EXPECT_EQ(first_of(*processed, plain, 3).top, model.top);
  EXPECT_EQ(first_of(*original, plain, 3).top, model.top);
  SamplingParams biased{.max_new_tokens = 1, .temperature = 0.5f, .sampling_seed = 3};
  biased.logit_bias = {{5, 100.0f}};
  EXPECT_NEAR(first_of(*processed, biased, 1).wanted[0].second, 0, 1e-4);
  EXPECT_NEAR(first_of(*original, biased, 1).wanted[0].second, 0, 1e-4);
  EXPECT_EQ(first_of(*raw, biased, 3).wanted, model.wanted);
  const SamplingParams warm{.max_new_tokens = 1, .temperature = 3.0f, .sampling_seed = 3};
  EXPECT_EQ(first_of(*original, warm, 3).top, model.top);
  EXPECT_LT(first_of(*processed, warm, 3).top[0].second, model.top[0].second);
}

TEST(Logprobs, PrefillOnlyGivesTheDistributionBehindThePrompt) {
  const auto engine = make_engine("processed");
  const TokenLogprobs first = first_of(*engine, {.max_new_tokens = 1, .temperature = 0.0f}, 4);
  const auto answer = engine->generate(request_of({.max_new_tokens = 0, .temperature = 0.7f}, 4));
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_TRUE(answer->output_ids.empty() && answer->output_logprobs.empty());
  EXPECT_EQ(answer->stats.completion_tokens, 0);
  ASSERT_TRUE(answer->next_logprobs);
  EXPECT_EQ(answer->next_logprobs->top, first.top);
  EXPECT_EQ(answer->next_logprobs->wanted, first.wanted);
  GenerateRequest nothing = request_of({.max_new_tokens = 0}, 0);
  nothing.token_ids_logprob.clear();
  EXPECT_FALSE(engine->generate(nothing)->next_logprobs);
}

// What a grammar excludes has no probability, though nothing is generated.
TEST(Logprobs, PrefillOnlyTakesAGrammar) {
  const auto engine = make_engine("processed");
  const auto answer =
      engine->generate(request_of({.max_new_tokens = 0, .choices = {" Yes", " No", " maybe"}}, 6));
  ASSERT_TRUE(answer) << answer.error().to_string();
  ASSERT_TRUE(answer->next_logprobs);
  double sum = 0;
  for (const auto& [id, logprob] : answer->next_logprobs->top) sum += std::exp(logprob);
  EXPECT_NEAR(sum, 1, 1e-4);
  EXPECT_LT(answer->next_logprobs->top.back().second, -1e38f);
}

}  // namespace
}  // namespace espalier
