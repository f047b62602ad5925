// A request's tokens depend on the request alone. Real models, real threads: the same requests
// alone, in a crowd, with a cold and a warm cache, in chunks of every size, on pages of every size,
// through retractions; greedy and sampled, token for token.
#include <gtest/gtest.h>

#include <filesystem>
#include <list>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/test_engine.h"

namespace espalier {
namespace {

const std::filesystem::path kModels = "tests/golden/models";
constexpr int32_t kVocab = 120;  // ids that every model here knows

std::unique_ptr<Engine> load(const std::string& model, EngineConfig config) {
  config.model_path = kModels / model;
  config.skip_tokenizer_init = true;
  config.check_invariants = true;
  config.random_seed = 5;
  if (config.max_total_tokens == 0) config.max_total_tokens = 4000;
  if (config.num_threads == 0) config.num_threads = 1;
  auto engine = Engine::create(config);
  EXPECT_TRUE(engine) << engine.error().to_string();
  return engine ? std::move(*engine) : nullptr;
}

// Greedy, sampled with every filter, and with penalties; prompts that share prefixes.
std::vector<GenerateRequest> make_requests() {
  Rng rng(61);
  std::vector<TokenId> shared;
  for (int i = 0; i < 40; ++i) shared.push_back(static_cast<TokenId>(3 + rng.below(kVocab - 3)));
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 12; ++i) {
    GenerateRequest r{.input_ids = {shared.begin(), shared.begin() + rng.between(0, 40)}};
    for (auto own = 1 + rng.below(30); own > 0; --own)
      r.input_ids.push_back(static_cast<TokenId>(3 + rng.below(kVocab - 3)));
    r.sampling = {.max_new_tokens = static_cast<int32_t>(10 + rng.below(30)),
                  .temperature = 0.0f,
                  .ignore_eos = true,
                  .sampling_seed = static_cast<uint64_t>(i)};
    if (i % 4 == 1) r.sampling.temperature = 0.9f;
    if (i % 4 == 2)
      r.sampling.temperature = 1.3f, r.sampling.top_k = 40, r.sampling.top_p = 0.9f,
      r.sampling.min_p = 0.01f;
    if (i % 4 == 3)
      r.sampling.temperature = i % 8 == 3 ? 0.0f : 0.8f, r.sampling.repetition_penalty = 1.3f,
      r.sampling.frequency_penalty = 0.5f, r.sampling.presence_penalty = 0.25f,
      r.sampling.logit_bias = {{7, 2.0f}};
    r.return_logprob = i % 3 == 0;
    r.logprob_start_len = i % 6 == 0 ? 0 : -1;
    requests.push_back(std::move(r));
  }
  return requests;
}

struct Answer {
  std::vector<TokenId> ids;
  std::vector<float> logprobs, input_logprobs;
  friend bool operator==(const Answer&, const Answer&) = default;
};

Answer answer_of(const GenerateResult& r) {
  Answer a{.ids = r.output_ids};
  for (const TokenLogprobs& l : r.output_logprobs) a.logprobs.push_back(l.logprob);
  for (const TokenLogprobs& l : r.input_logprobs) a.input_logprobs.push_back(l.logprob);
  return a;
}

// Each alone, with nothing cached.
std::vector<Answer> answers_alone(Engine& engine) {
  std::vector<Answer> answers;
  for (const GenerateRequest& request : make_requests()) {
    EXPECT_TRUE(engine.flush_cache().ok());
    const auto r = engine.generate(request);
    EXPECT_TRUE(r) << r.error().to_string();
    answers.push_back(r ? answer_of(*r) : Answer{});
  }
  return answers;
}

std::vector<Answer> answers_in_a_crowd(Engine& engine) {
  std::list<Collector> collectors;
  for (const GenerateRequest& request : make_requests())
    EXPECT_TRUE(engine.submit(request, collectors.emplace_back().sink()));
  std::vector<Answer> answers;
  for (Collector& c : collectors) {
    EXPECT_TRUE(c.wait_end());
    EXPECT_EQ(c.finish_type(), FinishReason::Type::kLength) << c.result().finish.status.to_string();
    answers.push_back(answer_of(c.result()));
  }
  return answers;
}

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
    auto engine = load(GetParam(), {});
    ASSERT_NE(engine, nullptr);
    alone_ = answers_alone(*engine);
    size_t tokens = 0;
    for (const Answer& a : alone_) tokens += a.ids.size();
    ASSERT_GT(tokens, 150u);
  }

  void check(const std::string& how, const EngineConfig& config) {
    auto engine = load(GetParam(), config);
    ASSERT_NE(engine, nullptr);
    expect_same(answers_in_a_crowd(*engine), alone_, how + ", cold");
    expect_same(answers_in_a_crowd(*engine), alone_, how + ", warm");
    last_stats_ = engine->stats();
  }

  std::vector<Answer> alone_;
  EngineStats last_stats_;
};

TEST_P(Determinism, AloneAgainAndWarm) {
  auto engine = load(GetParam(), {});
  ASSERT_NE(engine, nullptr);
  expect_same(answers_alone(*engine), alone_, "again");
  std::vector<Answer> warm;
  for (const GenerateRequest& request : make_requests())
    warm.push_back(answer_of(*engine->generate(request)));
  expect_same(warm, alone_, "warm");
  EXPECT_GT(engine->stats().cached_tokens_total, 100);
}

TEST_P(Determinism, Crowd) {
  check("one thread", {});
  EXPECT_GT(last_stats_.num_lanes_total, 2 * last_stats_.num_steps_total);  // it was a crowd
  check("two threads", {.num_threads = 2});
  check("no overlap", {.disable_overlap_schedule = true});
  check("no radix cache", {.disable_radix_cache = true});
}

TEST_P(Determinism, Chunks) {
  for (int32_t chunk : {1, 3, 16, 512})
    check("chunks of " + std::to_string(chunk), {.chunked_prefill_size = chunk});
}

TEST_P(Determinism, Pages) {
  for (int32_t page_size : {2, 5, 16})
    check("pages of " + std::to_string(page_size),
          {.chunked_prefill_size = 7, .page_size = page_size, .num_threads = 2});
}

TEST_P(Determinism, Retraction) {
  check("a tiny pool",
        {.max_total_tokens = 160, .chunked_prefill_size = 16, .schedule_conservativeness = 0.05});
  EXPECT_GT(last_stats_.num_retractions_total, 0);
}

TEST_P(Determinism, SamplesDifferAndSeedsReproduce) {
  auto engine = load(GetParam(), {});
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
