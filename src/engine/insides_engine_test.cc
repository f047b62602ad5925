// What researchers ask of an engine: hidden states and processors of logits, on golden models and
// against transformers (tests/golden/insides, made by tools/goldens/make_insides_goldens.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <list>

#include "engine/sampling/history_rules.h"
#include "engine/testing/insides_cases.h"
#include "models/golden.h"

namespace espalier {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class HiddenStatesOf : public testing::TestWithParam<const char*> {};

TEST_P(HiddenStatesOf, AModelAreThoseOfTransformers) {
  EngineConfig config;
  config.schedule.chunked_prefill_size = 5;
  const auto engine = load_insides(GetParam(), config);
  ASSERT_TRUE(engine);
  expect_hidden_states(*engine, GetParam(), 1e-4f, "in chunks");
}
INSTANTIATE_TEST_SUITE_P(All, HiddenStatesOf, testing::ValuesIn(kInsidesModels));

// Chunks, company, what is cached and retractions change no bit, and every token has one row.
TEST(HiddenStates, DependOnTheRequestAlone) {
  const golden::HiddenStates golden = golden::read_hidden_states(kInsidesModels[0]);
  const auto alone = load_insides(kInsidesModels[0]);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 8; ++i) {
    std::vector<TokenId> prompt = golden.prompt;
    prompt.push_back(static_cast<TokenId>(3 + i / 2));
    requests.push_back(i % 4 == 3 ? greedy_request(prompt, 20)
                                  : hidden_request(prompt, 20, {-1, 0, 2}));
  }
  std::vector<std::vector<float>> expected;
  for (const GenerateRequest& request : requests) {
    const auto answer = alone->generate(request);
    ASSERT_TRUE(answer) << answer.error().to_string();
    const size_t rows = request.input_ids.size() + 19;
    EXPECT_EQ(answer->hidden_states.size(), request.return_hidden_states ? rows * 3 * 64 : 0);
    expected.push_back(answer->hidden_states);
  }
  EngineConfig config;
  config.schedule.chunked_prefill_size = 7;
  config.schedule.schedule_conservativeness = 0.1;
  config.cache.max_total_tokens = 90;  // of 264: sequences are retracted
  const auto crowd = load_insides(kInsidesModels[0], config);
  const std::vector<GenerateResult> got = results_in_a_crowd(*crowd, requests);
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i].hidden_states, expected[i]) << "request " << i;
  EXPECT_GT(crowd->stats().requests.num_retractions, 0);
}

TEST(HiddenStates, AreOfTheFinalNormUnlessStated) {
  const golden::HiddenStates golden = golden::read_hidden_states(kInsidesModels[0]);
  const auto engine = load_insides(kInsidesModels[0]);
  const auto last = engine->generate(hidden_request(golden.prompt, 8));
  const auto both = engine->generate(hidden_request(golden.prompt, 8, {1, -1}));
  ASSERT_TRUE(last && both);
  EXPECT_EQ(last->hidden_states, state_of(both->hidden_states, 2, 1, 64));
  const auto prompt_alone = engine->generate(hidden_request(golden.prompt, 0));
  ASSERT_TRUE(prompt_alone);
  EXPECT_EQ(prompt_alone->hidden_states.size(), golden.prompt.size() * 64);
  EXPECT_TRUE(
      std::ranges::equal(prompt_alone->hidden_states,
                         std::span(last->hidden_states).first(prompt_alone->hidden_states.size())));
  GenerateRequest two = hidden_request(golden.prompt, 4);
  two.sampling.n = 2;
  const auto samples = engine->generate_all(two);
  ASSERT_TRUE(samples);
  EXPECT_EQ(samples->at(0).hidden_states, samples->at(1).hidden_states);
}

TEST(HiddenStates, AreRefusedWhereTheyCannotBe) {
  const auto message_of = [](const auto& result) {
    EXPECT_FALSE(result);
    return result ? std::string() : result.error().message();
  };
  const auto engine = load_insides(kInsidesModels[0]);
  const std::vector<TokenId> prompt = {3, 4};
  EXPECT_THAT(message_of(engine->generate(hidden_request(prompt, 2, {4}))), HasSubstr("[0, 3]"));
  EXPECT_THAT(message_of(engine->generate(hidden_request(prompt, 2, {-5}))), HasSubstr("-5"));
  EXPECT_THAT(message_of(engine->generate(hidden_request(prompt, 2, {3, -1}))), HasSubstr("twice"));
  GenerateRequest layers_alone = hidden_request(prompt, 2, {1});
  layers_alone.return_hidden_states = false;
  EXPECT_THAT(message_of(engine->generate(layers_alone)), HasSubstr("return_hidden_states"));
  const auto plain = load_golden(kInsidesModels[0], {});
  EXPECT_THAT(message_of(plain->generate(hidden_request(prompt, 2))),
              HasSubstr("--enable-return-hidden-states"));
  EngineConfig ranks{
      .model = {.model_path = kModels / kInsidesModels[0], .skip_tokenizer_init = true},
      .compute = {.device = "cpu", .num_threads = 2, .tp_size = 2},
      .cache = {.max_total_tokens = 100}};
  ranks.compute.enable_return_hidden_states = true;
  EXPECT_THAT(message_of(Engine::create(ranks)), HasSubstr("--tp-size"));
}

TEST(RepeatedNgrams, AreBannedAsByTransformers) {
  int num_noticed = 0;  // cases that another size would not pass
  for (const golden::BannedNgrams& each : golden::read_banned_ngrams()) {
    std::vector<float> logits(each.banned.size()), larger(each.banned.size());
    ban_repeated_ngrams(each.tokens, each.size, logits);
    ban_repeated_ngrams(each.tokens, each.size + 1, larger);
    const auto agrees = [&](const std::vector<float>& row) {
      for (size_t id = 0; id < row.size(); ++id)
        if ((row[id] != 0) != (each.banned[id] != 0)) return false;
      return true;
    };
    EXPECT_TRUE(agrees(logits)) << "size " << each.size;
    num_noticed += !agrees(larger);
  }
  EXPECT_GE(num_noticed, 3);
}

TEST(RepeatedNgrams, AnswersAreThoseOfTransformers) {
  for (const char* name : kInsidesModels) {
    const golden::HiddenStates golden = golden::read_hidden_states(name);
    const auto engine = load_insides(name);
    for (const int32_t size : {2, 3}) {
      GenerateRequest request = greedy_request(golden.prompt, 40);
      request.sampling.no_repeat_ngram_size = size;
      const auto answer = engine->generate(request);
      ASSERT_TRUE(answer) << answer.error().to_string();
      EXPECT_EQ(answer->output_ids, golden::read_answer_without_repeats(name, size)) << name;
    }
  }
}

// As other sampling: no draw depends on what runs beside it, nor on retractions.
TEST(HistoryRules, DependOnTheRequestAlone) {
  const std::vector<GenerateRequest> requests = history_requests();
  const auto alone = load_golden(kInsidesModels[0], {});
  std::vector<Answer> expected;
  for (const GenerateRequest& request : requests) {
    const auto answer = alone->generate(request);
    ASSERT_TRUE(answer) << answer.error().to_string();
    expected.push_back(answer_of(*answer));
  }
  EngineConfig config;
  config.cache.max_total_tokens = 200;
  config.schedule.chunked_prefill_size = 16;
  const auto crowd = load_golden(kInsidesModels[0], config);
  const std::vector<GenerateResult> got = results_in_a_crowd(*crowd, requests);
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(answer_of(got[i]), expected[i]) << "request " << i;
}

TEST(LogitLibrary, ProcessorsAreRunByName) {
  EngineConfig config;
  config.sampling.logit_processor_library = LOGIT_PROCESSORS;
  const auto engine = load_golden(kInsidesModels[0], config);
  ASSERT_TRUE(engine);
  GenerateRequest request = greedy_request({5, 6, 7}, 12);
  request.sampling.logit_processor = "only";
  request.sampling.logit_processor_params = "17";
  const auto answer = engine->generate(request);
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_THAT(answer->output_ids, Each(17));
  request.sampling.logit_processor = "calm";
  request.sampling.logit_processor_params = "1000";
  request.sampling.n = 2;
  const auto calm = engine->generate_all(request);
  ASSERT_TRUE(calm) << calm.error().to_string();
  EXPECT_EQ(calm->at(0).output_ids, calm->at(1).output_ids);
  std::vector<TokenId> first(calm->at(0).output_ids.begin(), calm->at(0).output_ids.begin() + 10);
  std::ranges::sort(first);
  EXPECT_TRUE(std::ranges::adjacent_find(first) == first.end()) << "one of ten came twice";
}

TEST(LogitLibrary, WhatIsWrongIsSaid) {
  EngineConfig config;
  config.sampling.logit_processor_library = LOGIT_PROCESSORS;
  const auto engine = load_golden(kInsidesModels[0], config);
  const auto message_of = [&](const char* name, const char* params) {
    GenerateRequest request = greedy_request({5, 6, 7}, 4);
    request.sampling.logit_processor = name;
    request.sampling.logit_processor_params = params;
    const auto answer = engine->generate(request);
    EXPECT_FALSE(answer);
    return answer ? std::string() : answer.error().message();
  };
  EXPECT_THAT(message_of("other", ""), HasSubstr("only, calm"));
  EXPECT_THAT(message_of("only", "500000"), HasSubstr("500000 is no token"));
  EXPECT_THAT(message_of("only", ""), HasSubstr("give token ids"));
  config.model = {.model_path = kModels / kInsidesModels[0], .skip_tokenizer_init = true};
  config.cache.max_total_tokens = 100;
  config.compute.device = "cpu";
  for (const auto& [file, why] : {std::pair{"no_such.so", "cannot be loaded"},
                                  {"README.md", "cannot be loaded"},
                                  {"libc.so.6", "cannot be loaded"}}) {
    config.sampling.logit_processor_library = file;
    const auto refused = Engine::create(config);
    ASSERT_FALSE(refused) << file;
    EXPECT_THAT(refused.error().message(), HasSubstr(why));
  }
}

}  // namespace
}  // namespace espalier
