// The whole engine on a GPU: the tokens of the CPU's engine, however requests come together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <list>
#include <string>
#include <thread>

#include "base/fatal_exit.h"
#include "engine/testing/grammar_answers.h"
#include "engine/testing/near_answers.h"
#include "engine/testing/test_faults.h"
#include "engine/testing/test_joins.h"
#include "engine/testing/test_requests.h"
#include "kernels/random/cuda.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// In float32, where the best two logits are never so close that the order of a sum decides.
class EngineCuda : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    auto engine =
        load_golden(GetParam(), {.model = {.dtype = "float32"}, .compute = {.device = "cpu"}});
    ASSERT_NE(engine, nullptr);
    cpu_ = answers_alone(*engine);
  }

  void check(const std::string& how, EngineConfig config) {
    config.compute.device = "cuda";
    config.model.dtype = "float32";
    auto engine = load_golden(GetParam(), config);
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->config().compute.device, "cuda");
    expect_near_answers(answers_alone(*engine), cpu_, how + ", alone");
    expect_near_answers(answers_in_a_crowd(*engine), cpu_, how + ", warm crowd");
    last_stats_ = engine->stats();
  }

  std::vector<Answer> cpu_;
  EngineStats last_stats_;
};

TEST_P(EngineCuda, GivesTheTokensOfTheCpu) {
  check("as it is", {});
  EXPECT_GT(last_stats_.tokens.cached, 100);
  check("no graphs", {.compute = {.disable_cuda_graph = true}});
  check("no overlap", {.compute = {.disable_overlap_schedule = true}});
  check("no radix cache", {.cache = {.disable_radix_cache = true}});
}

TEST_P(EngineCuda, GivesThemInChunksAndOnPagesOfAnySize) {
  check("chunks of 7", {.schedule = {.chunked_prefill_size = 7}});
  check("pages of 5", {.cache = {.page_size = 5}, .schedule = {.chunked_prefill_size = 7}});
  check("pages of 16", {.cache = {.page_size = 16}});
}

// Sources learn from what is answered: requests are asked again until enough draft tokens were
// accepted.
template <typename Ask>
void expect_same_until_drafted(Engine& engine, const Ask& ask) {
  constexpr int64_t kAcceptedWanted = 100;
  constexpr int kRoundsMost = 60;
  for (int round = 0; round < kRoundsMost; ++round) {
    ask("round " + std::to_string(round));
    if (engine.stats().speculation.accepted_tokens > kAcceptedWanted) break;
  }
  const EngineStats stats = engine.stats();
  std::printf("%lld draft tokens in %lld verifications, %lld accepted\n",
              static_cast<long long>(stats.speculation.drafted_tokens),
              static_cast<long long>(stats.speculation.num_verified),
              static_cast<long long>(stats.speculation.accepted_tokens));
  EXPECT_GT(stats.speculation.accepted_tokens, kAcceptedWanted);
}

TEST_P(EngineCuda, GivesThemWithDraftTokens) {
  const auto check_drafter = [&](const std::string& drafter, EngineConfig config) {
    SCOPED_TRACE(drafter);
    config.compute.device = "cuda";
    config.model.dtype = "float32";
    config.speculation.speculative_algorithm = drafter;
    config.speculation.measures_cost = false;
    auto engine = load_golden(GetParam(), config);
    ASSERT_NE(engine, nullptr);
    expect_near_answers(answers_alone(*engine), cpu_, "alone");
    expect_same_until_drafted(*engine, [&](const std::string& round) {
      expect_near_answers(answers_in_a_crowd(*engine), cpu_, round);
    });
  };
  check_drafter("RADIX", {});
  EngineConfig narrow;  // a step has less room than draft samples and padding would take
  narrow.schedule.chunked_prefill_size = 2;
  narrow.schedule.max_running_requests = 1;
  check_drafter("RADIX", narrow);
  check_drafter("COMBINED", {.cache = {.page_size = 5}, .schedule = {.chunked_prefill_size = 7}});
  check_drafter("NGRAM",
                {.compute = {.disable_cuda_graph = true, .disable_overlap_schedule = true}});
}

// Draft tokens of many requests in a step.
TEST(EngineCudaDraftTokens, StepsOfManyRequestsGiveWhatDecodeGives) {
  ESPALIER_REQUIRE_DEVICE();
  constexpr int kRequests = 64;
  const auto answers = [](const std::string& drafter, EngineStats& stats) {
    const EngineConfig config{.compute = {.device = "cuda", .enable_deterministic_inference = true},
                              .cache = {.max_total_tokens = 40'000},
                              .schedule = {.max_running_requests = kRequests},
                              .speculation = {.speculative_algorithm = drafter,
                                              .speculative_num_draft_tokens = 12,
                                              .measures_cost = false}};
    const auto engine = load_golden("llama_tied_llama3", config);
    std::vector<std::vector<TokenId>> ids;
    if (engine == nullptr) return ids;
    for (int round = 0; round < 2; ++round) {  // the second is of prompts that were answered
      std::list<Collector> collectors;
      for (TokenId i = 0; i < kRequests; ++i)
        EXPECT_TRUE(engine->submit({.input_ids = {5, 6, 3 + i, 5, 6, 3 + i, 5, 6},
                                    .sampling = {.max_new_tokens = 200, .ignore_eos = true}},
                                   collectors.emplace_back().sink()));
      for (Collector& c : collectors) {
        EXPECT_TRUE(c.wait_end());
        ids.push_back(c.result().output_ids);
      }
    }
    stats = engine->stats();
    return ids;
  };
  EngineStats off, on;
  const auto want = answers("none", off), got = answers("COMBINED", on);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << "request " << i;
  EXPECT_GT(on.speculation.accepted_tokens, 0);
}

TEST_P(EngineCuda, GivesThemThroughRetractions) {
  check("a tiny pool",
        {.cache = {.max_total_tokens = 160, .disable_hybrid_swa_memory = true},
         .schedule = {.chunked_prefill_size = 16,
                      .schedule_conservativeness = 0.05}});  // few sequences fit a window's pages
  EXPECT_GT(last_stats_.requests.num_retractions, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineCuda,
                         testing::Values("llama_untied_bias", "qwen2_f32", "gemma2", "gpt_oss",
                                         "mixtral", "deepseek_v2", "gpt2"),
                         [](const auto& model) { return model.param; });

// Layers that see a window keep their keys and values in pages of their own.
class SlidingWindowCuda : public testing::TestWithParam<std::string> {};

TEST_P(SlidingWindowCuda, AnswersAreThoseOfOneMap) {
  ESPALIER_REQUIRE_DEVICE();
  const EngineConfig base{.model = {.dtype = "float32"},
                          .compute = {.device = "cuda"},
                          .cache = {.disable_hybrid_swa_memory = true}};
  auto one_map = load_golden(GetParam(), base);
  ASSERT_NE(one_map, nullptr);
  const auto want = answers_to_long(*one_map);
  const auto check = [&](const std::string& how, EngineConfig config) {
    SCOPED_TRACE(how);
    config.model.dtype = "float32";
    config.compute.device = "cuda";
    config.cache.swa_full_tokens_ratio = 0.1;
    auto engine = load_golden(GetParam(), config);
    ASSERT_NE(engine, nullptr);
    EXPECT_GT(engine->config().cache.max_window_tokens, 0);
    EXPECT_EQ(answers_to_long(*engine), want) << "cold";
    EXPECT_EQ(answers_to_long(*engine), want) << "warm";
    EXPECT_GT(engine->stats().tokens.cached, 300);
  };
  check("a short window pool", {.cache = {.max_total_tokens = 2000}});
  check("chunks", {.cache = {.max_total_tokens = 900}, .schedule = {.chunked_prefill_size = 7}});
  check("pages", {.cache = {.max_total_tokens = 1600, .page_size = 16}});
}

INSTANTIATE_TEST_SUITE_P(Models, SlidingWindowCuda,
                         testing::Values("gemma2", "gemma3", "gpt_oss", "mistral_f16"),
                         [](const auto& model) { return model.param; });

// One request at a time, so that every step has the same shapes: the same bits.
TEST(EngineCudaBfloat16, GraphsAndOverlapChangeNothing) {
  ESPALIER_REQUIRE_DEVICE();
  const auto answers = [](EngineConfig config) {
    config.compute.device = "cuda";
    const auto engine = load_golden("llama_tied_llama3", config);
    return engine ? answers_alone(*engine) : std::vector<Answer>();
  };
  const auto plain = answers({});
  ASSERT_FALSE(plain.empty());
  EXPECT_EQ(answers({}), plain);
  EXPECT_EQ(answers({.compute = {.disable_cuda_graph = true}}), plain);
  EXPECT_EQ(answers({.compute = {.disable_overlap_schedule = true}}), plain);
}

// Wide enough for the tensor cores' kernels, prompts long enough for several cuts.
class EngineCudaDeterministic : public testing::Test {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    folder_ = fs::path(testing::TempDir()) / "deterministic_model";
    fs::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
      "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
      "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 8192,
      "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
      "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";
    Rng rng(17);
    std::vector<TokenId> shared;
    for (int i = 0; i < 1300; ++i) shared.push_back(static_cast<TokenId>(rng.below(1000)));
    for (int i = 0; i < 20; ++i) {
      GenerateRequest r{.input_ids = {shared.begin(), shared.begin() + rng.between(1, 1300)}};
      for (auto own = 1 + rng.below(i % 5 == 0 ? 900 : 40); own > 0; --own)
        r.input_ids.push_back(static_cast<TokenId>(rng.below(1000)));
      r.sampling = {.max_new_tokens = static_cast<int32_t>(20 + rng.below(50)),
                    .temperature = i % 3 == 1 ? 0.8f : 0.0f,
                    .ignore_eos = true,
                    .sampling_seed = static_cast<uint64_t>(i)};
      if (i % 6 == 1) r.sampling.top_p = 0.9f;
      r.return_logprob = true;
      r.logprob_start_len = i % 4 == 0 ? 0 : -1;
      requests_.push_back(std::move(r));
    }
  }

  std::unique_ptr<Engine> engine(EngineConfig config) const {
    config.model.model_path = folder_;
    config.model.load_format = LoadFormat::kDummy;
    config.model.skip_tokenizer_init = true;
    config.sampling.random_seed = 5;
    config.compute.device = "cuda";
    config.compute.enable_deterministic_inference = true;
    if (config.cache.max_total_tokens == 0) config.cache.max_total_tokens = 60000;
    auto made = Engine::create(config);
    EXPECT_TRUE(made) << made.error().to_string();
    return made ? std::move(*made) : nullptr;
  }
  std::vector<Answer> alone(Engine& engine) const {
    std::vector<Answer> answers;
    for (const GenerateRequest& request : requests_) {
      EXPECT_TRUE(engine.flush_cache().ok());
      const auto r = engine.generate(request);
      EXPECT_TRUE(r) << r.error().to_string();
      answers.push_back(r ? answer_of(*r) : Answer());
    }
    return answers;
  }
  std::vector<Answer> crowd(Engine& engine) const {
    std::list<Collector> collectors;
    for (const GenerateRequest& request : requests_)
      EXPECT_TRUE(engine.submit(request, collectors.emplace_back().sink()));
    std::vector<Answer> answers;
    for (Collector& c : collectors) {
      EXPECT_TRUE(c.wait_end());
      answers.push_back(answer_of(c.result()));
    }
    return answers;
  }

  fs::path folder_;
  std::vector<GenerateRequest> requests_;
};

// Tokens and log-probabilities, bit for bit.
TEST_F(EngineCudaDeterministic, AnswersDependOnTheRequestAlone) {
  std::vector<Answer> want;
  const auto same = [&](const std::vector<Answer>& got, const std::string& how) {
    ASSERT_EQ(got.size(), want.size()) << how;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].ids, want[i].ids) << how << ", request " << i;
      EXPECT_EQ(got[i].logprobs, want[i].logprobs) << how << ", request " << i;
      EXPECT_EQ(got[i].input_logprobs, want[i].input_logprobs) << how << ", request " << i;
    }
  };
  {
    const auto e = engine({});
    ASSERT_NE(e, nullptr);
    want = alone(*e);
    same(crowd(*e), "a crowd");
    same(crowd(*e), "a crowd that finds its prompts cached");
    EXPECT_GT(e->stats().tokens.cached, 5000);
  }
  const auto check = [&](const std::string& how, const EngineConfig& config) {
    const auto e = engine(config);
    ASSERT_NE(e, nullptr);
    same(crowd(*e), how);
  };
  check("no radix cache", {.cache = {.disable_radix_cache = true}});
  check("chunks of 100", {.schedule = {.chunked_prefill_size = 100}});
  check("chunks of 33 on pages of 16",
        {.cache = {.page_size = 16}, .schedule = {.chunked_prefill_size = 33}});
  check("no graphs", {.compute = {.disable_cuda_graph = true}});
  check("no overlap", {.compute = {.disable_overlap_schedule = true}});
  check("four at once", {.schedule = {.max_running_requests = 4}});
  for (const char* drafter : {"RADIX", "COMBINED"}) {
    SCOPED_TRACE(drafter);
    const auto e =
        engine({.speculation = {.speculative_algorithm = drafter, .measures_cost = false}});
    ASSERT_NE(e, nullptr);
    expect_same_until_drafted(*e, [&](const std::string& round) { same(crowd(*e), round); });
  }
}

// Masks are made on the host while the step's forward runs, and its sampling waits for them.
TEST(EngineCudaGrammar, HoldsAnswersToWhatTheCpuGives) {
  ESPALIER_REQUIRE_DEVICE();
  const auto answers = [](const char* device, bool overlap) {
    return answers_under_grammars({.model = {.dtype = "float32"},
                                   .compute = {.device = device,
                                               .num_threads = 2,
                                               .disable_overlap_schedule = !overlap}})
        .texts;
  };
  const std::vector<std::string> cpu = answers("cpu", true);
  EXPECT_EQ(answers("cuda", true), cpu);
  EXPECT_EQ(answers("cuda", false), cpu);
}

TEST(EngineCudaJoin, AModelSeesTheBranchesInNoOrder) {
  ESPALIER_REQUIRE_DEVICE();
  for (const std::string model : {"llama_tied_llama3", "deepseek_v2"})
    expect_branches_in_no_order(model, "cuda");
}

TEST(EngineCudaFaults, LogitsThatAreNotFiniteEndTheirRequestAlone) {
  ESPALIER_REQUIRE_DEVICE();
  for (const int32_t page_size : {1, 16}) {
    SCOPED_TRACE(page_size);
    expect_not_finite_ends_one_request("cuda", page_size);
  }
}

// A kernel that writes where nothing is takes the device from the whole process: the request that
// runs ends with an error, and the process soon after it.
void lose_the_device() {
  const auto engine = load_golden("llama_tied_llama3", {.compute = {.device = "cuda"}});
  Collector running;
  static_cast<void>(
      engine->submit({.input_ids = {5, 6}, .sampling = {.max_new_tokens = 200, .ignore_eos = true}},
                     running.sink()));
  static_cast<void>(kernels::cuda::draw({.out = reinterpret_cast<void*>(256), .count = 256}, {}));
  running.wait_end();
  std::fprintf(stderr, "answered: %s\n", running.result().finish.status.message().c_str());
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

TEST(EngineCudaFaultsDeathTest, ALostDeviceEndsRequestsAndThenTheProcess) {
  ESPALIER_REQUIRE_DEVICE();
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own: contexts do not fork
  EXPECT_EXIT(lose_the_device(), testing::ExitedWithCode(kExitCannotGoOn),
              ::testing::AllOf(HasSubstr("answered: the GPU failed"), HasSubstr("ending error=")));
}

}  // namespace
}  // namespace espalier
