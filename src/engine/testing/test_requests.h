// For tests that compare what engines answer: a set of requests of every kind on the golden models,
// and two ways of asking them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/testing/test_engine.h"

namespace espalier {

inline const std::filesystem::path kModels = "tests/golden/models";
inline constexpr int32_t kVocab = 120;  // ids that every model here knows

inline std::unique_ptr<Engine> load_golden(const std::string& model, EngineConfig config) {
  config.model.model_path = kModels / model;
  config.model.skip_tokenizer_init = true;
  config.check_invariants = true;
  config.sampling.random_seed = 5;
  if (config.compute.device == "auto") config.compute.device = "cpu";
  if (config.cache.max_total_tokens == 0) config.cache.max_total_tokens = 4000;
  if (config.compute.num_threads == 0) config.compute.num_threads = 1;
  auto engine = Engine::create(config);
  EXPECT_TRUE(engine) << engine.error().to_string();
  return engine ? std::move(*engine) : nullptr;
}

// Greedy, sampled with every filter, and with penalties; prompts that share prefixes.
inline std::vector<GenerateRequest> make_requests() {
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

inline Answer answer_of(const GenerateResult& r) {
  Answer a{.ids = r.output_ids};
  for (const TokenLogprobs& l : r.output_logprobs) a.logprobs.push_back(l.logprob);
  for (const TokenLogprobs& l : r.input_logprobs) a.input_logprobs.push_back(l.logprob);
  return a;
}

// Each alone, with nothing cached.
inline std::vector<Answer> answers_alone(Engine& engine) {
  std::vector<Answer> answers;
  for (const GenerateRequest& request : make_requests()) {
    EXPECT_TRUE(engine.flush_cache().ok());
    const auto r = engine.generate(request);
    EXPECT_TRUE(r) << r.error().to_string();
    answers.push_back(r ? answer_of(*r) : Answer{});
  }
  return answers;
}

// All requests are submitted at once; the results are in their order.
inline std::vector<GenerateResult> results_in_a_crowd(
    Engine& engine, const std::vector<GenerateRequest>& requests) {
  std::list<Collector> collectors;
  for (const GenerateRequest& request : requests)
    EXPECT_TRUE(engine.submit(request, collectors.emplace_back().sink()));
  std::vector<GenerateResult> results;
  for (Collector& c : collectors) {
    EXPECT_TRUE(c.wait_end());
    results.push_back(c.result());
  }
  return results;
}

inline std::vector<Answer> answers_in_a_crowd(Engine& engine) {
  std::vector<Answer> answers;
  for (const GenerateResult& result : results_in_a_crowd(engine, make_requests())) {
    EXPECT_EQ(result.finish.type, FinishReason::Type::kLength) << result.finish.status.to_string();
    answers.push_back(answer_of(result));
  }
  return answers;
}

// Conversations over one long beginning, longer than the window and a block of attention; greedy
// and sampled.
inline std::vector<GenerateRequest> make_long_requests() {
  Rng rng(7);
  std::vector<TokenId> shared;
  for (int i = 0; i < 110; ++i) shared.push_back(static_cast<TokenId>(3 + rng.below(kVocab - 3)));
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 8; ++i) {
    const auto kept = static_cast<std::ptrdiff_t>(i % 2 == 0 ? 110 : rng.between(1, 110));
    GenerateRequest r{.input_ids = {shared.begin(), shared.begin() + kept}};
    for (auto own = 1 + rng.below(40); own > 0; --own)
      r.input_ids.push_back(static_cast<TokenId>(3 + rng.below(kVocab - 3)));
    r.sampling = {.max_new_tokens = static_cast<int32_t>(20 + rng.below(60)),
                  .temperature = i % 3 == 0 ? 0.8f : 0.0f,
                  .ignore_eos = true,
                  .sampling_seed = static_cast<uint64_t>(i)};
    requests.push_back(std::move(r));
  }
  return requests;
}

inline std::vector<std::vector<TokenId>> answers_to_long(Engine& engine) {
  std::list<Collector> collectors;
  for (const GenerateRequest& request : make_long_requests())
    EXPECT_TRUE(engine.submit(request, collectors.emplace_back().sink()));
  std::vector<std::vector<TokenId>> out;
  for (Collector& c : collectors) {
    EXPECT_TRUE(c.wait_end());
    EXPECT_EQ(c.finish_type(), FinishReason::Type::kLength) << c.result().finish.status.to_string();
    out.push_back(c.result().output_ids);
  }
  return out;
}

}  // namespace espalier
