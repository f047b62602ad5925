// The engine as its callers see it, over a device without a model whose right answers are known.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <list>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Scope = Engine::AbortScope;
using Type = FinishReason::Type;
using std::chrono::milliseconds;

TEST(Engine, TextBecomesTextAgain) {
  Script script;
  script.add("Once", " upon a time");
  auto [engine, device] = make_test_engine({.script = script});
  const auto answer = engine->generate({.text = "Once", .sampling = {.max_new_tokens = 12}});
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_EQ(answer->text, " upon a time");
  EXPECT_EQ(answer->output_ids, bytes_of(" upon a time"));
  EXPECT_EQ(answer->finish.type, Type::kLength);
  EXPECT_EQ(answer->stats.prompt_tokens, 4);
  EXPECT_EQ(answer->stats.completion_tokens, 12);
  EXPECT_EQ(answer->rid.size(), 32u);
  EXPECT_GT(answer->stats.finished, answer->stats.arrived);
}

TEST(Engine, DefaultLengthIs128AndNullGoesToTheContext) {
  auto [engine, device] = make_test_engine({.context_length = 200});
  EXPECT_EQ(engine->generate({.text = "abc"})->output_ids.size(), 128u);
  const auto full = engine->generate({.text = "abc", .sampling = {.to_context = true}});
  EXPECT_EQ(full->output_ids.size(), 197u);
  EXPECT_EQ(full->finish.type, Type::kLength);
}

TEST(Engine, PrefillOnlyGivesNoText) {
  auto [engine, device] = make_test_engine();
  const auto answer = engine->generate({.text = "prefix", .sampling = {.max_new_tokens = 0}});
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_EQ(answer->text, "");
  EXPECT_TRUE(answer->output_ids.empty());
  EXPECT_EQ(answer->finish.type, Type::kLength);
  EXPECT_EQ(answer->stats.prompt_tokens, 6);
  const auto next = engine->generate({.text = "prefix and", .sampling = {.max_new_tokens = 1}});
  EXPECT_EQ(next->stats.cached_tokens, 6);
}

TEST(Engine, EndOfSequenceStopsUnlessIgnored) {
  Script script;
  script.add(bytes_of("q"), {'a', 'b', kByteEosId, 'c', 'd'});
  auto [engine, device] = make_test_engine({.script = script});
  const auto stopped = engine->generate({.text = "q"});
  EXPECT_EQ(stopped->text, "ab");
  EXPECT_EQ(stopped->output_ids, (std::vector<TokenId>{'a', 'b', kByteEosId}));
  EXPECT_EQ(stopped->finish.type, Type::kStop);
  EXPECT_EQ(std::get<TokenId>(stopped->finish.matched), kByteEosId);
  const auto on =
      engine->generate({.text = "q", .sampling = {.max_new_tokens = 5, .ignore_eos = true}});
  EXPECT_EQ(on->text, "abcd");
  EXPECT_EQ(on->finish.type, Type::kLength);
}

TEST(Engine, StopTokensEndWithoutTheirText) {
  Script script;
  script.add("q", "abXcd");
  auto [engine, device] = make_test_engine({.script = script});
  auto r = engine->generate({.text = "q", .sampling = {.stop_token_ids = {'X'}}});
  EXPECT_EQ(r->text, "ab");
  EXPECT_EQ(std::get<TokenId>(r->finish.matched), 'X');
  r = engine->generate({.text = "q", .sampling = {.stop_token_ids = {'X'}, .no_stop_trim = true}});
  EXPECT_EQ(r->text, "abX");
  r = engine->generate({.text = "q", .sampling = {.max_new_tokens = 3, .stop_token_ids = {'X'}}});
  EXPECT_EQ(r->text, "abX");  // the length comes first
  EXPECT_EQ(r->finish.type, Type::kLength);
}

TEST(Engine, StopStringsStraddleTokensAndHoldTextBack) {
  Script script;
  script.add("q", "one two STOP three");
  auto [engine, device] = make_test_engine({.script = script});
  Collector collector;
  ASSERT_TRUE(engine->submit({.text = "q", .sampling = {.stop = {"STOP"}}}, collector.sink()));
  ASSERT_TRUE(collector.wait_end());
  EXPECT_EQ(collector.result().text, "one two ");
  EXPECT_EQ(std::get<std::string>(collector.result().finish.matched), "STOP");
  EXPECT_EQ(collector.result().output_ids, bytes_of("one two STOP"));
  const auto kept =
      engine->generate({.text = "q", .sampling = {.stop = {"STOP"}, .no_stop_trim = true}});
  EXPECT_EQ(kept->text, "one two STOP");
  const auto cut =
      engine->generate({.text = "q", .sampling = {.max_new_tokens = 10, .stop = {"STOP"}}});
  EXPECT_EQ(cut->text, "one two ST");  // withheld, then shown: it did not become a stop
  const auto both =
      engine->generate({.text = "q", .sampling = {.max_new_tokens = 12, .stop = {"STOP"}}});
  EXPECT_EQ(both->finish.type, Type::kLength);
  EXPECT_EQ(both->text, "one two STOP");
}

TEST(Engine, StopRegexMatches) {
  Script script;
  script.add("q", "call 555-1234 now");
  auto [engine, device] = make_test_engine({.script = script});
  const auto r = engine->generate(
      {.text = "q", .sampling = {.max_new_tokens = 17, .stop_regex = {"[0-9]{3}-[0-9]"}}});
  ASSERT_TRUE(r) << r.error().to_string();
  EXPECT_EQ(r->finish.type, Type::kStop);
  EXPECT_EQ(std::get<std::string>(r->finish.matched), "[0-9]{3}-[0-9]");
  EXPECT_FALSE(engine->generate({.text = "q", .sampling = {.stop_regex = {"("}}}));
}

TEST(Engine, NameOfASpecialTokenStopsThoughItHasNoText) {
  Script script;
  script.add(bytes_of("q"), {'h', 'i', kByteUserId, 'x'});
  auto [engine, device] = make_test_engine({.script = script});
  const auto r = engine->generate({.text = "q", .sampling = {.stop = {"<|user|>"}}});
  EXPECT_EQ(r->text, "hi");
  EXPECT_EQ(std::get<std::string>(r->finish.matched), "<|user|>");
}

TEST(Engine, CharactersAreNeverSplit) {
  Script script;
  script.add("q", "h\xc3\xa9llo \xf0\x9f\x8c\xb3!");
  auto [engine, device] = make_test_engine({.script = script});
  std::vector<std::string> pieces;
  Collector collector;
  ASSERT_TRUE(
      engine->submit({.text = "q", .sampling = {.max_new_tokens = 12}}, [&](TokenEvent&& event) {
        pieces.push_back(event.text);
        collector.add(std::move(event));
      }));
  ASSERT_TRUE(collector.wait_end());
  EXPECT_EQ(collector.result().text, "h\xc3\xa9llo \xf0\x9f\x8c\xb3!");
  EXPECT_THAT(pieces, testing::Contains("\xf0\x9f\x8c\xb3"));
  // Cut in the middle of a character: what there is shows as U+FFFD.
  const auto cut = engine->generate({.text = "q", .sampling = {.max_new_tokens = 2}});
  EXPECT_EQ(cut->text, "h\xef\xbf\xbd");
}

TEST(Engine, SamplesHaveTheirOwnEvents) {
  auto [engine, device] = make_test_engine();
  Collector collector(3);
  ASSERT_TRUE(
      engine->submit({.text = "abc", .sampling = {.max_new_tokens = 7, .n = 3}}, collector.sink()));
  ASSERT_TRUE(collector.wait_end());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(collector.result(i).output_ids.size(), 7u);
  const auto all = engine->generate_all({.text = "abc", .sampling = {.max_new_tokens = 2, .n = 5}});
  ASSERT_TRUE(all);
  EXPECT_EQ(all->size(), 5u);
}

TEST(Engine, LogprobsComeThrough) {
  auto [engine, device] = make_test_engine();
  const std::string prompt = "log this prompt";
  const auto size = static_cast<int32_t>(prompt.size());
  for (int round = 0; round < 2; ++round)  // cold, and with its prefix cached
    for (int32_t start : {-1, 0, 1, 5, size - 1, size}) {
      const auto r = engine->generate({.text = prompt,
                                       .sampling = {.max_new_tokens = 4},
                                       .return_logprob = true,
                                       .logprob_start_len = start,
                                       .top_logprobs_num = 2,
                                       .token_ids_logprob = {65}});
      ASSERT_TRUE(r) << r.error().to_string();
      const int32_t expected = start < 0 ? 0 : size - std::max(1, start);
      ASSERT_EQ(r->input_logprobs.size(), static_cast<size_t>(expected)) << start;
      for (int32_t i = 0; i < expected; ++i) {
        const auto at = static_cast<size_t>(std::max(1, start) + i);
        EXPECT_EQ(r->input_logprobs[static_cast<size_t>(i)].logprob,
                  NullExecutor::logprob_of(static_cast<unsigned char>(prompt[at])));
      }
      ASSERT_EQ(r->output_logprobs.size(), 4u);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(r->output_logprobs[i].logprob, NullExecutor::logprob_of(r->output_ids[i]));
        EXPECT_EQ(r->output_logprobs[i].top.size(), 2u);
        EXPECT_EQ(r->output_logprobs[i].wanted[0].first, 65);
      }
    }
  EXPECT_TRUE(engine->generate({.text = prompt})->output_logprobs.empty());
}

TEST(Engine, BadRequestsAreRefusedAtOnce) {
  auto [engine, device] = make_test_engine();
  const auto code = [&e = *engine](GenerateRequest r) {
    const auto result = e.submit(std::move(r), [](TokenEvent&&) { FAIL() << "an event"; });
    return result ? StatusCode::kOk : result.error().code();
  };
  EXPECT_EQ(code({.text = "a", .sampling = {.temperature = -1}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.text = "a", .sampling = {.regex = "x", .choices = {"x"}}}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.text = "a", .sampling = {.stop_regex = {"("}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.text = std::string(64 << 20, 'a')}), StatusCode::kInvalidArgument);
  for (const double weight : {0.0, -1.0, std::nan(""), HUGE_VAL})
    EXPECT_EQ(code({.text = "a", .tenant_weight = weight}), StatusCode::kInvalidArgument);
}

TEST(Engine, BadPromptsEndWithAnErrorThatGivesTheNumbers) {
  auto [engine, device] =
      make_test_engine({.config = {.cache = {.max_total_tokens = 50}}, .context_length = 100});
  EXPECT_EQ(engine->context_length(), 51);  // the last token needs no place
  EXPECT_EQ(max_input_len(*engine), 50);
  const auto failure = [&e = *engine](GenerateRequest r) {
    const auto result = e.generate(std::move(r));
    EXPECT_FALSE(result.has_value());
    return result ? Status() : result.error();
  };
  Status s = failure({.text = std::string(60, 'x')});
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(s.message(), AllOf(HasSubstr("60"), HasSubstr("at most 50")));
  s = failure({.text = std::string(40, 'x'), .sampling = {.max_new_tokens = 20}});
  EXPECT_THAT(s.message(), AllOf(HasSubstr("40"), HasSubstr("20"), HasSubstr("51")));
  EXPECT_THAT(failure({.text = ""}).message(), HasSubstr("empty"));
  EXPECT_THAT(failure({.input_ids = {5, 260}}).message(), HasSubstr("260"));
  EXPECT_THAT(failure({.input_ids = {5, -2}}).message(), HasSubstr("-2"));
  EXPECT_THAT(failure({.text = "abc", .return_logprob = true, .logprob_start_len = 4}).message(),
              HasSubstr("logprob_start_len"));
  EXPECT_TRUE(engine->generate({.text = std::string(50, 'x')}).has_value());
}

TEST(Engine, WithoutATokenizerIdsGoInAndComeOut) {
  auto [engine, device] = make_test_engine({.tokenizer = false});
  EXPECT_EQ(engine->tokenizer(), nullptr);
  const auto r = engine->generate({.input_ids = {1, 2, 3}, .sampling = {.max_new_tokens = 3}});
  ASSERT_TRUE(r);
  EXPECT_EQ(r->text, "");
  EXPECT_EQ(r->output_ids, Script().answer({1, 2, 3}, 3));
  EXPECT_EQ(engine->generate({.text = "a"}).error().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine->generate({.input_ids = {1}, .sampling = {.stop = {"x"}}}).error().code(),
            StatusCode::kFailedPrecondition);
}

TEST(Engine, RidsAreUniqueWhileTheyLive) {
  auto [engine, device] = make_test_engine({.step_delay = milliseconds(1)});
  Collector first;
  ASSERT_TRUE(engine->submit({.rid = "r", .text = "a", .sampling = {.max_new_tokens = 2000}},
                             first.sink()));
  const auto second = engine->submit({.rid = "r", .text = "b"}, [](TokenEvent&&) { FAIL(); });
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), StatusCode::kAlreadyExists);
  engine->abort("r", Scope::kExact);
  ASSERT_TRUE(first.wait_end());
  // Used again, and once more from inside its own last event.
  Collector third, fourth;
  ASSERT_TRUE(engine->submit(
      {.rid = "r", .text = "c", .sampling = {.max_new_tokens = 2}}, [&](TokenEvent&& event) {
        const bool last = event.finish.has_value();
        third.add(std::move(event));
        if (last) {
          EXPECT_TRUE(engine->submit({.rid = "r", .text = "d", .sampling = {.max_new_tokens = 2}},
                                     fourth.sink()));
        }
      }));
  EXPECT_TRUE(third.wait_end());
  EXPECT_TRUE(fourth.wait_end());
}

TEST(Engine, AbortMeansExactlyWhatItsScopeSays) {
  auto [engine, device] = make_test_engine({.step_delay = milliseconds(1)});
  const auto submit = [&e = *engine](const char* rid, Collector& c) {
    ASSERT_TRUE(
        e.submit({.rid = rid, .text = rid, .sampling = {.max_new_tokens = 3000}}, c.sink()));
    ASSERT_TRUE(c.wait_events(1));
  };
  Collector a, ab, abc, x;
  submit("a", a), submit("ab", ab), submit("abc", abc), submit("x", x);
  engine->abort("unknown", Scope::kExact);
  engine->abort("unknown", Scope::kPrefix);
  engine->abort("a", Scope::kExact);
  ASSERT_TRUE(a.wait_end());
  EXPECT_EQ(a.finish_type(), Type::kAbort);
  EXPECT_EQ(a.result().finish.status.code(), StatusCode::kAborted);
  EXPECT_EQ(engine->stats().requests.num_running, 3);
  engine->abort("ab", Scope::kPrefix);
  ASSERT_TRUE(ab.wait_end() && abc.wait_end());
  const int running_x = engine->stats().requests.num_running;
  EXPECT_EQ(running_x, 1);
  engine->abort("", Scope::kAll);
  ASSERT_TRUE(x.wait_end());
  EXPECT_EQ(x.finish_type(), Type::kAbort);
}

TEST(Engine, AbortReachesWhatWaits) {
  auto [engine, device] = make_test_engine(
      {.config = {.schedule = {.max_running_requests = 1}}, .step_delay = milliseconds(1)});
  Collector runs, waits;
  ASSERT_TRUE(engine->submit({.text = "a", .sampling = {.max_new_tokens = 3000}}, runs.sink()));
  ASSERT_TRUE(runs.wait_events(1));
  ASSERT_TRUE(engine->submit({.rid = "w", .text = "b"}, waits.sink()));
  engine->abort("w", Scope::kExact);
  ASSERT_TRUE(waits.wait_end());
  EXPECT_EQ(waits.finish_type(), Type::kAbort);
  EXPECT_EQ(waits.result().output_ids.size(), 0u);
  engine->abort("", Scope::kAll);
  ASSERT_TRUE(runs.wait_end());
}

TEST(Engine, AbortFromInsideASink) {
  auto [engine, device] = make_test_engine();
  Collector collector;
  ASSERT_TRUE(engine->submit({.rid = "me", .text = "a", .sampling = {.max_new_tokens = 4000}},
                             [&](TokenEvent&& event) {
                               if (event.stats.completion_tokens == 5)
                                 engine->abort("me", Scope::kExact);
                               collector.add(std::move(event));
                             }));
  ASSERT_TRUE(collector.wait_end());
  EXPECT_EQ(collector.finish_type(), Type::kAbort);
  EXPECT_LT(collector.result().output_ids.size(), 10u);
}

TEST(Engine, AbortsAtAnyMomentLeaveNothingBehind) {
  const uint64_t seed = 31;
  Rng rng(seed);
  auto [engine, device] = make_test_engine(
      {.config = {.cache = {.max_total_tokens = 600},
                  .schedule = {.max_running_requests = 8, .chunked_prefill_size = 16}}});
  std::list<Collector> collectors;
  for (int i = 0; i < 300; ++i) {
    Collector& c = collectors.emplace_back();
    const std::string rid = "r" + std::to_string(i);
    GenerateRequest request{
        .rid = rid,
        .text = std::string(1 + rng.below(80), 'a' + static_cast<char>(rng.below(3))),
        .sampling = {.max_new_tokens = static_cast<int32_t>(rng.below(60))}};
    if (rng.below(2)) request.input_ids = bytes_of(request.text);
    ASSERT_TRUE(engine->submit(std::move(request), c.sink()));
    if (rng.below(2)) c.wait_events(static_cast<int>(rng.below(2)));
    if (rng.below(2)) engine->abort(rid, Scope::kExact);
    if (rng.below(2)) engine->abort("r" + std::to_string(rng.below(300)), Scope::kExact);
  }
  for (Collector& c : collectors) ASSERT_TRUE(c.wait_end()) << "seed " << seed;
  EXPECT_TRUE(engine->flush_cache().ok());
  EXPECT_EQ(engine->stats().memory.kv_tokens_cached, 0);
  EXPECT_EQ(engine->stats().memory.kv_tokens_running, 0);
}

TEST(Engine, AFullQueueRefuses) {
  auto [engine, device] = make_test_engine(
      {.config = {.schedule = {.max_running_requests = 2, .max_queued_requests = 3}},
       .step_delay = milliseconds(1)});
  std::list<Collector> collectors;
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(engine->submit({.text = "x", .sampling = {.max_new_tokens = 3000}},
                               collectors.emplace_back().sink()));
  const auto refused = engine->submit({.text = "x"}, [](TokenEvent&&) { FAIL(); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  const auto never =
      engine->submit({.text = "x", .sampling = {.n = 6}}, [](TokenEvent&&) { FAIL(); });
  EXPECT_EQ(never.error().code(), StatusCode::kInvalidArgument);
  engine->abort("", Scope::kAll);
  for (Collector& c : collectors) ASSERT_TRUE(c.wait_end());
  const auto accepted = engine->generate({.text = "x", .sampling = {.max_new_tokens = 1}});
  EXPECT_TRUE(accepted) << accepted.error().to_string();
}

TEST(Engine, FlushNeedsAnIdleEngine) {
  auto [engine, device] = make_test_engine({.step_delay = milliseconds(1)});
  ASSERT_TRUE(engine->generate({.text = "warm up", .sampling = {.max_new_tokens = 4}}));
  EXPECT_GT(engine->stats().memory.kv_tokens_cached, 0);
  Collector c;
  ASSERT_TRUE(engine->submit({.text = "warm up", .sampling = {.max_new_tokens = 3000}}, c.sink()));
  EXPECT_EQ(engine->flush_cache().code(), StatusCode::kFailedPrecondition);
  engine->abort("", Scope::kAll);
  ASSERT_TRUE(c.wait_end());
  EXPECT_TRUE(engine->flush_cache().ok());
  const auto cold = engine->generate({.text = "warm up", .sampling = {.max_new_tokens = 4}});
  EXPECT_EQ(cold->stats.cached_tokens, 0);
}

TEST(Engine, DrainFinishesWhatIsThereAndRefusesTheRest) {
  auto [engine, device] = make_test_engine({.step_delay = milliseconds(1)});
  Collector c;
  ASSERT_TRUE(engine->submit({.text = "x", .sampling = {.max_new_tokens = 30}}, c.sink()));
  engine->drain(std::chrono::seconds(20));
  EXPECT_EQ(c.finish_type(), Type::kLength);
  EXPECT_EQ(c.result().output_ids.size(), 30u);
  const auto late = engine->submit({.text = "x"}, [](TokenEvent&&) { FAIL(); });
  EXPECT_EQ(late.error().code(), StatusCode::kUnavailable);
}

TEST(Engine, DrainAbortsWhatTakesTooLong) {
  auto [engine, device] = make_test_engine({.step_delay = milliseconds(1)});
  Collector c;
  ASSERT_TRUE(engine->submit({.text = "x", .sampling = {.max_new_tokens = 4000}}, c.sink()));
  engine->drain(milliseconds(20));
  EXPECT_EQ(c.finish_type(), Type::kAbort);
}

TEST(Engine, DestructionNotifiesEveryCaller) {
  std::list<Collector> collectors;
  {
    auto [engine, device] = make_test_engine(
        {.config = {.schedule = {.max_running_requests = 2}}, .step_delay = milliseconds(1)});
    for (int i = 0; i < 6; ++i)
      ASSERT_TRUE(engine->submit({.text = "x", .sampling = {.max_new_tokens = 4000}},
                                 collectors.emplace_back().sink()));
  }
  for (Collector& c : collectors) {
    ASSERT_TRUE(c.wait_end());
    EXPECT_EQ(c.finish_type(), Type::kAbort);
    EXPECT_EQ(c.result().finish.status.code(), StatusCode::kUnavailable);
  }
}

TEST(Engine, AFailedEntryEndsItsRequestAlone) {
  const uint64_t bad = NullExecutor::hash_history(bytes_of("bad"));
  auto executor = std::make_unique<NullExecutor>(NullExecutorConfig{
      .vocab_size = kByteVocabSize, .next_token = [bad](uint64_t h) -> Result<TokenId> {
        if (h == bad) return fail(error(StatusCode::kInternal, "logits are not finite"));
        return Script().next(h);
      }});
  auto engine = Engine::create({.cache = {.max_total_tokens = 1000}, .check_invariants = true},
                               {.tokenizer = make_byte_tokenizer(),
                                .executor = std::move(executor),
                                .info = {.vocab_size = kByteVocabSize, .context_length = 500}});
  ASSERT_TRUE(engine) << engine.error().to_string();
  Collector bad_one, good_one;
  ASSERT_TRUE(
      (*engine)->submit({.text = "good", .sampling = {.max_new_tokens = 50}}, good_one.sink()));
  ASSERT_TRUE(
      (*engine)->submit({.text = "bad", .sampling = {.max_new_tokens = 50}}, bad_one.sink()));
  ASSERT_TRUE(bad_one.wait_end() && good_one.wait_end());
  EXPECT_EQ(bad_one.finish_type(), Type::kError);
  EXPECT_THAT(bad_one.result().finish.status.message(), HasSubstr("not finite"));
  EXPECT_EQ(good_one.result().output_ids, Script().answer(bytes_of("good"), 50));
}

TEST(Engine, ExtraKeysShareNothing) {
  auto [engine, device] = make_test_engine();
  const auto cached = [&e = *engine](const char* key) {
    return e
        .generate({.text = "a common prefix", .sampling = {.max_new_tokens = 1}, .extra_key = key})
        ->stats.cached_tokens;
  };
  EXPECT_EQ(cached("tenant one"), 0);
  EXPECT_GT(cached("tenant one"), 0);
  EXPECT_EQ(cached("tenant two"), 0);
}

// Requests that share prefixes, from several threads, under every way of scheduling them: each
// answer is the one that its prompt defines.
struct CrowdCase {
  const char* name;
  EngineConfig config;
};

void PrintTo(const CrowdCase& c, std::ostream* out) { *out << c.name; }

class Crowd : public testing::TestWithParam<CrowdCase> {};

TEST_P(Crowd, GetsTheRightAnswers) {
  auto [engine, device] = make_test_engine({.config = GetParam().config});
  std::atomic<int> wrong{0};
  const auto client = [&, &e = *engine](uint64_t seed) {
    Rng rng(seed);
    std::list<Collector> collectors;
    std::vector<std::pair<std::vector<TokenId>, int>> expected;
    for (int i = 0; i < 60; ++i) {
      std::vector<TokenId> prompt(rng.below(60), 'p' + static_cast<TokenId>(rng.below(2)));
      for (auto more = 1 + rng.below(30); more > 0; --more)
        prompt.push_back('0' + static_cast<TokenId>(rng.below(3)));
      const auto count = static_cast<int32_t>(1 + rng.below(40));
      GenerateRequest request{.input_ids = prompt, .sampling = {.max_new_tokens = count}};
      ASSERT_TRUE(e.submit(std::move(request), collectors.emplace_back().sink()));
      expected.emplace_back(std::move(prompt), count);
    }
    size_t i = 0;
    for (Collector& c : collectors) {
      ASSERT_TRUE(c.wait_end());
      const auto& [prompt, count] = expected[i++];
      if (c.result().output_ids != Script().answer(prompt, count)) ++wrong;
    }
  };
  std::vector<std::thread> clients;
  for (uint64_t seed = 41; seed < 44; ++seed) clients.emplace_back(client, seed);
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(wrong, 0);
  const EngineStats s = engine->stats();
  EXPECT_EQ(s.requests.num_total, 180);
  EXPECT_EQ(device->num_steps(), s.steps.num_steps);
  EXPECT_EQ(device->num_waits(), s.steps.num_steps);  // no other synchronisation
  EXPECT_TRUE(engine->flush_cache().ok());
  EXPECT_EQ(engine->stats().memory.kv_tokens_cached, 0);
  if (std::string_view(GetParam().name) == "TinyPool") {
    EXPECT_GT(s.requests.num_retractions, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engine, Crowd,
    testing::Values(
        CrowdCase{"Plain", {}}, CrowdCase{"OneAtATime", {.schedule = {.max_running_requests = 1}}},
        CrowdCase{"SmallChunks", {.schedule = {.chunked_prefill_size = 3}}},
        CrowdCase{"Pages", {.cache = {.page_size = 4}, .schedule = {.chunked_prefill_size = 16}}},
        CrowdCase{"LargePages", {.cache = {.page_size = 64}}},
        CrowdCase{"TinyPool",
                  {.cache = {.max_total_tokens = 300},
                   .schedule = {.max_running_requests = 16, .schedule_conservativeness = 0.1}}},
        CrowdCase{"TinyPoolOfPages", {.cache = {.max_total_tokens = 320, .page_size = 8}}},
        CrowdCase{"NoOverlap",
                  {.compute = {.disable_overlap_schedule = true},
                   .schedule = {.chunked_prefill_size = 16}}},
        CrowdCase{"NoRadixCache",
                  {.cache = {.max_total_tokens = 500, .disable_radix_cache = true}}},
        CrowdCase{"Fcfs", {.schedule = {.schedule_policy = "fcfs"}}}),
    [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace espalier
