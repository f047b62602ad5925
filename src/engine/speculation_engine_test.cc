// Draft tokens of requests without a grammar, in an engine over the null device: answers are those
// that the device gives without them, in fewer steps. The null device's steps take no time, so the
// policy goes by acceptance alone and the counts are the same in every run.
#include <gtest/gtest.h>

#include <string>

#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

const std::string kPrompt = "copy: the quick brown fox jumps over the lazy dog|";
const std::string kAnswer = "the quick brown fox jumps over the lazy dog, the quick brown fox.";

TestEngine make_engine(const std::string& algorithm, Script& script, EngineConfig config = {}) {
  script.add(kPrompt, kAnswer);
  config.speculation.speculative_algorithm = algorithm;
  return make_test_engine({.config = config, .script = script});
}

GenerateRequest request_of(std::string_view prompt, int32_t count) {
  return {.input_ids = bytes_of(prompt), .sampling = {.max_new_tokens = count, .ignore_eos = true}};
}

TEST(SpeculationEngine, AnswersAreTheSameInFewerSteps) {
  for (const bool overlap : {true, false}) {
    const EngineConfig config{.compute = {.disable_overlap_schedule = !overlap}};
    Script script;
    const TestEngine plain = make_engine("none", script, config);
    const TestEngine drafting = make_engine("NGRAM", script, config);
    GenerateRequest request = request_of(kPrompt, static_cast<int32_t>(kAnswer.size()));
    request.return_logprob = true;
    const auto want = plain.engine->generate(request), got = drafting.engine->generate(request);
    ASSERT_TRUE(want && got);
    EXPECT_EQ(got->output_ids, bytes_of(kAnswer));
    EXPECT_EQ(got->text, want->text);
    ASSERT_EQ(got->output_logprobs.size(), want->output_logprobs.size());
    for (size_t i = 0; i < want->output_logprobs.size(); ++i)
      EXPECT_EQ(got->output_logprobs[i].logprob, want->output_logprobs[i].logprob) << i;
    EXPECT_EQ(want->stats.drafted_tokens, 0);
    EXPECT_GT(got->stats.accepted_draft_tokens, 30);
    EXPECT_EQ(got->stats.forwards_saved, got->stats.accepted_draft_tokens);
    EXPECT_GT(got->stats.verify_steps, 3);
    EXPECT_LT(drafting.device->num_steps(), plain.device->num_steps() - 25);
    // What the answer said serves the next request, whose own text lacks it.
    EXPECT_EQ(plain.engine->stats().cached_tokens_total,
              drafting.engine->stats().cached_tokens_total);
  }
}

TEST(SpeculationEngine, StopStringsAndLengthsEndWithinAcceptedTokens) {
  Script script;
  const TestEngine drafting = make_engine("NGRAM", script);
  const TestEngine plain = make_engine("none", script);
  for (const char* stop : {"fox", "jumps over", "lazy", "e laz", "g"}) {
    GenerateRequest request = request_of(kPrompt, 64);
    request.sampling.stop = {stop};
    const auto want = plain.engine->generate(request), got = drafting.engine->generate(request);
    ASSERT_TRUE(want && got);
    EXPECT_EQ(got->text, want->text) << stop;
    EXPECT_EQ(got->output_ids, want->output_ids) << stop;
    EXPECT_EQ(got->finish.type, want->finish.type) << stop;
  }
  for (int32_t count = 1; count < 40; ++count) {
    const auto got = drafting.engine->generate(request_of(kPrompt, count));
    ASSERT_TRUE(got);
    EXPECT_EQ(got->output_ids, bytes_of(kAnswer.substr(0, static_cast<size_t>(count))));
  }
  EXPECT_GT(drafting.engine->stats().accepted_draft_tokens_total, 300);
}

TEST(SpeculationEngine, ARequestMayHaveNone) {
  Script script;
  const TestEngine drafting = make_engine("NGRAM", script);
  GenerateRequest request = request_of(kPrompt, 40);
  request.sampling.draft_tokens = false;
  EXPECT_EQ(drafting.engine->generate(request)->stats.drafted_tokens, 0);
  request.sampling.draft_tokens = true;
  request.sampling.presence_penalty = 0.5f;
  EXPECT_EQ(drafting.engine->generate(request)->stats.drafted_tokens, 0) << "penalties";
}

TEST(SpeculationEngine, TextThatDoesNotRepeatCostsNoSteps) {
  Script script;
  const TestEngine drafting = make_engine("NGRAM", script);
  const auto got = drafting.engine->generate(request_of("0123456789", 200));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->output_ids, script.answer(bytes_of("0123456789"), 200));
  EXPECT_LT(got->stats.verify_steps, 10);
  EXPECT_LE(drafting.device->num_steps(), 203);
}

TEST(SpeculationEngine, RefusesWhatIsNotKnown) {
  const ModelInfo info{.vocab_size = kByteVocabSize, .context_length = 64};
  const auto refused = [&](EngineConfig config, const char* why) {
    const auto made = resolve(config, info, {});
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().message().find(why), std::string::npos) << made.error().message();
  };
  refused({.speculation = {.speculative_algorithm = "EAGLE"}}, "must be none or NGRAM");
  refused({.speculation = {.speculative_num_draft_tokens = 17}}, "must be 1 to 16");
  refused({.speculation = {.speculative_ngram_capacity = 1}}, "must be 32 to");
  refused({.compute = {.device = "cuda"}, .speculation = {.speculative_algorithm = "NGRAM"}},
          "set device to cpu");
}

}  // namespace
}  // namespace espalier
