// The whole engine on several GPUs: the tokens of the CPU's engine, however requests come together,
// and errors instead of silence when one of the GPUs fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "base/fatal_exit.h"
#include "engine/testing/test_tiers.h"
#include "kernels/random/cuda.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr float kLogprobTolerance = 2e-3f;  // natural logarithms; sums in another order

#define ESPALIER_REQUIRE_RANKS()                                       \
  do {                                                                 \
    ESPALIER_REQUIRE_DEVICE();                                         \
    if (cuda::count_devices() < 2)                                     \
      GTEST_SKIP() << "needs two GPUs that reach each other's memory"; \
  } while (false)

class EngineRanksCuda : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_RANKS();
    auto engine =
        load_golden(GetParam(), {.model = {.dtype = "float32"}, .compute = {.device = "cpu"}});
    ASSERT_NE(engine, nullptr);
    cpu_ = answers_alone(*engine);
  }

  void expect_cpu(const std::vector<Answer>& got, const std::string& how) const {
    ASSERT_EQ(got.size(), cpu_.size()) << how;
    for (size_t i = 0; i < cpu_.size(); ++i) {
      const std::string where = how + ", request " + std::to_string(i);
      EXPECT_EQ(got[i].ids, cpu_[i].ids) << where;
      expect_near(got[i].logprobs, cpu_[i].logprobs, where);
      expect_near(got[i].input_logprobs, cpu_[i].input_logprobs, where);
    }
  }
  static void expect_near(const std::vector<float>& got, const std::vector<float>& want,
                          const std::string& how) {
    ASSERT_EQ(got.size(), want.size()) << how;
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], kLogprobTolerance) << how << ", " << i;
  }
  void check(const std::string& how, EngineConfig config) const {
    config.compute.device = "cuda";
    config.model.dtype = "float32";
    config.compute.tp_size = 2;
    auto engine = load_golden(GetParam(), config);
    ASSERT_NE(engine, nullptr);
    expect_cpu(answers_alone(*engine), how + ", alone");
    expect_cpu(answers_in_a_crowd(*engine), how + ", in a crowd");
  }

  std::vector<Answer> cpu_;
};

TEST_P(EngineRanksCuda, GiveTheTokensOfTheCpu) {
  check("as it is", {});
  check("no graphs", {.compute = {.disable_cuda_graph = true}});
  check("chunks of 7 on pages of 5",
        {.cache = {.page_size = 5}, .schedule = {.chunked_prefill_size = 7}});
  if (GetParam() == "mixtral" || GetParam() == "deepseek_v2")
    check("whole experts", {.compute = {.ep_size = 2}});
}

INSTANTIATE_TEST_SUITE_P(Models, EngineRanksCuda,
                         testing::Values("llama_untied_bias", "qwen2_f32", "gemma2", "mixtral",
                                         "deepseek_v2", "gpt2"),
                         [](const auto& model) { return model.param; });

// Bit for bit, in bfloat16.
TEST(EngineRanksCudaDeterministic, AnswersDependOnTheRequestAlone) {
  ESPALIER_REQUIRE_RANKS();
  const EngineConfig config{
      .compute = {.device = "cuda", .tp_size = 2, .enable_deterministic_inference = true}};
  auto engine = load_golden("llama_tied_llama3", config);
  ASSERT_NE(engine, nullptr);
  const auto want = answers_alone(*engine);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const auto got = answers_in_a_crowd(*engine);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << "request " << i;
  }
}

// Each rank's part of a page goes to the host and comes back to its own GPU.
TEST(EngineRanksCudaTiers, PrefixesComeBackFromTheHost) {
  ESPALIER_REQUIRE_RANKS();
  expect_tiers_change_nothing("llama_untied_bias", {.compute = {.device = "cuda", .tp_size = 2}});
  expect_tiers_change_nothing("deepseek_v2", {.compute = {.device = "cuda", .tp_size = 2}});
}

TEST(EngineRanksCudaStart, TooManyRanksAreRefused) {
  ESPALIER_REQUIRE_DEVICE();
  const auto refused = [](const std::string& model, int32_t tp_size) {
    auto engine =
        Engine::create({.model = {.model_path = kModels / model, .skip_tokenizer_init = true},
                        .compute = {.device = "cuda", .tp_size = tp_size}});
    return engine ? std::string() : engine.error().message();
  };
  EXPECT_THAT(refused("llama_tied_llama3", 64), HasSubstr("choose a smaller --tp-size"));
}

// A kernel that writes where nothing is takes one GPU from the process, on which the other waits.
void lose_a_rank() {
  const auto engine =
      load_golden("llama_tied_llama3", {.compute = {.device = "cuda", .tp_size = 2}});
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

TEST(EngineRanksCudaDeathTest, ALostRankEndsRequestsAndThenTheProcess) {
  ESPALIER_REQUIRE_RANKS();
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own: contexts do not fork
  EXPECT_EXIT(lose_a_rank(), testing::ExitedWithCode(kExitCannotGoOn),
              ::testing::AllOf(HasSubstr("answered: rank "), HasSubstr("the GPU failed")));
}

}  // namespace
}  // namespace espalier
