// Control vectors and what transformers answers with them (tests/golden/control, made by
// tools/goldens/make_control_goldens.py), for tests of engines on any device.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/testing/test_requests.h"
#include "models/golden.h"

namespace espalier {

inline const char* const kControlledModels[] = {"llama_tied_llama3", "gemma2", "gpt2", "qwen3_moe"};

// With its vector by the name "own".
inline std::unique_ptr<Engine> load_controlled(const std::string& model, EngineConfig config) {
  config.model.dtype = "float32";
  config.control.control_vectors = {"own=tests/golden/control/" + model + ".vector.safetensors"};
  return load_golden(model, config);
}

inline GenerateRequest controlled_request(const golden::ControlledAnswer& expected) {
  GenerateRequest request{
      .input_ids = expected.prompt,
      .sampling = {.max_new_tokens = static_cast<int32_t>(expected.tokens.size()),
                   .temperature = 0.0f,
                   .ignore_eos = true}};
  request.return_logprob = true;
  if (expected.scale != 0)
    request.control_vector = ControlRequest{.name = "own",
                                            .scale = expected.scale,
                                            .first_layer = expected.first_layer,
                                            .last_layer = expected.last_layer};
  return request;
}

inline void expect_controlled(const golden::ControlledAnswer& expected, const GenerateResult& got,
                              float tolerance, const std::string& how) {
  EXPECT_EQ(got.output_ids, expected.tokens) << how << " " << got.finish.status.to_string();
  ASSERT_EQ(got.output_logprobs.size(), expected.logprobs.size()) << how;
  for (size_t i = 0; i < expected.logprobs.size(); ++i)
    EXPECT_NEAR(got.output_logprobs[i].logprob, expected.logprobs[i], tolerance)
        << how << ", token " << i;
}

// Each alone, and all in one batch, three times, so that what is cached of one is not another's.
inline void expect_all_controlled(Engine& engine, const std::string& model, float tolerance,
                                  const std::string& how) {
  const auto cases = golden::read_controlled_answers(model);
  std::vector<GenerateRequest> requests;
  std::vector<size_t> of;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto alone = engine.generate(controlled_request(cases[i]));
    ASSERT_TRUE(alone) << alone.error().to_string();
    expect_controlled(cases[i], *alone, tolerance, fmt::format("{}, case {}", how, i));
    for (int copies = 0; copies < 3; ++copies) {
      requests.push_back(controlled_request(cases[i]));
      of.push_back(i);
    }
  }
  const std::vector<GenerateResult> got = results_in_a_crowd(engine, requests);
  for (size_t i = 0; i < got.size(); ++i)
    expect_controlled(cases[of[i]], got[i], tolerance,
                      fmt::format("{}, in a crowd, case {}", how, of[i]));
}

}  // namespace espalier
