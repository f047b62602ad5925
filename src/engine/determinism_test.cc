// A request's tokens depend on the request alone. Real models, real threads: the same requests
// alone, in a crowd, with a cold and a warm cache, in chunks of every size, on pages of every size,
// through retractions; greedy and sampled, token for token.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/testing/test_requests.h"

namespace espalier {
namespace {

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want,
                 const std::string& how) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].ids, want[i].ids) << how << ", request " << i;
    EXPECT_EQ(got[i].logprobs, want[i].logprobs) << how << ", request " << i;
    EXPECT_EQ(got[i].input_logprobs, want[i].input_logprobs) << how << ", request " << i;
  }
}

class Determinism : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kModels / GetParam())) FAIL() << "no golden model " << GetParam();
    auto engine = load_golden(GetParam(), {});
    ASSERT_NE(engine, nullptr);
    alone_ = answers_alone(*engine);
    size_t tokens = 0;
    for (const Answer& a : alone_) tokens += a.ids.size();
    ASSERT_GT(tokens, 150u);
  }

  void check(const std::string& how, const EngineConfig& config) {
    auto engine = load_golden(GetParam(), config);
    ASSERT_NE(engine, nullptr);
    expect_same(answers_in_a_crowd(*engine), alone_, how + ", cold");
    expect_same(answers_in_a_crowd(*engine), alone_, how + ", warm");
    last_stats_ = engine->stats();
  }

  std::vector<Answer> alone_;
  EngineStats last_stats_;
};

TEST_P(Determinism, AloneAgainAndWarm) {
  auto engine = load_golden(GetParam(), {});
  ASSERT_NE(engine, nullptr);
  expect_same(answers_alone(*engine), alone_, "again");
  std::vector<Answer> warm;
  for (const GenerateRequest& request : make_requests())
    warm.push_back(answer_of(*engine->generate(request)));
  expect_same(warm, alone_, "warm");
  EXPECT_GT(engine->stats().tokens.cached, 100);
}

TEST_P(Determinism, Crowd) {
  check("one thread", {});
  EXPECT_GT(last_stats_.steps.num_entries, 2 * last_stats_.steps.num_steps);  // it was a crowd
  check("two threads", {.compute = {.num_threads = 2}});
  check("no overlap", {.compute = {.disable_overlap_schedule = true}});
  check("no radix cache", {.cache = {.disable_radix_cache = true}});
}

// Greedy, sampled with filters, with log-probabilities and with penalties, which have no draft
// tokens. Warm answers are continued from the history of the cold ones.
TEST_P(Determinism, DraftTokens) {
  EngineConfig config;
  for (const char* algorithm : {"NGRAM", "RADIX", "COMBINED"}) {
    config.speculation.speculative_algorithm = algorithm;
    config.compute.disable_overlap_schedule = *algorithm == 'R';
    auto engine = load_golden(GetParam(), config);
    ASSERT_NE(engine, nullptr);
    for (int round = 0; round < 3; ++round) {
      std::vector<Answer> answers;
      for (const GenerateRequest& request : make_requests())
        answers.push_back(answer_of(*engine->generate(request)));
      expect_same(answers, alone_, std::string(algorithm) + ", round " + std::to_string(round));
    }
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.speculation.drafted_tokens, 0);  // how many pay, the time of steps decides
    EXPECT_GE(stats.speculation.drafted_tokens, stats.speculation.accepted_tokens);
    expect_same(answers_in_a_crowd(*engine), alone_, "draft tokens in a crowd");
  }
  config.cache.page_size = 5;
  config.schedule.chunked_prefill_size = 7;
  check("draft tokens, pages of 5", config);
  config.cache.max_total_tokens = 160;
  config.schedule.schedule_conservativeness = 0.05;
  check("draft tokens in a tiny pool", config);
}

TEST_P(Determinism, Chunks) {
  for (int32_t chunk : {1, 3, 16, 512})
    check("chunks of " + std::to_string(chunk), {.schedule = {.chunked_prefill_size = chunk}});
}

TEST_P(Determinism, Pages) {
  for (int32_t page_size : {2, 5, 16})
    check("pages of " + std::to_string(page_size), {.compute = {.num_threads = 2},
                                                    .cache = {.page_size = page_size},
                                                    .schedule = {.chunked_prefill_size = 7}});
}

TEST_P(Determinism, Retraction) {
  EngineConfig config{.cache = {.max_total_tokens = 160},
                      .schedule = {.chunked_prefill_size = 16, .schedule_conservativeness = 0.05}};
  check("a tiny pool", config);  // where layers have windows, few sequences fit their pages at once
  config.cache.disable_hybrid_swa_memory = true;
  check("a tiny pool for all layers", config);
  EXPECT_GT(last_stats_.requests.num_retractions, 0);
}

// Ranks add their sums in another order than the whole model does, and always in the same.
TEST_P(Determinism, Ranks) {
  auto engine = load_golden(GetParam(), {.compute = {.num_threads = 2, .tp_size = 2}});
  ASSERT_NE(engine, nullptr);
  alone_ = answers_alone(*engine);
  check("two ranks", {.compute = {.num_threads = 4, .tp_size = 2}});
  check("two ranks, small chunks", {.compute = {.tp_size = 2},
                                    .cache = {.page_size = 5},
                                    .schedule = {.chunked_prefill_size = 3}});
}

// Stages add their sums in the order of the whole model.
TEST_P(Determinism, Stages) {
  check("two stages", {.compute = {.num_threads = 2, .pp_size = 2}});
  check("three stages, small chunks", {.compute = {.pp_size = 3},
                                       .cache = {.page_size = 5},
                                       .schedule = {.chunked_prefill_size = 3}});
  check("draft tokens in two stages",
        {.compute = {.pp_size = 2}, .speculation = {.speculative_algorithm = "COMBINED"}});
  auto engine = load_golden(GetParam(), {.compute = {.num_threads = 2, .tp_size = 2}});
  ASSERT_NE(engine, nullptr);
  alone_ = answers_alone(*engine);
  check("two stages of two ranks", {.compute = {.num_threads = 4, .tp_size = 2, .pp_size = 2}});
}

TEST_P(Determinism, SamplesDifferAndSeedsReproduce) {
  auto engine = load_golden(GetParam(), {});
  ASSERT_NE(engine, nullptr);
  const GenerateRequest request{.input_ids = {5, 6, 7},
                                .sampling = {.max_new_tokens = 20,
                                             .temperature = 1.0f,
                                             .n = 3,
                                             .ignore_eos = true,
                                             .sampling_seed = 9}};
  const auto first = *engine->generate_all(request), second = *engine->generate_all(request);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(first[i].output_ids, second[i].output_ids);
  EXPECT_NE(first[0].output_ids, first[1].output_ids);
  EXPECT_NE(first[1].output_ids, first[2].output_ids);
  GenerateRequest unseeded = request;
  unseeded.sampling.sampling_seed.reset();
  EXPECT_NE(engine->generate(unseeded)->output_ids, engine->generate(unseeded)->output_ids);
}

INSTANTIATE_TEST_SUITE_P(Models, Determinism, testing::Values("llama_tied_llama3", "qwen2_f32"),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace espalier
