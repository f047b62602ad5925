// The whole engine on several GPUs: the tokens of the CPU's engine, however requests come together,
// and errors instead of silence when one of the GPUs fails.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>

#include "base/fatal_exit.h"
#include "engine/testing/near_answers.h"
#include "engine/testing/test_tiers.h"
#include "kernels/random/cuda.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

#define ESPALIER_REQUIRE_RANKS()                                       \
  do {                                                                 \
    ESPALIER_REQUIRE_DEVICE();                                         \
    if (cuda::count_devices() < 2)                                     \
      GTEST_SKIP() << "needs two GPUs that reach each other's memory"; \
  } while (false)

int64_t sum_of(const ExpertTable& table) {
  int64_t sum = 0;
  for (const std::vector<int64_t>& layer : table)
    sum = std::accumulate(layer.begin(), layer.end(), sum);
  return sum;
}

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
    expect_near_answers(got, cpu_, how);
  }
  // Returns what the engine counted.
  EngineStats check(const std::string& how, EngineConfig config) const {
    config.compute.device = "cuda";
    config.model.dtype = "float32";
    config.compute.tp_size = 2;
    auto engine = load_golden(GetParam(), config);
    EXPECT_NE(engine, nullptr);
    if (engine == nullptr) return {};
    expect_cpu(answers_alone(*engine), how + ", alone");
    expect_cpu(answers_in_a_crowd(*engine), how + ", in a crowd");
    return engine->stats();
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
  if (dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL) != nullptr) {
    check("by NCCL", {.compute = {.disable_custom_all_reduce = true}});
    check("by NCCL, no graphs",
          {.compute = {.disable_custom_all_reduce = true, .disable_cuda_graph = true}});
  }
  const SpeculationSettings speculation{.speculative_algorithm = "COMBINED",
                                        .measures_cost = false};
  EXPECT_GT(check("draft tokens", {.speculation = speculation}).speculation.accepted_tokens, 20);
}

// Between steps that are graphs, and with replicas of two experts of each layer.
TEST_P(EngineRanksCuda, LetExpertsChangePlaces) {
  if (GetParam() != "mixtral" && GetParam() != "deepseek_v2") return;
  for (const int32_t redundant : {0, 2}) {
    const EngineStats stats = check("experts that move, " + std::to_string(redundant) + " more",
                                    {.compute = {.ep_size = 2,
                                                 .ep_num_redundant_experts = redundant,
                                                 .enable_eplb = true,
                                                 .eplb_rebalance_num_iterations = 7}});
    EXPECT_GT(stats.experts.num_moved, 0);
  }
}

// Data-parallel attention: ranks without requests, with prompts beside others' decode steps, and
// with pools that are too small.
TEST_P(EngineRanksCuda, HaveRequestsOfTheirOwn) {
  const auto own = [](EngineConfig config) {
    config.compute.enable_dp_attention = true;
    return config;
  };
  EXPECT_GT(check("as it is", own({})).tokens.cached, 0);
  check("no graphs", own({.compute = {.disable_cuda_graph = true}}));
  check("chunks of 3 a rank on pages of 5",
        own({.cache = {.page_size = 5}, .schedule = {.chunked_prefill_size = 7}}));
  check("a small pool",
        own({.cache = {.max_total_tokens = 240}, .schedule = {.schedule_conservativeness = 0.01}}));
  if (GetParam() == "mixtral" || GetParam() == "deepseek_v2")
    check("whole experts", own({.compute = {.ep_size = 2}}));
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

// What the engine has counted of its experts' tokens when all has been answered alone. Without
// overlap no step has an entry that is thrown away.
ExpertTable counted(const std::string& model, EngineConfig config) {
  config.model.dtype = "float32";
  config.compute.expert_distribution_recorder_mode = "stat";
  config.compute.disable_overlap_schedule = true;
  const auto engine = load_golden(model, config);
  if (engine == nullptr) return {};
  EXPECT_EQ(sum_of(engine->stats().experts.tokens), 0) << "a start's own steps are left out";
  answers_alone(*engine);
  return engine->stats().experts.tokens;
}

// Padding of graphs, small batches and prompts are counted as the CPU does, by any ranks. A score's
// last bits may select another expert, seldom.
TEST(EngineRanksCudaExperts, AreCountedAsOnTheCpu) {
  ESPALIER_REQUIRE_RANKS();
  for (const char* model : {"mixtral", "deepseek_v2"}) {
    const ExpertTable want = counted(model, {.compute = {.device = "cpu"}});
    EXPECT_GT(sum_of(want), 1000);
    for (const auto& [tp_size, ep_size] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
      const ExpertTable got =
          counted(model, {.compute = {.device = "cuda", .tp_size = tp_size, .ep_size = ep_size}});
      SCOPED_TRACE(std::string(model) + ", " + std::to_string(tp_size) + " ranks in " +
                   std::to_string(ep_size) + " groups");
      ASSERT_EQ(got.size(), want.size());
      EXPECT_EQ(sum_of(got), sum_of(want));
      ExpertTable difference_of = difference(got, want);
      for (std::vector<int64_t>& layer : difference_of)
        for (int64_t& count : layer) count = std::abs(count);
      EXPECT_LE(sum_of(difference_of), sum_of(want) / 100);
    }
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

TEST(EngineRanksCudaStart, OwnRequestsAreRefusedByNameWhereTheyDoNotGo) {
  ESPALIER_REQUIRE_RANKS();
  const auto refused = [](EngineConfig config) {
    config.model = {.model_path = kModels / "mixtral", .skip_tokenizer_init = true};
    config.compute.device = "cuda";
    config.compute.tp_size = config.compute.ep_size = 2;
    config.compute.enable_dp_attention = true;
    const auto engine = Engine::create(config);
    return engine ? std::string() : engine.error().message();
  };
  EXPECT_THAT(refused({.speculation = {.speculative_algorithm = "NGRAM"}}),
              HasSubstr("--speculative-algorithm NGRAM"));
  EXPECT_THAT(refused({.compute = {.enable_eplb = true}}), HasSubstr("--enable-eplb"));
  EXPECT_THAT(refused({.compute = {.expert_distribution_recorder_mode = "stat"}}),
              HasSubstr("--expert-distribution-recorder-mode"));
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
