// Exact choice probabilities against every tokenisation, enumerated, on the model that ships.
#include "engine/exact_choices.h"

#include <gtest/gtest.h>

#include <cmath>

namespace espalier {
namespace {

std::unique_ptr<Engine> start() {
  EngineConfig config;
  config.model_path = "share/default_model";
  config.max_total_tokens = 4096;
  config.max_running_requests = 8;
  config.dtype = "float32";
  config.kv_cache_dtype = "float32";
  auto engine = Engine::create(config);
  EXPECT_TRUE(engine) << engine.error().to_string();
  return std::move(*engine);
}

// Each tokenisation by itself, judged as a prompt is.
double enumerated(Engine& engine, const std::vector<TokenId>& prompt, const std::string& text,
                  std::vector<TokenId>& tokens, int64_t& count) {
  if (text.empty()) {
    ++count;
    GenerateRequest request{.return_logprob = true,
                            .logprob_start_len = static_cast<int32_t>(prompt.size())};
    request.input_ids = prompt;
    request.input_ids.insert(request.input_ids.end(), tokens.begin(), tokens.end());
    request.sampling.max_new_tokens = 0;
    const auto answer = engine.generate(std::move(request));
    EXPECT_TRUE(answer) << answer.error().to_string();
    double logprob = 0;
    for (const TokenLogprobs& one : answer->input_logprobs) logprob += one.logprob;
    return std::exp(logprob);
  }
  double sum = 0;
  const auto& vocab = engine.tokenizer()->vocab();
  for (TokenId id = 0; id < vocab.vocab_size(); ++id) {
    const std::string_view bytes = vocab.token_bytes[static_cast<size_t>(id)];
    if (bytes.empty() || !text.starts_with(bytes)) continue;
    tokens.push_back(id);
    sum += enumerated(engine, prompt, text.substr(bytes.size()), tokens, count);
    tokens.pop_back();
  }
  return sum;
}

TEST(ExactChoices, AreTheSumOverAllTokenisations) {
  const auto engine = start();
  const std::vector<TokenId> prompt =
      engine->tokenizer()->encode("<|user|>What is the capital of France?</s><|assistant|>");
  const std::vector<std::string> texts = {"The cap", "Paris", "a b", "Rome"};
  const auto exact = exact_choices(*engine, prompt, texts);
  ASSERT_TRUE(exact) << exact.error().to_string();
  std::vector<double> sums;
  double all = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<TokenId> tokens;
    int64_t count = 0;
    sums.push_back(enumerated(*engine, prompt, texts[i], tokens, count));
    all += sums.back();
    EXPECT_GE(count, 2);
    EXPECT_LE(exact->choices[i].num_tokenisations, count);
  }
  double variation = 0;  // total variation of the choices' distribution
  for (size_t i = 0; i < texts.size(); ++i)
    variation += std::abs(exact->shares[i] - sums[i] / all) / 2;
  EXPECT_LT(variation, 1e-6);
  RecordProperty("total_variation", fmt::format("{:.3g}", variation));
  fmt::print("total variation {:.3g}, {} forwards\n", variation, exact->num_forwards);
}

TEST(ExactChoices, WhatIsWrongIsSaid) {
  const auto engine = start();
  const auto code = [&](const std::vector<TokenId>& prompt, const std::vector<std::string>& texts,
                        int32_t forwards = 100) {
    const auto r = exact_choices(*engine, prompt, texts, {.num_forwards_max = forwards});
    return r ? StatusCode::kOk : r.error().code();
  };
  EXPECT_EQ(code({}, {"a"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({5}, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({5}, {"a", ""}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({5}, {"a long choice of many words"}, 3), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace espalier
