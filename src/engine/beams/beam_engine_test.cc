// Beam search through the engine: against transformers (tests/golden/beams, made by
// tools/goldens/make_beam_goldens.py), with grammars, stops and penalties, in small caches and in
// company.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <span>

#include "engine/testing/beam_cases.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<Engine> make_engine(EngineConfig config = {}) {
  return load_beam_model(kBeamModels[0], std::move(config));
}

// The shipped model, with its tokenizer.
std::unique_ptr<Engine> make_talking_engine(EngineConfig config = {}) {
  config.model.model_path = "share/default_model";
  config.compute.device = "cpu";
  config.compute.num_threads = 1;
  config.cache.max_total_tokens = 2000;
  config.check_invariants = true;
  auto engine = Engine::create(config);
  EXPECT_TRUE(engine) << engine.error().to_string();
  return engine ? std::move(*engine) : nullptr;
}

GenerateRequest search_for(std::string text, int32_t n, int32_t max_new_tokens) {
  return {.text = std::move(text),
          .sampling = {.max_new_tokens = max_new_tokens, .n = n, .use_beam_search = true}};
}

class BeamsOf : public testing::TestWithParam<const char*> {};

TEST_P(BeamsOf, AModelAreThoseOfTransformers) {
  const auto engine = load_beam_model(GetParam(), {});
  ASSERT_TRUE(engine);
  for (const BeamCase& one : read_beam_cases(GetParam())) {
    const auto got = engine->generate_all(one.request);
    ASSERT_TRUE(got) << got.error().to_string();
    expect_beams(one, *got, 1e-4f, "alone");
  }
  EXPECT_EQ(engine->stats().requests.num_running + engine->stats().requests.num_waiting, 0);
}
INSTANTIATE_TEST_SUITE_P(All, BeamsOf, testing::ValuesIn(kBeamModels));

// Every search at once among other requests, in a pool that holds few of them; pages of several
// tokens, whose last one beams cannot share; and no cache at all.
class BeamsInACrowdOf : public testing::TestWithParam<const char*> {};

TEST_P(BeamsInACrowdOf, AModelDependOnTheRequestAlone) {
  const std::vector<BeamCase> cases = read_beam_cases(GetParam());
  for (const int32_t page_size : {1, 4, 0}) {
    EngineConfig config;
    config.cache.page_size = std::max(page_size, 1);
    config.cache.disable_radix_cache = page_size == 0;
    config.cache.max_total_tokens = 240;
    config.schedule.max_running_requests = 8;
    config.schedule.max_queued_requests = 100;
    config.schedule.chunked_prefill_size = 7;
    const auto engine = load_beam_model(GetParam(), config);
    ASSERT_TRUE(engine);
    expect_beams_in_a_crowd(*engine, cases, 1e-4f, fmt::format("pages of {}", page_size));
  }
}
INSTANTIATE_TEST_SUITE_P(Small, BeamsInACrowdOf,
                         testing::ValuesIn(std::span(kBeamModels).first(3)));

// A search with one beam is greedy, penalties and bans included.
TEST(Beams, OfWidthOneAreGreedy) {
  const auto engine = make_engine();
  GenerateRequest request{.input_ids = {5, 9, 12, 9, 30}};
  request.sampling = {.max_new_tokens = 24,
                      .min_new_tokens = 12,
                      .temperature = 0.0f,
                      .frequency_penalty = 0.7f,
                      .presence_penalty = 0.4f,
                      .repetition_penalty = 1.4f,
                      .no_repeat_ngram_size = 2,
                      .logit_bias = {{2, 4.0f}, {17, 1.5f}}};
  request.return_logprob = true;
  request.top_logprobs_num = 3;
  request.token_ids_logprob = {4, 2};
  const auto greedy = engine->generate(request);
  ASSERT_TRUE(greedy) << greedy.error().to_string();
  request.sampling.use_beam_search = true;
  const auto found = engine->generate(request);
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(found->output_ids, greedy->output_ids);
  EXPECT_EQ(found->finish.type, greedy->finish.type);
  ASSERT_EQ(found->output_logprobs.size(), greedy->output_logprobs.size());
  float sum = 0;
  for (size_t i = 0; i < found->output_logprobs.size(); ++i) {
    EXPECT_FLOAT_EQ(found->output_logprobs[i].logprob, greedy->output_logprobs[i].logprob);
    EXPECT_EQ(found->output_logprobs[i].top, greedy->output_logprobs[i].top);
    EXPECT_EQ(found->output_logprobs[i].wanted, greedy->output_logprobs[i].wanted);
    sum += found->output_logprobs[i].logprob;
  }
  EXPECT_FLOAT_EQ(found->beam->cumulative_logprob, sum);
  EXPECT_FALSE(greedy->beam);
}

TEST(Beams, ReturnLogprobsOfThePrompt) {
  const auto engine = make_engine();
  GenerateRequest request{.input_ids = {5, 9, 12, 9, 30},
                          .sampling = {.max_new_tokens = 3, .n = 3}};
  request.return_logprob = true;
  request.logprob_start_len = 0;
  request.top_logprobs_num = 1;
  request.sampling.ignore_eos = true;
  const auto drawn = engine->generate_all(request);
  request.sampling.use_beam_search = true;
  const auto found = engine->generate_all(request);
  ASSERT_TRUE(drawn && found) << found.error().to_string();
  for (const GenerateResult& one : *found) {
    ASSERT_EQ(one.input_logprobs.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_FLOAT_EQ(one.input_logprobs[i].logprob, drawn->at(0).input_logprobs[i].logprob);
      EXPECT_EQ(one.input_logprobs[i].top, drawn->at(0).input_logprobs[i].top);
    }
  }
}

// The grammar has few texts, each in some spellings: with as many beams as spellings the search
// finds all, and their probabilities under the grammar sum to one.
TEST(Beams, FollowAGrammar) {
  const auto engine = make_talking_engine();
  ASSERT_TRUE(engine);
  GenerateRequest request = search_for("The animal was a", 1, 12);
  request.sampling.choices = {" cat", " dog", " mouse"};
  request.sampling.beam_width = 64;
  std::vector<GenerateResult> all;
  for (int32_t n = 1; n <= 64; ++n) {
    request.sampling.n = n;
    auto found = engine->generate_all(request);
    if (!found) {
      EXPECT_THAT(found.error().message(), HasSubstr("lower n"));
      break;
    }
    all = *std::move(found);
  }
  ASSERT_GE(all.size(), 6u);
  double sum = 0;
  std::set<std::vector<TokenId>> spellings;
  std::set<std::string> texts;
  for (const GenerateResult& one : all) {
    EXPECT_THAT(request.sampling.choices, testing::Contains(one.text));
    spellings.insert(one.output_ids);
    texts.insert(one.text);
    sum += std::exp(one.beam->cumulative_logprob);
  }
  EXPECT_EQ(spellings.size(), all.size());
  EXPECT_EQ(texts.size(), 3u);
  EXPECT_NEAR(sum, 1.0, 1e-3);
}

TEST(Beams, FollowASchema) {
  const auto engine = make_talking_engine();
  ASSERT_TRUE(engine);
  GenerateRequest request = search_for("A cat as JSON: ", 3, 40);
  request.sampling.json_schema =
      R"({"type":"object","properties":{"name":{"enum":["Tom","Lily","Max"]},"age":{"type":"integer","minimum":1,"maximum":99}},"required":["name","age"]})";
  request.sampling.complete_within_budget = true;
  const auto found = engine->generate_all(request);
  ASSERT_TRUE(found) << found.error().to_string();
  for (const GenerateResult& one : *found) {
    EXPECT_THAT(one.text, testing::ContainsRegex("^\\{ ?\n? *\"name\" ?: ?\"(Tom|Lily|Max)\""));
    EXPECT_THAT(one.text, testing::EndsWith("}"));
    EXPECT_EQ(one.finish.type, FinishReason::Type::kStop);
  }
}

TEST(Beams, EndAtStopStrings) {
  const auto engine = make_talking_engine();
  ASSERT_TRUE(engine);
  for (const bool keeps : {false, true}) {
    GenerateRequest request = search_for("Once upon a time", 4, 40);
    request.sampling.stop = {"ed", " was"};
    request.sampling.stop_regex = {"the[a-z]"};
    request.sampling.no_stop_trim = keeps;
    const auto found = engine->generate_all(request);
    ASSERT_TRUE(found) << found.error().to_string();
    int num_stopped = 0;
    for (const GenerateResult& one : *found) {
      const auto* const matched = std::get_if<std::string>(&one.finish.matched);
      num_stopped += matched != nullptr ? 1 : 0;
      if (one.finish.type == FinishReason::Type::kLength) continue;
      for (const std::string& stop : request.sampling.stop) {
        const size_t at = one.text.find(stop);
        EXPECT_TRUE(at == std::string::npos ||
                    (keeps && *matched == stop && at + stop.size() == one.text.size()))
            << one.text;
      }
    }
    EXPECT_GT(num_stopped, 0);
  }
}

// Each token's text is searched once, not all of it at each step: an expression that costs much for
// each character is affordable for long answers too.
TEST(Beams, SearchTheirTextsOnce) {
  const auto engine = make_talking_engine();
  ASSERT_TRUE(engine);
  GenerateRequest request = search_for("Once upon a time", 1, 1500);
  request.sampling.ignore_eos = true;
  request.sampling.stop_regex = {"([^q]{0,300}k){2}[^q]{0,300}zz"};
  const auto found = engine->generate_all(request);
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(found->at(0).finish.type, FinishReason::Type::kLength)
      << found->at(0).finish.status.to_string();
}

TEST(Beams, EndWhereTheyAreAborted) {
  const auto engine = make_engine();
  GenerateRequest request{.rid = "long",
                          .input_ids = {5, 9, 12},
                          .sampling = {.max_new_tokens = 200,
                                       .n = 3,
                                       .ignore_eos = true,
                                       .use_beam_search = true,
                                       .beam_width = 5,
                                       .early_stopping = EarlyStopping::kNever}};
  for (int round = 0; round < 20; ++round) {
    Collector search(3);
    ASSERT_TRUE(engine->submit(request, search.sink()));
    const auto other = engine->generate({.input_ids = {5, 9, 12, static_cast<TokenId>(7 + round)},
                                         .sampling = {.max_new_tokens = round % 5}});
    EXPECT_TRUE(other);
    engine->abort("long", Engine::AbortScope::kExact);
    ASSERT_TRUE(search.wait_end());
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(search.finish_type(i), FinishReason::Type::kAbort);
      EXPECT_THAT(search.result(i).finish.status.message(), HasSubstr("was aborted"));
    }
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.requests.num_running, 0);
  EXPECT_EQ(stats.memory.kv_tokens_running, 0);
  EXPECT_TRUE(engine->flush_cache().ok());
}

// Each beam is charged as a request is.
TEST(Beams, CountAsSamplesDo) {
  EngineConfig config;
  config.schedule.max_running_requests = 4;
  config.schedule.max_queued_requests = 4;
  const auto engine = make_engine(config);
  GenerateRequest request{.input_ids = {5, 9}, .sampling = {.max_new_tokens = 4}};
  request.sampling.use_beam_search = true;
  request.sampling.beam_width = 9;
  const auto refused = engine->generate(request);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("at most 8 samples"));
  request.sampling.beam_width = 8;  // more than run at once
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(engine->generate(request));
}

TEST(Beams, AreRefusedWhereTheyCannotBe) {
  const auto engine = make_engine();
  const auto message_of = [&](const auto& change) {
    GenerateRequest request{.input_ids = {5, 9},
                            .sampling = {.max_new_tokens = 4, .use_beam_search = true}};
    change(request);
    const auto result = engine->generate_all(request);
    EXPECT_FALSE(result);
    return result ? std::string() : result.error().message();
  };
  using R = GenerateRequest;
  EXPECT_THAT(message_of([](R& r) { r.sampling.n = 3, r.sampling.beam_width = 2; }),
              HasSubstr("n is 3, but a search of 2 beams"));
  EXPECT_THAT(message_of([](R& r) { r.sampling.beam_width = 3, r.sampling.best_of = 2; }),
              HasSubstr("beam_width is 3 and best_of 2"));
  EXPECT_THAT(message_of([](R& r) { r.sampling.beam_width = 65; }), HasSubstr("in [1, 64]"));
  EXPECT_THAT(message_of([](R& r) { r.sampling.n = 100; }), HasSubstr("at most 64 beams"));
  EXPECT_THAT(message_of([](R& r) { r.sampling.max_new_tokens = 0; }),
              HasSubstr("needs at least 1"));
  EXPECT_THAT(message_of([](R& r) {
                for (TokenId id = 0; id < 65; ++id) r.sampling.stop_token_ids.push_back(id);
              }),
              HasSubstr("a beam search has at most 64"));
  EXPECT_THAT(message_of([](R& r) { r.session.emplace(); }), StartsWith("session_params does not"));
  EXPECT_THAT(message_of([](R& r) { r.sampling.logit_processor = "calm"; }),
              HasSubstr("logit_processor"));
  EXPECT_THAT(message_of([](R& r) {
                r.sampling.use_beam_search = false, r.sampling.length_penalty = 2.0f;
              }),
              HasSubstr("length_penalty is there without use_beam_search"));
  EXPECT_THAT(message_of([](R& r) { r.sampling.use_beam_search = false, r.sampling.best_of = 2; }),
              HasSubstr("best_of is 2 and n is 1"));
}

}  // namespace
}  // namespace espalier
