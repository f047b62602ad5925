// Sessions: what a request continues, against a model that keeps every token; and in an engine.
#include "engine/requests/sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

using Tokens = std::vector<TokenId>;
using ::testing::HasSubstr;

class SessionsTest : public testing::Test {
 protected:
  Tokens begin(const SessionParams& params, const std::string& rid, Tokens ids) {
    auto started = table_.start(params, rid, ++last_, std::move(ids));
    EXPECT_TRUE(started) << started.error().to_string();
    return started ? started->prompt_ids : Tokens{};
  }
  void end(const Tokens& output) {
    for (const TokenId token : output) table_.append(last_, token);
    table_.finish(last_, true);
  }
  std::string refusal(const SessionParams& params, const std::string& rid, Tokens ids) {
    const auto started = table_.start(params, rid, last_ + 1, std::move(ids));
    EXPECT_FALSE(started);
    return started ? "" : started.error().message();
  }

  ManualClock clock_;
  SessionTable table_{{.num_sessions_max = 2, .leading = {1}}, clock_};
  RequestId last_ = 0;
};

TEST(SessionMemory, IsBoundedOverAllSessions) {
  ManualClock clock;
  SessionTable table({.num_bytes_max = 100000}, clock);
  ASSERT_TRUE(table.open({.id = "a", .capacity = 1 << 20}));
  ASSERT_TRUE(table.open({.id = "b", .capacity = 1 << 20, .timeout_seconds = 5}));
  const int64_t empty = table.num_bytes();
  ASSERT_TRUE(table.start({.id = "b"}, "b1", 1, Tokens(20000, 7)));
  EXPECT_NEAR(static_cast<double>(table.num_bytes() - empty), 80000, 1000);
  table.finish(1, true);
  const auto refused = table.start({.id = "a"}, "a1", 2, Tokens(20000, 7));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("--max-session-bytes"));
  EXPECT_EQ(table.open({.id = std::string(20000, 'x'), .capacity = 1}).error().code(),
            StatusCode::kResourceExhausted);
  table.check_invariants();
  clock.advance(std::chrono::seconds(6));  // b is gone, and its memory with it
  ASSERT_TRUE(table.start({.id = "a"}, "a1", 2, Tokens(20000, 7)));
  for (int i = 0; i < 1000; ++i) table.append(2, 3);
  table.check_invariants();
  ASSERT_TRUE(table.close("a").ok());
  EXPECT_EQ(table.num_bytes(), 0);
}

TEST_F(SessionsTest, ARequestContinuesAnother) {
  ASSERT_EQ(table_.open({.id = "s", .capacity = 100}).value(), "s");
  EXPECT_EQ(begin({.id = "s"}, "a", {1, 5, 6}), Tokens({1, 5, 6}));
  EXPECT_THAT(refusal({.id = "s", .rid = "a"}, "b", {7}),
              HasSubstr("'a' of session 's' still runs"));
  end({10, 11});
  EXPECT_EQ(table_.prompt({.id = "s", .rid = "a"}, {1, 7}).value(), Tokens({1, 5, 6, 10, 11, 7}));
  EXPECT_EQ(begin({.id = "s", .rid = "a"}, "b", {1, 7}), Tokens({1, 5, 6, 10, 11, 7}));
  end({12});
  EXPECT_EQ(begin({.id = "s", .rid = "b"}, "c", {8}), Tokens({1, 5, 6, 10, 11, 7, 12, 8}));
  end({});
  // A branch, with less of what it continues.
  EXPECT_EQ(begin({.id = "s", .rid = "a", .drop_previous_output = true}, "d", {9}),
            Tokens({1, 5, 6, 9}));
  end({13});
  EXPECT_EQ(begin({.id = "s", .rid = "c", .offset = 2}, "e", {9}), Tokens({1, 5, 9}));
  end({14});
  EXPECT_EQ(begin({.id = "s", .rid = "e"}, "f", {2}), Tokens({1, 5, 9, 14, 2}));
  end({});
  // A negative offset counts from the end, and no further than the beginning.
  EXPECT_EQ(table_.prompt({.id = "s", .rid = "c", .offset = -6}, {9}).value(), Tokens({1, 5, 9}));
  EXPECT_EQ(table_.prompt({.id = "s", .rid = "c", .offset = -99}, {9}).value(), Tokens({9}));
  EXPECT_EQ(table_.prompt({.id = "s", .offset = -1}, {1, 9}).value(), Tokens({1, 9}));
  // A request that names none begins anew, and keeps what begins every text.
  EXPECT_EQ(begin({.id = "s"}, "g", {1, 9}), Tokens({1, 9}));
  table_.check_invariants();
}

TEST_F(SessionsTest, ReplacingDropsWhatCameAfterAndAbortsWhatRuns) {
  ASSERT_TRUE(table_.open({.id = "s", .capacity = 100}));
  begin({.id = "s"}, "a", {5});
  end({10});
  begin({.id = "s", .rid = "a"}, "b", {6});  // runs
  table_.append(last_, 11);
  const auto started = table_.start({.id = "s", .rid = "a", .replace = true}, "c", 3, {7});
  ASSERT_TRUE(started);
  EXPECT_EQ(started->prompt_ids, Tokens({5, 10, 7}));
  EXPECT_EQ(started->replaced, std::vector<RequestId>{2});
  table_.append(2, 12);  // its step was in flight
  table_.finish(2, true);
  EXPECT_THAT(refusal({.id = "s", .rid = "b"}, "d", {1}), HasSubstr("no request 'b' to continue"));
  table_.check_invariants();
  // One that runs itself is continued from what it has said so far.
  table_.append(3, 13);
  const auto second = table_.start({.id = "s", .rid = "c", .replace = true}, "d", 4, {8});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->prompt_ids, Tokens({5, 10, 7, 13, 8}));
  EXPECT_EQ(second->replaced, std::vector<RequestId>{3});
  table_.append(3, 14);
  table_.finish(3, true);
  EXPECT_EQ(table_.prompt({.id = "s", .rid = "d", .replace = true}, {}).value(),
            Tokens({5, 10, 7, 13, 8}));
  // Without a rid: all of it.
  const auto third = table_.start({.id = "s", .replace = true}, "a", 5, {9});
  ASSERT_TRUE(third);
  EXPECT_EQ(third->prompt_ids, Tokens({9}));
  EXPECT_EQ(third->replaced, std::vector<RequestId>{4});
  table_.check_invariants();
}

TEST_F(SessionsTest, AStreamingOneContinuesItsLastRequest) {
  ASSERT_TRUE(table_.open({.id = "s", .capacity = 100, .streaming = true}));
  begin({.id = "s"}, "a", {5});
  end({10});
  EXPECT_EQ(begin({.id = "s"}, "b", {6}), Tokens({5, 10, 6}));
  table_.finish(last_, false);  // refused: as if it had not been
  EXPECT_EQ(begin({.id = "s"}, "b", {7}), Tokens({5, 10, 7}));
}

TEST_F(SessionsTest, AStreamingOneOnlyAppends) {
  ASSERT_TRUE(table_.open({.id = "s", .capacity = 100, .streaming = true}));
  // Of the first request too, which has nothing to continue.
  EXPECT_THAT(refusal({.id = "s", .replace = true}, "a", {5}), HasSubstr("session_params.replace"));
  begin({.id = "s"}, "a", {5});
  EXPECT_THAT(refusal({.id = "s", .replace = true}, "b", {6}), HasSubstr("session_params.replace"));
  end({10});
  EXPECT_THAT(refusal({.id = "s", .offset = 1}, "b", {6}), HasSubstr("session_params.offset"));
  EXPECT_THAT(refusal({.id = "s", .offset = -1}, "b", {6}), HasSubstr("session_params.offset"));
  EXPECT_THAT(refusal({.id = "s", .drop_previous_output = true}, "b", {6}),
              HasSubstr("session_params.drop_previous_output"));
  EXPECT_THAT(refusal({.id = "s", .rid = "a", .offset = 1}, "b", {6}), HasSubstr("'s' is one"));
  EXPECT_FALSE(table_.prompt({.id = "s", .offset = 1}, {6}));
  table_.check_invariants();
  // What was refused has left the session as it was.
  EXPECT_EQ(begin({.id = "s", .offset = 0}, "b", {6}), Tokens({5, 10, 6}));
}

TEST_F(SessionsTest, WhatIsWrongIsSaid) {
  EXPECT_THAT(refusal({.id = "s"}, "a", {1}), HasSubstr("session 's' is not open"));
  EXPECT_THAT(table_.open({.id = "s"}).error().message(), HasSubstr("capacity_of_str_len is 0"));
  EXPECT_THAT(table_.open({.capacity = 1, .timeout_seconds = -1}).error().message(),
              HasSubstr("timeout is -1"));
  ASSERT_TRUE(table_.open({.id = "s", .capacity = 4}));
  EXPECT_EQ(table_.open({.id = "s", .capacity = 4}).error().code(), StatusCode::kAlreadyExists);
  const std::string made = table_.open({.capacity = 1}).value();
  EXPECT_EQ(made.size(), 32u);
  EXPECT_EQ(table_.open({.capacity = 1}).error().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(table_.close(made).ok());
  EXPECT_THAT(table_.close(made).message(), HasSubstr("is not open"));
  begin({.id = "s"}, "a", {5, 6});
  end({7});
  EXPECT_THAT(refusal({.id = "s"}, "a", {5}), HasSubstr("has had a request 'a' before"));
  EXPECT_THAT(refusal({.id = "s", .rid = "a", .offset = 4}, "b", {5}), HasSubstr("offset is 4"));
  EXPECT_THAT(refusal({.id = "s", .rid = "a"}, "b", {5, 6}),
              HasSubstr("would hold 5 bytes of text, but was opened for 4"));
  begin({.id = "s", .rid = "a"}, "b", {5});
  table_.check_invariants();
}

TEST_F(SessionsTest, TimesOutWhenNothingRuns) {
  using std::chrono::seconds;
  ASSERT_TRUE(table_.open({.id = "s", .capacity = 100, .timeout_seconds = 10}));
  ASSERT_TRUE(table_.open({.id = "forever", .capacity = 100}));
  clock_.advance(seconds(9));
  begin({.id = "s"}, "a", {5});
  clock_.advance(seconds(100));
  EXPECT_EQ(table_.num_open(), 2);
  end({6});
  clock_.advance(seconds(9));
  begin({.id = "s", .rid = "a"}, "b", {5});
  end({6});
  clock_.advance(seconds(11));
  EXPECT_THAT(refusal({.id = "s", .rid = "b"}, "c", {1}), HasSubstr("not open"));
  EXPECT_EQ(table_.num_open(), 1);
  table_.check_invariants();
}

// Random requests against a map of whole texts.
TEST_F(SessionsTest, RandomRequestsContinueWhatTheySay) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    SessionTable table({}, clock_);
    struct Known {
      std::string parent;
      Tokens tokens;
      size_t prompt_len = 0;
    };
    std::map<std::string, Known> known;
    ASSERT_TRUE(table.open({.id = "s", .capacity = 1 << 20}));
    for (RequestId id = 1; id <= 300; ++id) {
      SessionParams params{.id = "s"};
      Tokens base;
      if (!known.empty() && rng.below(8) > 0) {
        const auto it = std::next(known.begin(), static_cast<long>(rng.below(known.size())));
        params.rid = it->first;
        base = it->second.tokens;
        params.drop_previous_output = rng.below(4) == 0;
        if (params.drop_previous_output) base.resize(it->second.prompt_len);
        if (rng.below(4) == 0) params.offset = static_cast<int32_t>(rng.below(base.size() + 1));
        if (params.offset > 0) base.resize(static_cast<size_t>(params.offset));
      }
      params.replace = rng.below(10) == 0;
      if (params.replace) {
        std::vector<std::string> gone = {params.rid};
        for (size_t i = 0; i < gone.size(); ++i)
          for (const auto& [rid, one] : known)
            if (one.parent == gone[i] && rid != params.rid) gone.push_back(rid);
        for (size_t i = 1; i < gone.size(); ++i) known.erase(gone[i]);
      }
      Tokens ids;
      for (auto n = 1 + rng.below(5); n > 0; --n) ids.push_back(static_cast<TokenId>(rng.below(9)));
      base.insert(base.end(), ids.begin(), ids.end());
      const std::string rid = std::to_string(id);
      const auto started = table.start(params, rid, id, ids);
      ASSERT_TRUE(started) << started.error().to_string();
      ASSERT_EQ(started->prompt_ids, base);
      const bool kept = rng.below(6) > 0;
      Known one{params.rid, base, base.size()};
      for (auto n = rng.below(5); kept && n > 0; --n) {
        one.tokens.push_back(static_cast<TokenId>(n));
        table.append(id, one.tokens.back());
      }
      table.finish(id, kept);
      if (kept) known[rid] = one;
      table.check_invariants();
    }
    EXPECT_TRUE(table.close("s").ok());
    table.check_invariants();
  }
}

GenerateRequest turn(std::string_view text, const std::string& rid, SessionParams session) {
  GenerateRequest request;
  request.rid = rid;
  request.text = text;
  request.sampling = {.max_new_tokens = 6, .temperature = 0.0f};
  request.session = std::move(session);
  return request;
}

TEST(SessionEngine, KeysAndValuesOfWhatIsContinuedAreReused) {
  TestEngine test = make_test_engine();
  Engine& engine = *test.engine;
  const std::string s = engine.open_session({.capacity = 1000}).value();
  EXPECT_EQ(engine.stats().sessions.num_open, 1);
  const GenerateResult one = engine.generate(turn("Once upon a time", "1", {.id = s})).value();
  EXPECT_EQ(one.stats.cached_tokens, 0);
  Tokens whole = bytes_of("Once upon a time");
  EXPECT_EQ(one.output_ids, Script().answer(whole, 6));
  whole.insert(whole.end(), one.output_ids.begin(), one.output_ids.end());
  for (const TokenId id : bytes_of(" and then")) whole.push_back(id);
  const GenerateResult two = engine.generate(turn(" and then", "2", {.id = s, .rid = "1"})).value();
  EXPECT_EQ(two.stats.prompt_tokens, static_cast<int32_t>(whole.size()));
  // All of the first turn but its last token, which was sampled and never read.
  EXPECT_EQ(two.stats.cached_tokens, 16 + 6 - 1);
  EXPECT_EQ(two.output_ids, Script().answer(whole, 6));

  // A branch beside it, and one that replaces it.
  const GenerateResult branch = engine.generate(turn(" or", "3", {.id = s, .rid = "1"})).value();
  EXPECT_GE(branch.stats.cached_tokens, 16 + 6 - 1);  // " " of the turn before as well
  ASSERT_TRUE(engine.generate(turn(" so", "4", {.id = s, .rid = "1", .replace = true})));
  const auto gone = engine.generate(turn(" x", "5", {.id = s, .rid = "2"}));
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), StatusCode::kInvalidArgument);

  GenerateRequest several = turn("x", "6", {.id = s});
  several.sampling.n = 2;
  EXPECT_THAT(engine.generate(std::move(several)).error().message(), HasSubstr("one sample"));
  ASSERT_TRUE(engine.close_session(s).ok());
  EXPECT_THAT(engine.generate(turn("x", "7", {.id = s})).error().message(), HasSubstr("not open"));
}

// A prompt that turns out too long leaves the session as it was; what runs can be replaced.
TEST(SessionEngine, RefusedAndReplacedRequests) {
  TestEngine test =
      make_test_engine({.step_delay = std::chrono::milliseconds(20), .context_length = 100});
  Engine& engine = *test.engine;
  const std::string line = engine.open_session({.capacity = 1000, .streaming = true}).value();
  ASSERT_TRUE(engine.generate(turn("ab", "1", {.id = line})));
  EXPECT_FALSE(engine.generate(turn(std::string(100, 'x'), "2", {.id = line})));
  EXPECT_FALSE(engine.generate(turn("cd", "2", {.id = line, .rid = "1", .replace = true})));
  const GenerateResult two = engine.generate(turn("cd", "2", {.id = line})).value();
  EXPECT_EQ(two.stats.prompt_tokens, 2 + 6 + 2);

  const std::string s = engine.open_session({.capacity = 1000}).value();
  ASSERT_TRUE(engine.generate(turn("ab", "1", {.id = s})));
  Collector replaced;
  GenerateRequest longer = turn("ef", "3", {.id = s, .rid = "1"});
  longer.sampling.max_new_tokens = 80;
  ASSERT_TRUE(engine.submit(std::move(longer), replaced.sink()));
  ASSERT_TRUE(replaced.wait_events(3));
  EXPECT_THAT(engine.generate(turn("gh", "4", {.id = s, .rid = "3"})).error().message(),
              HasSubstr("still runs"));
  ASSERT_TRUE(engine.generate(turn("gh", "4", {.id = s, .rid = "1", .replace = true})));
  ASSERT_TRUE(replaced.wait_end());
  EXPECT_EQ(replaced.finish_type(), FinishReason::Type::kAbort);
  // Closed while one runs: it goes on.
  Collector last;
  ASSERT_TRUE(engine.submit(turn("ij", "5", {.id = s}), last.sink()));
  ASSERT_TRUE(engine.close_session(s).ok());
  ASSERT_TRUE(last.wait_end());
}

}  // namespace
}  // namespace espalier
