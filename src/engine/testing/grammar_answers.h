// For tests that compare engines under grammars: the answers of the model that ships to requests
// with and without a grammar, greedy and drawn, all at once.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/testing/test_requests.h"

namespace espalier {

// The answers' texts, eight; and how many draft tokens they took.
struct GrammarAnswers {
  std::vector<std::string> texts;
  int64_t drafted_tokens = 0;
};

inline GrammarAnswers answers_under_grammars(EngineConfig config) {
  GrammarAnswers out;
  config.model.model_path = "share/default_model";
  config.cache.max_total_tokens = 4000;
  auto engine = Engine::create(config);
  EXPECT_TRUE(engine) << engine.error().to_string();
  if (!engine) return out;
  std::vector<GenerateRequest> requests;
  for (const char* regex : {"[0-9]{3}-[a-f]{2,6}", "(yes|no|maybe), [A-Z][a-z]+", "", ""}) {
    for (const float temperature : {0.0f, 0.8f}) {
      GenerateRequest r{.text = "Once upon a time"};
      r.sampling = {.max_new_tokens = 24, .temperature = temperature, .sampling_seed = 5};
      if (*regex != 0) r.sampling.regex = regex;
      requests.push_back(std::move(r));
    }
  }
  for (const GenerateResult& result : results_in_a_crowd(**engine, requests)) {
    EXPECT_TRUE(result.finish.status.ok()) << result.finish.status.to_string();
    out.texts.push_back(result.text);
  }
  EXPECT_THAT(out.texts.at(0), testing::MatchesRegex("[0-9][0-9][0-9]-[a-f]+"));
  out.drafted_tokens = (*engine)->stats().speculation.drafted_tokens;
  return out;
}

}  // namespace espalier
