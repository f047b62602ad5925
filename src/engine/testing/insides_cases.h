// Requests for hidden states, and what transformers' are (tests/golden/insides, made by
// tools/goldens/make_insides_goldens.py), for tests of engines on any device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/testing/test_requests.h"
#include "models/golden.h"

namespace espalier {

inline const char* const kInsidesModels[] = {"llama_tied_llama3", "gemma2", "gpt2"};

inline std::unique_ptr<Engine> load_insides(const std::string& name, EngineConfig config = {}) {
  config.model.dtype = "float32";
  config.compute.enable_return_hidden_states = true;
  return load_golden(name, config);
}

inline GenerateRequest greedy_request(std::vector<TokenId> prompt, int32_t max_new_tokens) {
  return {.input_ids = std::move(prompt),
          .sampling = {.max_new_tokens = max_new_tokens, .temperature = 0.0f, .ignore_eos = true}};
}

inline GenerateRequest hidden_request(std::vector<TokenId> prompt, int32_t max_new_tokens,
                                      std::vector<int32_t> layers = {}) {
  GenerateRequest request = greedy_request(std::move(prompt), max_new_tokens);
  request.return_hidden_states = true;
  request.hidden_states_layers = std::move(layers);
  return request;
}

// All states of a model, the embeddings first.
inline std::vector<int32_t> all_layers(const Engine& engine) {
  std::vector<int32_t> layers;
  for (int32_t i = 0; i <= engine.model_info().num_layers; ++i) layers.push_back(i);
  return layers;
}

// State `layer` of all rows of an answer with `num_layers` of them.
inline std::vector<float> state_of(const std::vector<float>& rows, size_t num_layers, size_t layer,
                                   size_t size) {
  std::vector<float> out;
  for (size_t at = layer * size; at < rows.size(); at += num_layers * size)
    out.insert(out.end(), rows.begin() + static_cast<std::ptrdiff_t>(at),
               rows.begin() + static_cast<std::ptrdiff_t>(at + size));
  return out;
}

// The largest error, in units of the reference's spread.
inline float spread_error(std::span<const float> values, std::span<const float> reference) {
  const auto [low, high] = std::ranges::minmax(reference);
  float worst = 0;
  for (size_t i = 0; i < reference.size(); ++i)
    worst = std::max(worst, std::abs(values[i] - reference[i]));
  return worst / (high - low);
}

// With rules of every kind for the tokens so far, and without any.
inline std::vector<GenerateRequest> history_requests() {
  std::vector<GenerateRequest> requests = make_requests();
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& sampling = requests[i].sampling;
    sampling.temperature = 1.2f;
    if (i % 3 == 0) sampling.no_repeat_ngram_size = 2;
    if (i % 3 == 1) sampling.dry_multiplier = 2.0f, sampling.dry_allowed_length = 1;
    if (i % 2 == 0) sampling.xtc_probability = 0.5f, sampling.xtc_threshold = 0.02f;
    requests[i].return_logprob = i % 4 == 0;
  }
  return requests;
}

// In float32: each state against each of the reference's: its own agrees and no other does, so that
// a layer that is off by one, or a final norm that is left out, is noticed.
inline void expect_hidden_states(Engine& engine, const std::string& name, float tolerance,
                                 const std::string& how) {
  const golden::HiddenStates golden = golden::read_hidden_states(name);
  const std::vector<int32_t> layers = all_layers(engine);
  const auto answer = engine.generate(
      hidden_request(golden.prompt, static_cast<int32_t>(golden.output.size()), layers));
  ASSERT_TRUE(answer) << how << ": " << answer.error().to_string();
  EXPECT_EQ(answer->output_ids, golden.output) << how;
  ASSERT_EQ(answer->hidden_states.size(), golden.states.size()) << how;
  const auto size = static_cast<size_t>(engine.model_info().hidden_size);
  const size_t count = golden.states.size() / layers.size();
  for (size_t i = 0; i < layers.size(); ++i)
    for (size_t k = 0; k < layers.size(); ++k) {
      const std::vector<float> own = state_of(answer->hidden_states, layers.size(), i, size);
      const float error = spread_error(own, std::span(golden.states).subspan(k * count, count));
      if (i == k)
        EXPECT_LE(error, tolerance) << how << ", state " << i;
      else
        EXPECT_GT(error, std::max(1e-2f, tolerance))
            << how << ", state " << i << " is state " << k << " of the reference";
    }
}

}  // namespace espalier
