// Draft tokens of requests without a grammar, in an engine over the null device: answers are those
// that the device gives without them, in fewer steps. The null device's steps take no time, so the
// policy goes by acceptance alone and the counts are the same in every run.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

const std::string kPrompt = "copy: the quick brown fox jumps over the lazy dog|";
const std::string kAnswer = "the quick brown fox jumps over the lazy dog, the quick brown fox.";

using Tokens = std::vector<TokenId>;

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
    EXPECT_EQ(plain.engine->stats().tokens.cached, drafting.engine->stats().tokens.cached);
  }
}

TEST(SpeculationEngine, AProfileCountsDraftTokens) {
  Script script;
  const TestEngine test = make_engine("NGRAM", script);
  std::promise<StepProfile> done;
  const auto answered = [](const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); };
  test.engine->profile({.start = ProfileOptions{},
                        .done = [&](StepProfile&& profile) { done.set_value(std::move(profile)); },
                        .answered = answered});
  const auto got = test.engine->generate(request_of(kPrompt, static_cast<int32_t>(kAnswer.size())));
  ASSERT_TRUE(got);
  test.engine->profile({.answered = answered});
  const StepProfile profile = done.get_future().get();
  int64_t drafted = 0, accepted = 0;
  for (const StepProfile::Step& step : profile.steps) {
    EXPECT_EQ(step.graph_use, GraphUse::kNone) << "the null device has no graphs";
    drafted += step.draft_tokens;
    accepted += step.accepted_draft_tokens;
  }
  EXPECT_GT(accepted, 30);
  EXPECT_EQ(drafted, got->stats.drafted_tokens);
  EXPECT_EQ(accepted, got->stats.accepted_draft_tokens);
}

// The null device's head is right three times in four.
TEST(SpeculationEngine, ADraftHeadSavesSteps) {
  for (const bool overlap : {true, false})
    for (const int32_t page_size : {1, 4}) {
      const EngineConfig config{.compute = {.disable_overlap_schedule = !overlap},
                                .cache = {.page_size = page_size},
                                .schedule = {.chunked_prefill_size = 8}};
      Script script;
      const TestEngine plain = make_engine("none", script, config);
      const TestEngine drafting = make_engine("EAGLE3", script, config);
      GenerateRequest request = request_of("0123456789", 120);
      request.return_logprob = true;
      const auto want = plain.engine->generate(request), got = drafting.engine->generate(request);
      ASSERT_TRUE(want && got);
      EXPECT_EQ(got->output_ids, want->output_ids);
      ASSERT_EQ(got->output_logprobs.size(), want->output_logprobs.size());
      for (size_t i = 0; i < want->output_logprobs.size(); ++i)
        EXPECT_EQ(got->output_logprobs[i].logprob, want->output_logprobs[i].logprob) << i;
      EXPECT_GT(got->stats.accepted_draft_tokens, 40);
      EXPECT_LT(drafting.device->num_steps(), plain.device->num_steps() - 40);
      const auto by_drafter = drafting.engine->stats().speculation.by_drafter;
      EXPECT_EQ(by_drafter[static_cast<size_t>(Drafter::kHead)].accepted_tokens,
                got->stats.accepted_draft_tokens);
      for (int32_t count = 1; count < 20; ++count) {
        const auto part = drafting.engine->generate(request_of("0123456789", count));
        ASSERT_TRUE(part);
        EXPECT_EQ(part->output_ids,
                  Tokens(want->output_ids.begin(), want->output_ids.begin() + count));
      }
      request.sampling.draft_tokens = false;
      EXPECT_EQ(drafting.engine->generate(request)->stats.drafted_tokens, 0);
    }
}

class SpeculationEngineOf : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Drafters, SpeculationEngineOf,
                         testing::Values("NGRAM", "RADIX", "COMBINED"),
                         [](const auto& drafter) { return drafter.param; });

TEST_P(SpeculationEngineOf, StopStringsAndLengthsEndWithinAcceptedTokens) {
  Script script;
  const TestEngine drafting = make_engine(GetParam(), script);
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
  EXPECT_GT(drafting.engine->stats().speculation.accepted_tokens, 300);
}

// What one request said behind a prefix is drafted for the next one, from the tree alone.
TEST(SpeculationEngine, TheTreeKnowsWhatOthersSaid) {
  for (const bool overlap : {true, false})
    for (const int32_t page_size : {1, 4}) {
      const EngineConfig config{.compute = {.disable_overlap_schedule = !overlap},
                                .cache = {.page_size = page_size}};
      Script script;
      const TestEngine drafting = make_engine("RADIX", script, config);
      const GenerateRequest request = request_of("0123456789", 120);
      const auto first = drafting.engine->generate(request);
      ASSERT_TRUE(first);
      EXPECT_EQ(first->stats.drafted_tokens, 0) << "nobody has said it before";
      EXPECT_TRUE(first->entries_by_accepted.empty());
      const int64_t num_steps = drafting.device->num_steps();
      const auto again = drafting.engine->generate(request);
      ASSERT_TRUE(again);
      EXPECT_EQ(again->output_ids, first->output_ids);
      EXPECT_GT(again->stats.accepted_draft_tokens, 90);
      EXPECT_LT(drafting.device->num_steps() - num_steps, 30);
      GenerateRequest elsewhere = request;
      elsewhere.extra_key = "another";
      EXPECT_EQ(drafting.engine->generate(elsewhere)->stats.drafted_tokens, 0) << "a namespace";

      int32_t num_entries = 0, num_accepted = 0;
      for (size_t n = 0; n < again->entries_by_accepted.size(); ++n) {
        num_entries += again->entries_by_accepted[n];
        num_accepted += static_cast<int32_t>(n) * again->entries_by_accepted[n];
      }
      EXPECT_EQ(num_entries, again->stats.verify_steps);
      EXPECT_EQ(num_accepted, again->stats.accepted_draft_tokens);
      const auto by_drafter = drafting.engine->stats().speculation.by_drafter;
      ASSERT_EQ(by_drafter.size(), kNumDrafters);
      const DraftCounts& radix = by_drafter[static_cast<size_t>(Drafter::kRadix)];
      EXPECT_EQ(radix.accepted_tokens, again->stats.accepted_draft_tokens);
      EXPECT_EQ(radix.verify_steps, again->stats.verify_steps);
      EXPECT_EQ(by_drafter[static_cast<size_t>(Drafter::kNgram)].verify_steps, 0);
    }
}

// Requests in turn in a pool that evicts: every one of them finds in the cache what it finds there
// without draft tokens, under each policy of eviction.
TEST(SpeculationEngine, TheCacheIsAsWithoutDraftTokens) {
  for (const char* policy : {"lru", "lfu", "slru"})
    for (const int32_t page_size : {1, 4}) {
      EngineConfig config;
      config.cache.page_size = page_size;
      config.cache.max_total_tokens = 640;
      config.cache.radix_eviction_policy = policy;
      Script script;
      const TestEngine plain = make_engine("none", script, config);
      std::vector<TestEngine> drafting;
      for (const char* algorithm : {"NGRAM", "RADIX", "COMBINED", "EAGLE3"})
        drafting.push_back(make_engine(algorithm, script, config));
      Rng rng(31);
      std::vector<std::string> prompts;
      for (int i = 0; i < 12; ++i) {
        std::string prompt = prompts.empty() ? "" : prompts[rng.below(prompts.size())];
        prompt.resize(std::min<size_t>(prompt.size(), rng.below(40)));
        for (int k = 0; k < 20; ++k) prompt.push_back(static_cast<char>('a' + rng.below(26)));
        prompts.push_back(prompt);
      }
      for (int round = 0; round < 80; ++round) {
        const auto request = request_of(prompts[rng.below(prompts.size())],
                                        static_cast<int32_t>(rng.between(1, 60)));
        const auto want = plain.engine->generate(request);
        ASSERT_TRUE(want);
        for (const TestEngine& engine : drafting) {
          const auto got = engine.engine->generate(request);
          ASSERT_TRUE(got);
          EXPECT_EQ(got->output_ids, want->output_ids);
          ASSERT_EQ(got->stats.cached_tokens, want->stats.cached_tokens)
              << policy << ", pages of " << page_size << ", round " << round;
        }
      }
      for (const TestEngine& engine : drafting)
        EXPECT_GT(engine.engine->stats().speculation.accepted_tokens, 500);
      EXPECT_GT(plain.engine->stats().tokens.cached, 500);
    }
}

TEST_P(SpeculationEngineOf, ARequestMayHaveNone) {
  Script script;
  const TestEngine drafting = make_engine(GetParam(), script);
  GenerateRequest request = request_of(kPrompt, 40);
  EXPECT_TRUE(drafting.engine->generate(request));
  request.sampling.draft_tokens = false;
  EXPECT_EQ(drafting.engine->generate(request)->stats.drafted_tokens, 0);
  request.sampling.draft_tokens = true;
  request.sampling.presence_penalty = 0.5f;
  EXPECT_GT(drafting.engine->generate(request)->stats.drafted_tokens, 0) << "penalties";
  request.sampling.no_repeat_ngram_size = 30;
  EXPECT_EQ(drafting.engine->generate(request)->stats.drafted_tokens, 0) << "the order of tokens";
}

TEST_P(SpeculationEngineOf, TextThatDoesNotRepeatCostsNoSteps) {
  Script script;
  const TestEngine drafting = make_engine(GetParam(), script);
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
  refused({.speculation = {.speculative_algorithm = "EAGLE"}},
          "must be auto, none, NGRAM, RADIX, COMBINED, EAGLE3, NEXTN or STANDALONE");
  refused(
      {.cache = {.disable_radix_cache = true}, .speculation = {.speculative_algorithm = "RADIX"}},
      "reads the radix cache");
  refused({.speculation = {.speculative_num_draft_tokens = 17}}, "must be 1 to 16");
  refused({.speculation = {.speculative_ngram_capacity = 1}}, "must be 32 to");
}

}  // namespace
}  // namespace espalier
