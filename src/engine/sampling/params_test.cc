#include "engine/sampling/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Length = ResolvedSampling::Length;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

SamplingContext context() { return {.vocab_size = 100, .eos_ids = {7, 3}}; }

Status status_of(const SamplingParams& params) {
  const auto r = resolve_sampling({.sampling = params}, context());
  return r ? Status() : r.error();
}

TEST(Params, DefaultsAreThoseOfTheApi) {
  const auto r = resolve_sampling({}, context());
  ASSERT_TRUE(r) << r.error().to_string();
  EXPECT_EQ(r->spec.temperature, 1);
  EXPECT_EQ(r->spec.top_p, 1);
  EXPECT_EQ(r->spec.top_k, -1);
  EXPECT_EQ(r->spec.min_p, 0);
  EXPECT_FALSE(r->spec.has_penalties());
  EXPECT_EQ(r->max_new_tokens, 128);
  EXPECT_EQ(r->length, Length::kDefault);
  EXPECT_THAT(r->stop_ids, ElementsAre(3, 7));
  EXPECT_TRUE(r->spec.banned_before_min.empty());
}

TEST(Params, TheModeOfLogprobsIsTheEngines) {
  SamplingContext raw = context();
  raw.logprobs_mode = parse_logprobs_mode("raw").value();
  EXPECT_EQ(resolve_sampling({}, context())->spec.logprobs_mode, LogprobsMode::kProcessed);
  EXPECT_EQ(resolve_sampling({}, raw)->spec.logprobs_mode, LogprobsMode::kRaw);
  EXPECT_EQ(parse_logprobs_mode("original").value(), LogprobsMode::kOriginal);
  EXPECT_THAT(parse_logprobs_mode("cooked").error().message(), HasSubstr("original or raw"));
}

TEST(Params, PrefillOnlyHasNoTemperature) {
  const auto r =
      resolve_sampling({.sampling = {.max_new_tokens = 0, .temperature = 0.7f}}, context());
  ASSERT_TRUE(r);
  EXPECT_EQ(r->spec.temperature, 0);
}

TEST(Params, EachViolationNamesTheFieldItsValueAndTheRange) {
  struct Case {
    SamplingParams params;
    const char *field, *value, *range;
  };
  const Case cases[] = {
      {{.max_new_tokens = -5}, "max_new_tokens", "-5", "at least 0"},
      {{.min_new_tokens = -1}, "min_new_tokens", "-1", "at least 0"},
      {{.max_new_tokens = 4, .min_new_tokens = 5}, "min_new_tokens", "5", "which is 4"},
      {{.min_new_tokens = 129}, "min_new_tokens", "129", "which is 128"},
      {{.temperature = -0.5f}, "temperature", "-0.5", "finite number of at least 0"},
      {{.temperature = kNan}, "temperature", "nan", "finite"},
      {{.temperature = kInf}, "temperature", "inf", "finite"},
      {{.top_p = 0.0f}, "top_p", "0", "(0, 1]"},
      {{.top_p = 1.5f}, "top_p", "1.5", "(0, 1]"},
      {{.top_p = kNan}, "top_p", "nan", "(0, 1]"},
      {{.top_k = 0}, "top_k", "0", "-1 (no limit) or at least 1"},
      {{.top_k = -2}, "top_k", "-2", "at least 1"},
      {{.min_p = -0.25f}, "min_p", "-0.25", "[0, 1]"},
      {{.min_p = 2.0f}, "min_p", "2", "[0, 1]"},
      {{.top_n_sigma = -1.0f}, "top_n_sigma", "-1", "at least 0"},
      {{.top_n_sigma = kNan}, "top_n_sigma", "nan", "finite"},
      {{.frequency_penalty = 2.5f}, "frequency_penalty", "2.5", "[-2, 2]"},
      {{.presence_penalty = -3.0f}, "presence_penalty", "-3", "[-2, 2]"},
      {{.repetition_penalty = 0.0f}, "repetition_penalty", "0", "(0, 2]"},
      {{.repetition_penalty = kNan}, "repetition_penalty", "nan", "(0, 2]"},
      {{.n = 0}, "n", "0", "[1, 1024]"},
      {{.stop_token_ids = {5, -1}}, "stop_token_ids", "-1", "at least 0"},
      {{.logit_bias = {{200, 1.0f}}}, "logit_bias", "200", "[0, 100)"},
      {{.logit_bias = {{20, kInf}}}, "logit_bias", "inf", "finite"},
  };
  for (const Case& c : cases) {
    const Status s = status_of(c.params);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << c.field;
    EXPECT_THAT(s.message(), AllOf(HasSubstr(c.field), HasSubstr(c.value), HasSubstr(c.range)));
  }
}

TEST(Params, EdgesOfTheRangesAreAllowed) {
  EXPECT_TRUE(status_of({.max_new_tokens = 0,
                         .min_new_tokens = 0,
                         .temperature = 3e38f,
                         .top_p = 1e-45f,
                         .top_k = 1,
                         .min_p = 1.0f,
                         .frequency_penalty = -2.0f,
                         .presence_penalty = 2.0f,
                         .repetition_penalty = 1e-38f,
                         .n = 1024,
                         .logit_bias = {{99, -3e38f}}})
                  .ok());
}

TEST(Params, LogprobFieldsAreChecked) {
  const auto code = [](GenerateRequest r) {
    const auto result = resolve_sampling(r, context());
    return result ? StatusCode::kOk : result.error().code();
  };
  EXPECT_EQ(code({.logprob_start_len = -2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.top_logprobs_num = -1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.top_logprobs_num = 101}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.token_ids_logprob = {100}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.token_ids_logprob = std::vector<TokenId>(101, 5)}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.return_logprob = true,
                  .logprob_start_len = 5,
                  .top_logprobs_num = 100,
                  .token_ids_logprob = {0, 99}}),
            StatusCode::kOk);
}

TEST(Params, AtMostOneGrammar) {
  EXPECT_TRUE(status_of({.json_schema = "{}"}).ok());
  EXPECT_TRUE(status_of({.regex = "a+"}).ok());
  EXPECT_TRUE(status_of({.ebnf = "x"}).ok());
  EXPECT_TRUE(status_of({.structural_tag = "x"}).ok());  // its text is judged where it is compiled
  EXPECT_TRUE(status_of({.choices = {"a", "b"}}).ok());
  EXPECT_THAT(status_of({.regex = "a", .choices = {"a"}}).message(), HasSubstr("choices"));
  EXPECT_THAT(status_of({.json_whitespace = "none"}).message(),
              HasSubstr("compact, bounded or any"));
  const Status both = status_of({.json_schema = "{}", .regex = "a+"});
  EXPECT_EQ(both.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(both.message(), AllOf(HasSubstr("json_schema"), HasSubstr("regex")));
}

TEST(Params, ModelDefaultsStandWhereTheRequestIsSilent) {
  SamplingContext c = context();
  c.defaults = {.temperature = 0.6f,
                .top_p = 0.9f,
                .repetition_penalty = 1.1f,
                .top_k = 50,
                .max_new_tokens = 40};
  auto r = resolve_sampling({.sampling = {.top_p = 0.5f}}, c);
  ASSERT_TRUE(r);
  EXPECT_EQ(r->spec.temperature, 0.6f);
  EXPECT_EQ(r->spec.top_p, 0.5f);
  EXPECT_EQ(r->spec.top_k, 50);
  EXPECT_EQ(r->spec.repetition_penalty, 1.1f);
  EXPECT_EQ(r->max_new_tokens, 40);
}

TEST(Params, DefaultsThatNoRequestCouldStateAreDropped) {
  const GenerationDefaults d = usable_defaults({.temperature = -1,
                                                .top_p = 0,
                                                .min_p = 0.1f,
                                                .repetition_penalty = 5,
                                                .top_k = 0,
                                                .max_new_tokens = 0});
  EXPECT_FALSE(d.temperature || d.top_p || d.repetition_penalty || d.top_k || d.max_new_tokens);
  EXPECT_EQ(d.min_p, 0.1f);
}

TEST(Params, TinyTemperatureIsGreedy) {
  EXPECT_TRUE(resolve_sampling({.sampling = {.temperature = 9e-7f}}, context())->spec.greedy());
  EXPECT_FALSE(resolve_sampling({.sampling = {.temperature = 2e-6f}}, context())->spec.greedy());
}

TEST(Params, StopIdsAreBannedBeforeTheMinimum) {
  auto r =
      resolve_sampling({.sampling = {.min_new_tokens = 2, .stop_token_ids = {50, 3}}}, context());
  EXPECT_THAT(r->spec.banned_before_min, ElementsAre(3, 7, 50));
  r = resolve_sampling(
      {.sampling = {.min_new_tokens = 2, .stop_token_ids = {50}, .ignore_eos = true}}, context());
  EXPECT_THAT(r->stop_ids, ElementsAre(50));
  EXPECT_THAT(r->spec.banned_before_min, ElementsAre(50));
  // Of another model's vocabulary: nothing to stop at, and nothing to ban.
  r = resolve_sampling({.sampling = {.min_new_tokens = 2, .stop_token_ids = {100, 50, 128009}}},
                       context());
  EXPECT_THAT(r->stop_ids, ElementsAre(3, 7, 50));
  EXPECT_THAT(r->spec.banned_before_min, ElementsAre(3, 7, 50));
}

Result<int32_t> length(const SamplingParams& params, int32_t prompt, int32_t limit,
                       bool by_cache = false) {
  return resolve_max_new_tokens(*resolve_sampling({.sampling = params}, context()), prompt,
                                {.tokens = limit, .by_cache = by_cache});
}

TEST(Params, LengthFitsPromptAndContext) {
  EXPECT_EQ(*length({.max_new_tokens = 10}, 90, 100), 10);
  EXPECT_EQ(*length({}, 10, 1000), 128);
  EXPECT_EQ(*length({}, 90, 100), 10);  // a default is cut
  EXPECT_EQ(*length({.to_context = true}, 90, 100), 10);
  EXPECT_EQ(*length({.max_new_tokens = 0}, 100, 100), 0);
}

TEST(Params, WhatDoesNotFitIsRefusedWithItsNumbers) {
  const auto message = [](const SamplingParams& p, int32_t prompt) {
    const auto r = length(p, prompt, 100);
    EXPECT_FALSE(r.has_value());
    return r ? std::string() : r.error().message();
  };
  EXPECT_THAT(message({}, 100), AllOf(HasSubstr("100 tokens"), HasSubstr("at most 99")));
  EXPECT_THAT(message({.max_new_tokens = 0}, 101),
              AllOf(HasSubstr("101"), HasSubstr("at most 100")));
  EXPECT_THAT(message({.max_new_tokens = 11}, 90), AllOf(HasSubstr("90"), HasSubstr("at most 10")));
  EXPECT_THAT(message({.to_context = true}, 123), AllOf(HasSubstr("123"), HasSubstr("99")));
  EXPECT_THAT(message({.min_new_tokens = 20}, 90), AllOf(HasSubstr("20"), HasSubstr("only 10")));
  EXPECT_THAT(message({}, 100), Not(HasSubstr("--max-total-tokens")));
}

TEST(Params, ACacheSmallerThanTheContextIsNamedAsTheReason) {
  for (const SamplingParams& params : {SamplingParams(), SamplingParams{.max_new_tokens = 11}}) {
    const int32_t prompt = params.max_new_tokens ? 90 : 100;
    EXPECT_THAT(length(params, prompt, 100, true).error().message(),
                AllOf(HasSubstr("share 100"), HasSubstr("--max-total-tokens")));
  }
}

TEST(Params, SeedsOfSamplesDiffer) {
  EXPECT_EQ(sample_seed(5, 1), sample_seed(5, 1));
  EXPECT_NE(sample_seed(5, 0), sample_seed(5, 1));
  EXPECT_NE(sample_seed(5, 1), sample_seed(6, 0));
}

}  // namespace
}  // namespace espalier
