// The whole engine on stages of a pipeline: the tokens of the CPU's engine, the bits of one GPU in
// deterministic inference, and errors instead of silence when one of the GPUs fails.
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

// Natural logarithms; float32 on both sides, sums in another order.
constexpr float kStageLogprobTolerance = 2e-3f;

#define ESPALIER_REQUIRE_STAGES()                                    \
  do {                                                               \
    ESPALIER_REQUIRE_DEVICE();                                       \
    if (cuda::count_devices() < 2) GTEST_SKIP() << "needs two GPUs"; \
  } while (false)

void expect_logprobs_near(const std::vector<float>& got, const std::vector<float>& want,
                          const std::string& where) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], kStageLogprobTolerance) << where << ", " << i;
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

  void expect_cpu(const std::vector<Answer>& got, const std::string& how) const {
    ASSERT_EQ(got.size(), cpu_.size()) << how;
    for (size_t i = 0; i < cpu_.size(); ++i) {
      const std::string where = how + ", request " + std::to_string(i);
      EXPECT_EQ(got[i].ids, cpu_[i].ids) << where;
      expect_logprobs_near(got[i].logprobs, cpu_[i].logprobs, where);
      expect_logprobs_near(got[i].input_logprobs, cpu_[i].input_logprobs, where);
    }
  }
  // Returns how many draft tokens were accepted.
  int64_t check(const std::string& how, EngineConfig config) const {
    config.compute.device = "cuda";
    config.model.dtype = "float32";
    config.compute.pp_size = 2;
    auto engine = load_golden(GetParam(), config);
    EXPECT_NE(engine, nullptr);
    if (engine == nullptr) return 0;
    expect_cpu(answers_alone(*engine), how + ", alone");
    expect_cpu(answers_in_a_crowd(*engine), how + ", in a crowd");
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
                         testing::Values("llama_untied_bias", "qwen2_f32", "gemma2", "gemma3",
                                         "mixtral", "deepseek_v2", "gpt2"),
                         [](const auto& model) { return model.param; });

// Rows are the same wherever they are computed.
TEST(EngineStagesCudaDeterministic, HaveTheBitsOfOneGpu) {
  ESPALIER_REQUIRE_STAGES();
  for (const char* model : {"llama_tied_llama3", "qwen3_moe"}) {
    const EngineConfig one{.compute = {.device = "cuda", .enable_deterministic_inference = true}};
    EngineConfig two = one;
    two.compute.pp_size = 2;
    const auto alone = load_golden(model, one), stages = load_golden(model, two);
    ASSERT_TRUE(alone != nullptr && stages != nullptr);
    const auto want = answers_alone(*alone);
    for (const auto& got : {answers_alone(*stages), answers_in_a_crowd(*stages)}) {
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_EQ(got[i], want[i]) << model << ", request " << i;
    }
  }
}

// Each stage's layers of a page go to the host and come back to its own GPU.
TEST(EngineStagesCudaTiers, PrefixesComeBackFromTheHost) {
  ESPALIER_REQUIRE_STAGES();
  expect_tiers_change_nothing("llama_untied_bias", {.compute = {.device = "cuda", .pp_size = 2}});
  expect_tiers_change_nothing("deepseek_v2", {.compute = {.device = "cuda", .pp_size = 2}});
}

std::string refusal_of_stages(int32_t pp_size, int32_t tp_size) {
  auto engine = Engine::create(
      {.model = {.model_path = kModels / "llama_tied_llama3", .skip_tokenizer_init = true},
       .compute = {.device = "cuda", .tp_size = tp_size, .pp_size = pp_size}});
  return engine ? std::string() : engine.error().message();
}

TEST(EngineStagesCudaStart, RefusalsSayWhatToDo) {
  ESPALIER_REQUIRE_DEVICE();
  EXPECT_THAT(refusal_of_stages(64, 1), ::testing::HasSubstr("but the model has"));
  EXPECT_THAT(refusal_of_stages(2, 2), ::testing::HasSubstr("leave one of the two out"));
  if (cuda::count_devices() < 3)
    EXPECT_THAT(refusal_of_stages(3, 1), ::testing::HasSubstr("choose a smaller --pp-size"));
}

// A kernel that writes where nothing is takes one GPU from the process.
void lose_a_stage(int32_t device) {
  const auto engine =
      load_golden("llama_tied_llama3", {.compute = {.device = "cuda", .pp_size = 2}});
  Collector running;
  static_cast<void>(
      engine->submit({.input_ids = {5, 6}, .sampling = {.max_new_tokens = 200, .ignore_eos = true}},
                     running.sink()));
  static_cast<void>(cuda::use_device(device));
  static_cast<void>(kernels::cuda::draw({.out = reinterpret_cast<void*>(256), .count = 256}, {}));
  running.wait_end();
  std::fprintf(stderr, "answered: %s\n", running.result().finish.status.message().c_str());
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

TEST(EngineStagesCudaDeathTest, ALostStageEndsRequestsAndThenTheProcess) {
  ESPALIER_REQUIRE_STAGES();
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own: contexts do not fork
  for (const int32_t device : {0, 1})
    EXPECT_EXIT(lose_a_stage(device), testing::ExitedWithCode(kExitCannotGoOn),
                ::testing::AllOf(::testing::HasSubstr("answered: stage "),
                                 ::testing::HasSubstr("the GPU failed")));
}

}  // namespace
}  // namespace espalier
