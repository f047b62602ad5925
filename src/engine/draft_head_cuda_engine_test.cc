// A draft head on a GPU beside a real model: answers are the CPU's without one, whatever is cached,
// chunked, retracted, paused or under a grammar, and as many of its draft tokens are right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <list>

#include "engine/testing/grammar_answers.h"
#include "engine/testing/test_requests.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

struct CudaHeads {
  const char* name;
  fs::path model, head;  // no head: it is in the model's own checkpoint
  double right_least;    // of draft tokens, where chains have one

  const char* algorithm() const { return head.empty() ? "NEXTN" : "EAGLE3"; }
};
// Random ones are never right but by chance.
const CudaHeads kCudaHeads[] = {
    {"random", kModels / "llama_tied_llama3", "tests/golden/draft/llama_tied_llama3", 0},
    {"shipped", "share/default_model", "share/default_model/draft", 0.03},
    {"mimo", "tests/golden/mtp/mimo", {}, 0},
    {"mimo_right", "tests/golden/mtp/mimo_right", {}, 0.3},
    {"glm4_moe", "tests/golden/mtp/glm4_moe", {}, 0},
    {"deepseek_v3", "tests/golden/mtp/deepseek_v3", {}, 0},
};

// In float32, where the best two logits are never so close that the order of a sum decides.
class DraftHeadEngineCuda : public testing::TestWithParam<CudaHeads> {
 protected:
  std::unique_ptr<Engine> load(EngineConfig config, bool with_head = true) {
    if (config.compute.device == "auto") config.compute.device = "cuda";
    if (config.model.dtype == "auto") config.model.dtype = "float32";
    config.speculation.speculative_algorithm = with_head ? GetParam().algorithm() : "none";
    if (with_head) config.speculation.speculative_draft_model_path = GetParam().head;
    return load_golden(fs::absolute(GetParam().model).string(), config);
  }
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    const auto engine = load({.compute = {.device = "cpu"}}, false);
    ASSERT_NE(engine, nullptr);
    alone_ = answers_alone(*engine);
  }
  void expect_same(const std::vector<Answer>& got, const std::string& how) {
    ASSERT_EQ(got.size(), alone_.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const std::string where = how + ", request " + std::to_string(i);
      EXPECT_EQ(got[i].ids, alone_[i].ids) << where;
      ASSERT_EQ(got[i].logprobs.size(), alone_[i].logprobs.size()) << where;
      for (size_t k = 0; k < got[i].logprobs.size(); ++k)
        EXPECT_NEAR(got[i].logprobs[k], alone_[i].logprobs[k], 2e-3f) << where << ", token " << k;
    }
  }
  // Returns the part of the draft tokens that was right.
  double check(const std::string& how, const EngineConfig& config) {
    const auto engine = load(config);
    EXPECT_NE(engine, nullptr);
    if (!engine) return 0;
    EXPECT_EQ(engine->config().compute.device, "cuda");
    expect_same(answers_alone(*engine), how + ", alone");
    expect_same(answers_in_a_crowd(*engine), how + ", cold crowd");
    expect_same(answers_in_a_crowd(*engine), how + ", warm crowd");
    const auto stats = engine->stats().speculation;
    EXPECT_GT(stats.drafted_tokens, 0) << how;
    std::printf("%s: drafted %lld, accepted %lld\n", how.c_str(),
                static_cast<long long>(stats.drafted_tokens),
                static_cast<long long>(stats.accepted_tokens));
    return static_cast<double>(stats.accepted_tokens) / static_cast<double>(stats.drafted_tokens);
  }
  std::vector<Answer> alone_;
};

TEST_P(DraftHeadEngineCuda, AnswersAreTheSame) {
  const double right = check("chains of 1", {.speculation = {.speculative_num_steps = 1}});
  EXPECT_GE(right, GetParam().right_least);
  check("as it is", {});
  check("no graphs", {.compute = {.disable_cuda_graph = true}});
  check("no overlap", {.compute = {.disable_overlap_schedule = true}});
  check("no radix cache", {.cache = {.disable_radix_cache = true}});
  check("chains of 16",
        {.speculation = {.speculative_num_steps = 16, .speculative_num_draft_tokens = 16}});
}

TEST_P(DraftHeadEngineCuda, AnswersAreTheSameInChunksAndThroughRetractions) {
  for (const int32_t page_size : {5, 16})
    check("pages of " + std::to_string(page_size),
          {.cache = {.page_size = page_size}, .schedule = {.chunked_prefill_size = 7}});
  check("a tiny pool",
        {.cache = {.max_total_tokens = 160},
         .schedule = {.chunked_prefill_size = 16, .schedule_conservativeness = 0.05}});
}

TEST_P(DraftHeadEngineCuda, ReusesTheSamePrefixes) {
  const auto with_head = load({}), plain = load({}, false);
  ASSERT_TRUE(with_head && plain);
  for (const GenerateRequest& request : make_requests()) {
    const auto got = with_head->generate(request), want = plain->generate(request);
    ASSERT_TRUE(got && want);
    EXPECT_EQ(got->stats.cached_tokens, want->stats.cached_tokens);
  }
  EXPECT_GT(with_head->stats().tokens.cached, 100);
}

TEST_P(DraftHeadEngineCuda, PausesAndGoesOn) {
  const auto engine = load({});
  ASSERT_NE(engine, nullptr);
  for (int round = 0; round < 3; ++round) {
    std::list<Collector> collectors;
    for (const GenerateRequest& request : make_requests())
      ASSERT_TRUE(engine->submit(request, collectors.emplace_back().sink()));
    ASSERT_TRUE(collectors.front().wait_events(2));
    const auto mode = round == 0 ? Engine::PauseMode::kInPlace : Engine::PauseMode::kRetract;
    ASSERT_TRUE(engine->pause_generation(mode).ok());
    if (round == 2) static_cast<void>(engine->flush_cache());
    ASSERT_TRUE(engine->continue_generation().ok());
    std::vector<Answer> answers;
    for (Collector& c : collectors) {
      ASSERT_TRUE(c.wait_end());
      answers.push_back(answer_of(c.result()));
    }
    expect_same(answers, "paused");
  }
}

// Tokens and log-probabilities, bit for bit.
TEST_P(DraftHeadEngineCuda, DeterministicAnswersAreTheSameBits) {
  EngineConfig config{.model = {.dtype = "bfloat16"},
                      .compute = {.enable_deterministic_inference = true}};
  const auto plain = load(config, false), with_head = load(config);
  ASSERT_TRUE(plain && with_head);
  const std::vector<Answer> want = answers_alone(*plain);
  for (const auto& [got, how] : {std::pair(answers_alone(*with_head), "alone"),
                                 std::pair(answers_in_a_crowd(*with_head), "in a crowd"),
                                 std::pair(answers_in_a_crowd(*with_head), "in a warm crowd")}) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], want[i]) << how << ", request " << i;
  }
  EXPECT_GT(with_head->stats().speculation.drafted_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Heads, DraftHeadEngineCuda, testing::ValuesIn(kCudaHeads),
                         [](const auto& heads) { return std::string(heads.param.name); });

// Requests under a grammar stand beside those without one, and have chains too.
TEST(DraftHeadGrammarCuda, AnswersAreThoseOfTheCpu) {
  ESPALIER_REQUIRE_DEVICE();
  const auto answers = [](const char* device, const char* algorithm) {
    return answers_under_grammars({.model = {.dtype = "float32"},
                                   .compute = {.device = device, .num_threads = 2},
                                   .speculation = {.speculative_algorithm = algorithm}});
  };
  const GrammarAnswers got = answers("cuda", "EAGLE3");
  EXPECT_EQ(got.texts, answers("cpu", "none").texts);
  EXPECT_GT(got.drafted_tokens, 0);
}

TEST(DraftHeadSettingsCuda, RefusesRanks) {
  ESPALIER_REQUIRE_DEVICE();
  for (const char* algorithm : {"EAGLE3", "NEXTN"}) {
    EngineConfig config{.compute = {.device = "cuda", .tp_size = 2},
                        .speculation = {.speculative_algorithm = algorithm}};
    config.model.model_path = "share/default_model";
    config.model.skip_tokenizer_init = true;
    const auto made = Engine::create(config);
    ASSERT_FALSE(made);
    EXPECT_THAT(made.error().message(), testing::HasSubstr("not divided among GPUs"));
  }
}

}  // namespace
}  // namespace espalier
