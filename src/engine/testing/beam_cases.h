// Searches and what transformers finds for them (tests/golden/beams, made by
// tools/goldens/make_beam_goldens.py), for tests of engines on any device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/testing/test_requests.h"
#include "models/golden.h"

namespace espalier {

inline const char* const kBeamModels[] = {"llama_tied_llama3", "gemma2", "qwen3_moe",
                                          "default_model"};

inline std::unique_ptr<Engine> load_beam_model(const std::string& name, EngineConfig config) {
  config.model.dtype = "float32";
  return load_golden(name == "default_model" ? "../../../share/default_model" : name, config);
}

struct BeamCase {
  GenerateRequest request;
  std::vector<std::vector<TokenId>> answers;
  std::vector<float> scores;
};

inline std::vector<BeamCase> read_beam_cases(const std::string& name) {
  std::vector<BeamCase> cases;
  for (golden::BeamSearchCase& one : golden::read_beam_searches(name)) {
    BeamCase& out = cases.emplace_back(BeamCase{{}, std::move(one.answers), std::move(one.scores)});
    out.request.input_ids = std::move(one.prompt);
    out.request.sampling = {.max_new_tokens = static_cast<int32_t>(one.options[2]),
                            .min_new_tokens = static_cast<int32_t>(one.options[5]),
                            .n = static_cast<int32_t>(one.options[1]),
                            .stop_token_ids = std::move(one.stops),
                            .ignore_eos = true,
                            .use_beam_search = true,
                            .beam_width = static_cast<int32_t>(one.options[0]),
                            .length_penalty = one.options[3],
                            .early_stopping = static_cast<EarlyStopping>(one.options[4])};
  }
  EXPECT_FALSE(cases.empty());
  return cases;
}

// The tokens are equal; scores may be off by so much of their size, and by so much where they are
// below 1.
inline void expect_beams(const BeamCase& expected, const std::vector<GenerateResult>& got,
                         float tolerance, const std::string& how) {
  ASSERT_EQ(got.size(), expected.answers.size()) << how;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].output_ids, expected.answers[i])
        << how << ", answer " << i << ": " << got[i].finish.status.to_string();
    ASSERT_TRUE(got[i].beam) << how;
    EXPECT_NEAR(got[i].beam->score, expected.scores[i],
                tolerance * std::max(1.0f, std::abs(expected.scores[i])))
        << how;
    EXPECT_EQ(got[i].stats.completion_tokens, std::ssize(expected.answers[i]));
    EXPECT_EQ(got[i].stats.prompt_tokens, std::ssize(expected.request.input_ids));
  }
}

// All searches at once, each with another request beside it.
inline void expect_beams_in_a_crowd(Engine& engine, const std::vector<BeamCase>& cases,
                                    float tolerance, const std::string& how) {
  std::list<Collector> searches, others;
  for (const BeamCase& one : cases) {
    const auto n = static_cast<int32_t>(one.scores.size());
    EXPECT_TRUE(engine.submit(one.request, searches.emplace_back(n).sink()));
    GenerateRequest other{.input_ids = one.request.input_ids,
                          .sampling = {.max_new_tokens = 20, .ignore_eos = true}};
    EXPECT_TRUE(engine.submit(other, others.emplace_back().sink()));
  }
  size_t i = 0;
  for (Collector& search : searches) {
    ASSERT_TRUE(search.wait_end()) << how;
    std::vector<GenerateResult> got;
    for (size_t k = 0; k < cases[i].scores.size(); ++k) got.push_back(search.result(k));
    expect_beams(cases[i], got, tolerance, fmt::format("{}, case {}", how, i));
    ++i;
  }
  for (Collector& other : others) ASSERT_TRUE(other.wait_end()) << how;
}

}  // namespace espalier
