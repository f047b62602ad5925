// The whole engine on two GPUs that each have half of the layers: the tokens of the CPU's engine,
// however requests come together and prompts are cut, and errors instead of silence when one of the
// GPUs fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "base/fatal_exit.h"
#include "engine/testing/grammar_answers.h"
#include "engine/testing/near_answers.h"
#include "engine/testing/test_tiers.h"
#include "kernels/random/cuda.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

#define ESPALIER_REQUIRE_STAGES()                                    \
  do {                                                               \
    ESPALIER_REQUIRE_DEVICE();                                       \
    if (cuda::count_devices() < 2) GTEST_SKIP() << "needs two GPUs"; \
  } while (false)

EngineConfig in_stages(EngineConfig config = {}) {
  config.compute.device = "cuda";
  config.compute.pp_size = 2;
  config.compute.pp_micro_batch_tokens = 5;
  return config;
}

class EngineStagesCuda : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_STAGES();
    auto engine =
        load_golden(GetParam(), {.model = {.dtype = "float32"}, .compute = {.device = "cpu"}});
    ASSERT_NE(engine, nullptr);
    cpu_ = answers_alone(*engine);
  }

  // Returns how many draft tokens were accepted.
  int64_t check(const std::string& how, const EngineConfig& changed) const {
    EngineConfig config = in_stages(changed);
    config.model.dtype = "float32";
    auto engine = load_golden(GetParam(), config);
    EXPECT_NE(engine, nullptr);
    if (engine == nullptr) return 0;
    expect_near_answers(answers_alone(*engine), cpu_, how + ", alone");
    expect_near_answers(answers_in_a_crowd(*engine), cpu_, how + ", in a crowd");
    return engine->stats().speculation.accepted_tokens;
  }

  std::vector<Answer> cpu_;
};

TEST_P(EngineStagesCuda, GiveTheTokensOfTheCpu) {
  check("as it is", {});
  check("no graphs", {.compute = {.disable_cuda_graph = true}});
  check("chunks of 7 on pages of 5",
        {.cache = {.page_size = 5}, .schedule = {.chunked_prefill_size = 7}});
  const SpeculationSettings speculation{.speculative_algorithm = "COMBINED",
                                        .measures_cost = false};
  EXPECT_GT(check("draft tokens", {.speculation = speculation}), 20);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineStagesCuda,
                         testing::Values("llama_untied_bias", "qwen2_f32", "gemma2", "mixtral",
                                         "deepseek_v2", "gpt2"),
                         [](const auto& model) { return model.param; });

// Bit for bit, in bfloat16, and those of one GPU.
TEST(EngineStagesCudaDeterministic, AnswersAreThoseOfOneGpu) {
  ESPALIER_REQUIRE_STAGES();
  const EngineConfig one{.compute = {.device = "cuda", .enable_deterministic_inference = true}};
  std::vector<Answer> want;
  {
    auto engine = load_golden("llama_tied_llama3", one);
    ASSERT_NE(engine, nullptr);
    want = answers_alone(*engine);
  }
  auto engine = load_golden("llama_tied_llama3", in_stages(one));
  ASSERT_NE(engine, nullptr);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const auto got = answers_in_a_crowd(*engine);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << "request " << i;
  }
}

// Greedy answers and those without a grammar; drawn ones may fall on the other side of a bound.
TEST(EngineStagesCudaGrammars, AnswersAreThoseOfTheCpu) {
  ESPALIER_REQUIRE_STAGES();
  const GrammarAnswers want =
      answers_under_grammars({.model = {.dtype = "float32"}, .compute = {.device = "cpu"}});
  const GrammarAnswers got = answers_under_grammars(in_stages({.model = {.dtype = "float32"}}));
  ASSERT_EQ(got.texts.size(), want.texts.size());
  for (size_t i = 0; i < want.texts.size(); i += 2) EXPECT_EQ(got.texts[i], want.texts[i]) << i;
}

// Each stage's part of a page goes to the host and comes back to its own GPU.
TEST(EngineStagesCudaTiers, PrefixesComeBackFromTheHost) {
  ESPALIER_REQUIRE_STAGES();
  expect_tiers_change_nothing("llama_untied_bias", in_stages());
  expect_tiers_change_nothing("deepseek_v2", in_stages());
}

TEST(EngineStagesCudaStart, WhatIsNotDividedIsRefused) {
  ESPALIER_REQUIRE_DEVICE();
  const auto refused = [](EngineConfig config) {
    config.model.model_path = kModels / "llama_tied_llama3";
    config.model.skip_tokenizer_init = true;
    config.compute.device = "cuda";
    auto engine = Engine::create(config);
    return engine ? std::string() : engine.error().message();
  };
  EXPECT_THAT(refused({.compute = {.tp_size = 64, .pp_size = 2}}),
              HasSubstr("choose a smaller --pp-size or --tp-size"));
  EXPECT_THAT(refused({.compute = {.pp_size = 64}}), HasSubstr("at most one stage a layer"));
  EXPECT_THAT(refused({.compute = {.pp_size = 2}, .lora = {.enable_lora = true}}),
              HasSubstr("leave --enable-lora or --pp-size out"));
}

// A kernel that writes where nothing is takes the second stage's GPU from the process.
void lose_a_stage() {
  const auto engine = load_golden("llama_tied_llama3", in_stages());
  Collector running;
  static_cast<void>(
      engine->submit({.input_ids = {5, 6}, .sampling = {.max_new_tokens = 200, .ignore_eos = true}},
                     running.sink()));
  static_cast<void>(cuda::use_device(1));
  static_cast<void>(kernels::cuda::draw({.out = reinterpret_cast<void*>(256), .count = 256}, {}));
  running.wait_end();
  std::fprintf(stderr, "answered: %s\n", running.result().finish.status.message().c_str());
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

TEST(EngineStagesCudaDeathTest, ALostStageEndsRequestsAndThenTheProcess) {
  ESPALIER_REQUIRE_STAGES();
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own: contexts do not fork
  EXPECT_EXIT(lose_a_stage(), testing::ExitedWithCode(kExitCannotGoOn),
              HasSubstr("the GPU failed"));
}

}  // namespace
}  // namespace espalier
