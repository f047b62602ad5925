// One behaviour of the scheduler at a time, each step by hand against the fake executor.
#include "engine/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/heap_count.h"
#include "engine/scheduler/scheduler_fixture.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
TEST_F(SchedulerTest, RefusesWhatCanNeverFit) {
  start(10, {.max_waiting = 1, .context_length = 50}, {.page_size = 2});
  EXPECT_EQ(scheduler_->max_sequence_tokens(), 21);
  EXPECT_EQ(add(1, {}, 1).code(), StatusCode::kInvalidArgument);
  const Status context = add(1, counting(0, 41), 10);
  EXPECT_EQ(context.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(context.message(), HasSubstr("41 tokens and max_new_tokens 10"));
  const Status pool = add(1, counting(0, 15), 7);
  EXPECT_EQ(pool.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(pool.message(), HasSubstr("need 21 tokens of KV memory; the pool has 20"));
  EXPECT_TRUE(add(2, counting(0, 15), 6).ok());
  EXPECT_EQ(add(3, counting(0, 15), 6).code(), StatusCode::kResourceExhausted);
  run();
  EXPECT_THAT(ends_, testing::SizeIs(1));
  EXPECT_EQ(outputs_[2].size(), 6u);
}

TEST_F(SchedulerTest, ChunksRunBesideDecode) {
  start(100, {.chunked_prefill_size = 4});
  ASSERT_TRUE(add(1, counting(0, 3), 10).ok());
  ASSERT_TRUE(add(2, counting(20, 9), 2).ok());
  EXPECT_THAT(step(), ElementsAre("1:0+3s", "2:0+1"));
  EXPECT_THAT(step(), ElementsAre("1:3+1s", "2:1+4"));
  EXPECT_THAT(step(), ElementsAre("1:4+1s", "2:5+4s"));
  EXPECT_THAT(step(), ElementsAre("1:5+1s", "2:9+1s"));
  EXPECT_THAT(step(), ElementsAre("1:6+1s"));
}

TEST_F(SchedulerTest, AnEndThatIsCertainGetsNoEntryAndOthersOneThatIsThrownAway) {
  start(100, {});
  ASSERT_TRUE(add(1, counting(0, 3), 2).ok());
  Tokens any_stop;
  for (TokenId token = 0; token < kFakeVocab; ++token) any_stop.push_back(token);
  ASSERT_TRUE(add(2, counting(20, 3), 5, -1, any_stop).ok());
  EXPECT_THAT(next(), ElementsAre("1:0+3s", "2:0+3s"));
  EXPECT_THAT(next(), ElementsAre("1:3+1s", "2:3+1s"));
  EXPECT_EQ(batches_[1].token_ids, (Tokens{kTokenFromSlot, kTokenFromSlot}));
  commit();
  EXPECT_EQ(ends_.at(2).reason.type, FinishReason::Type::kStop);
  EXPECT_EQ(std::get<TokenId>(ends_.at(2).reason.matched), outputs_[2].at(0));
  EXPECT_THAT(next(), IsEmpty());
  EXPECT_EQ(cache_->sizes().evictable, 0);  // the step in flight still reads
  commit();
  EXPECT_EQ(ends_.at(1).reason.type, FinishReason::Type::kLength);
  EXPECT_EQ(outputs_[2].size(), 1u);
  // Four of each: the entry that was thrown away has computed the stop token's keys and values.
  EXPECT_EQ(cache_->sizes().evictable, 8);
  EXPECT_TRUE(scheduler_->idle());
}

TEST_F(SchedulerTest, PrefillOnlyEndsWithoutAToken) {
  start(100, {.chunked_prefill_size = 4});
  ASSERT_TRUE(add(1, counting(0, 6), 0).ok());
  EXPECT_THAT(step(), ElementsAre("1:0+4"));
  EXPECT_THAT(step(), ElementsAre("1:4+2"));
  EXPECT_EQ(ends_.at(1).reason.type, FinishReason::Type::kLength);
  EXPECT_EQ(ends_.at(1).stats.completion_tokens, 0);
  EXPECT_TRUE(outputs_[1].empty());
}

TEST_F(SchedulerTest, TheLastPromptTokenIsComputedEvenWhenAllIsCached) {
  for (const int32_t page_size : {1, 4}) {
    start(100, {}, {.page_size = page_size});
    ASSERT_TRUE(add(1, counting(0, 8), 3).ok());
    run();
    ASSERT_TRUE(add(2, counting(0, 8), 1).ok());
    EXPECT_THAT(step(), ElementsAre(page_size == 1 ? "2:7+1s" : "2:4+4s"));
    EXPECT_EQ(ends_.at(2).stats.cached_tokens, page_size == 1 ? 7 : 4);
    EXPECT_EQ(outputs_[2].at(0), outputs_[1].at(0));
    ends_.clear();
    outputs_.clear();
  }
}

TEST_F(SchedulerTest, TheOutputOfOneTurnIsCachedForTheNext) {
  start(100, {});
  ASSERT_TRUE(add(1, counting(0, 5), 4).ok());
  run();
  Tokens turn = counting(0, 5);
  turn.insert(turn.end(), outputs_[1].begin(), outputs_[1].end());
  turn.push_back(1);
  ASSERT_TRUE(add(2, turn, 1).ok());
  EXPECT_THAT(step(), ElementsAre("2:8+2s"));  // all but the last output, which was never an input
}

TEST_F(SchedulerTest, InputLogprobsLimitReuse) {
  start(100, {.chunked_prefill_size = 3});
  ASSERT_TRUE(add(1, counting(0, 8), 1).ok());
  run();
  ASSERT_TRUE(add(2, counting(0, 8), 1, 5).ok());
  EXPECT_THAT(step(), ElementsAre("2:4+3"));
  EXPECT_THAT(step(), ElementsAre("2:7+1s"));
  EXPECT_THAT(input_positions_[2], ElementsAre(5, 6, 7));
  ASSERT_TRUE(add(3, counting(0, 8), 0, 0).ok());
  run();
  EXPECT_EQ(ends_.at(3).stats.cached_tokens, 0);
  EXPECT_THAT(input_positions_[3], ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST_F(SchedulerTest, SamplesOfOnePromptComputeItOnce) {
  start(300, {});
  for (SequenceId id = 1; id <= 5; ++id) ASSERT_TRUE(add(id, counting(0, 40), 3).ok());
  EXPECT_THAT(step(), ElementsAre("1:0+40s"));
  EXPECT_THAT(step(), ElementsAre("1:40+1s", "2:39+1s", "3:39+1s", "4:39+1s", "5:39+1s"));
  run();
  EXPECT_EQ(executor_->num_prompt_tokens_computed(), 44);
}

TEST_F(SchedulerTest, ACommonFirstTokenIsNotWaitedFor) {
  start(300, {});
  ASSERT_TRUE(add(1, counting(0, 20), 1).ok());
  Tokens other = counting(20, 20);
  other[0] = 0;
  ASSERT_TRUE(add(2, other, 1).ok());
  EXPECT_THAT(step(), ElementsAre("1:0+20s", "2:0+20s"));
}

TEST_F(SchedulerTest, AWaitingOneGoesOnWhenTheOneThatItWaitsForIsAborted) {
  start(300, {.chunked_prefill_size = 10});
  ASSERT_TRUE(add(1, counting(0, 40), 3).ok());
  ASSERT_TRUE(add(2, counting(0, 40), 1).ok());
  EXPECT_THAT(step(), ElementsAre("1:0+10"));
  scheduler_->abort(1, {.type = FinishReason::Type::kAbort});
  EXPECT_EQ(ends_.at(1).reason.type, FinishReason::Type::kAbort);
  EXPECT_THAT(step(), ElementsAre("2:10+10"));  // what was computed is not lost
}

TEST_F(SchedulerTest, LongestPrefixFirstOrFirstCome) {
  for (const SchedulePolicy policy : {SchedulePolicy::kLpm, SchedulePolicy::kFcfs}) {
    start(300, {.max_running = 1, .policy = policy});
    ASSERT_TRUE(add(1, counting(0, 10), 1).ok());
    run();
    ASSERT_TRUE(add(2, counting(20, 10), 1).ok());
    ASSERT_TRUE(add(3, counting(0, 12), 1).ok());
    const bool lpm = policy == SchedulePolicy::kLpm;
    EXPECT_THAT(step(), ElementsAre(lpm ? "3:10+2s" : "2:0+10s"));
    run();
    ends_.clear();
  }
}

TEST_F(SchedulerTest, StaticOrders) {
  const std::pair<SchedulePolicy, std::vector<SequenceId>> cases[] = {
      {SchedulePolicy::kFcfs, {1, 2, 3, 4}},
      {SchedulePolicy::kLof, {2, 4, 1, 3}},
      {SchedulePolicy::kPriority, {3, 2, 4, 1}},
  };
  for (const auto& [policy, expected] : cases) {
    start(300, {.max_running = 1, .policy = policy});
    const int32_t lengths[] = {3, 9, 2, 9}, priorities[] = {-1, 0, 5, 0};
    for (SequenceId id = 1; id <= 4; ++id) {
      priority_ = priorities[id - 1];
      ASSERT_TRUE(add(id, counting(static_cast<TokenId>(10 * id), 4), lengths[id - 1]).ok());
    }
    run();
    std::vector<SequenceId> order(ends_order_.end() - 4, ends_order_.end());
    EXPECT_EQ(order, expected) << schedule_policy_name(policy);
    ends_.clear();
  }
}

TEST_F(SchedulerTest, LpmBypassesUpToTheBound) {
  start(300, {.max_running = 1, .bypass_bound = 3});
  ASSERT_TRUE(add(1, counting(0, 10), 1).ok());
  run();
  ASSERT_TRUE(add(2, counting(20, 10), 1).ok());  // has no prefix
  SequenceId id = 3;
  int num_before = 0;
  for (; !ends_.contains(2); ++num_before) {
    ASSERT_TRUE(add(id++, counting(0, 12), 1).ok());  // always a better match
    step();
    ASSERT_LT(num_before, 10);
  }
  EXPECT_EQ(num_before, 3 + 1);
}

TEST_F(SchedulerTest, ASequenceThatDoesNotFitIsNotBypassedByOneThatWould) {
  start(20, {.policy = SchedulePolicy::kFcfs, .conservativeness = 2});
  ASSERT_TRUE(add(1, counting(0, 5), 8).ok());
  ASSERT_TRUE(add(2, counting(10, 12), 3).ok());
  ASSERT_TRUE(add(3, counting(30, 2), 1).ok());
  EXPECT_THAT(step(), ElementsAre("1:0+5s"));
  while (!ends_.contains(1)) EXPECT_THAT(step(), testing::SizeIs(1));
  EXPECT_THAT(step(), ElementsAre("2:0+12s", "3:0+2s"));
}

TEST_F(SchedulerTest, RetractionTakesTheLeastAndLosesNothing) {
  start(12, {.conservativeness = 0});
  ASSERT_TRUE(add(1, counting(0, 3), 8).ok());
  step();
  ASSERT_TRUE(add(2, counting(20, 3), 8).ok());
  while (scheduler_->stats().num_retractions == 0) ASSERT_FALSE(step().empty());
  EXPECT_GT(scheduler_->stats().new_token_ratio, 0.09);
  EXPECT_EQ(scheduler_->stats().num_waiting, 1);
  const Tokens before = outputs_[2];
  EXPECT_GE(before.size(), 2u);
  ASSERT_TRUE(add(3, counting(0, 4), 1).ok());  // a better match, but it comes later
  while (outputs_[2].size() == before.size()) ASSERT_FALSE(step().empty());
  EXPECT_TRUE(ends_.contains(1));
  EXPECT_FALSE(ends_.contains(3) && ends_.at(3).stats.finished < ends_.at(1).stats.finished);
  run();
  EXPECT_EQ(ends_.at(2).stats.num_retractions, 1);
  EXPECT_EQ(ends_.at(1).stats.num_retractions, 0);

  // The same tokens as alone.
  const Tokens crowd = outputs_[2];
  start(12, {});
  outputs_.clear();
  ends_.clear();
  ASSERT_TRUE(add(2, counting(20, 3), 8).ok());
  run();
  EXPECT_EQ(outputs_[2], crowd);
}

TEST_F(SchedulerTest, NobodyIsRetractedForPagesThatAreComingBack) {
  start(15, {.conservativeness = 0});
  Tokens any_stop;
  for (TokenId token = 0; token < kFakeVocab; ++token) any_stop.push_back(token);
  ASSERT_TRUE(add(1, counting(0, 4), 5, -1, any_stop).ok());
  ASSERT_TRUE(add(2, counting(10, 4), 5).ok());
  ASSERT_TRUE(add(3, counting(20, 4), 5).ok());
  EXPECT_THAT(next(), testing::SizeIs(3));
  EXPECT_THAT(next(), testing::SizeIs(3));
  commit();  // the first has ended, but a step in flight still reads its five pages
  EXPECT_THAT(next(), IsEmpty());
  commit();
  EXPECT_THAT(next(), ElementsAre("2:5+1s", "3:5+1s"));
  EXPECT_EQ(scheduler_->stats().num_retractions, 0);
}

TEST_F(SchedulerTest, AbortInEveryState) {
  const FinishReason abort = {.type = FinishReason::Type::kAbort};
  start(100, {.max_running = 1});
  scheduler_->abort(77, abort);  // unknown
  ASSERT_TRUE(add(1, counting(0, 3), 9).ok());
  ASSERT_TRUE(add(2, counting(9, 3), 9).ok());
  ASSERT_TRUE(add(3, counting(9, 3), 9).ok());
  next();
  scheduler_->abort(2, abort);  // waiting: at once
  EXPECT_TRUE(ends_.contains(2));
  next();
  scheduler_->abort(1, abort);  // in flight twice
  scheduler_->abort(1, abort);
  EXPECT_FALSE(ends_.contains(1));
  commit();
  EXPECT_FALSE(ends_.contains(1));
  EXPECT_THAT(next(), IsEmpty());  // its slot is not free yet
  commit();
  EXPECT_TRUE(ends_.contains(1));
  EXPECT_TRUE(outputs_[1].empty());
  EXPECT_THAT(step(), ElementsAre("3:0+3s"));
  scheduler_->abort(3, abort);  // nothing in flight: at once
  EXPECT_TRUE(ends_.contains(3));
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(cache_->sizes().in_use(), 0);
}

TEST_F(SchedulerTest, WithoutTheRadixCacheNothingIsReused) {
  start(100, {}, {.disable_radix_cache = true});
  ASSERT_TRUE(add(1, counting(0, 20), 2).ok());
  ASSERT_TRUE(add(2, counting(0, 20), 2).ok());
  EXPECT_THAT(step(), ElementsAre("1:0+20s", "2:0+20s"));
  run();
  EXPECT_EQ(scheduler_->stats().cached_tokens, 0);
  EXPECT_EQ(cache_->sizes().free, 100);
}

TEST_F(SchedulerTest, SteadyDecodeAllocatesNothing) {
  for (const int32_t page_size : {1, 16}) {
    start(64 * 400, {.max_running = 64}, {.page_size = page_size});
    for (SequenceId id = 1; id <= 64; ++id) {
      Tokens prompt = counting(static_cast<TokenId>(id), 30);
      prompt[0] = static_cast<TokenId>(id);
      SequenceSpec spec{.id = id,
                        .prompt_ids = prompt,
                        .sampling = std::make_shared<SamplingSpec>(),
                        .max_new_tokens = 300};
      ASSERT_TRUE(scheduler_->add(std::move(spec)).ok());
    }
    listening_ = false;
    StepResult result;
    ForwardBatch batches[2];
    const auto answer = [&](const ForwardBatch& batch) {
      result.step = batch.step;
      result.entries.resize(batch.entries.size());
      for (EntryResult& entry : result.entries) entry.token = 5;
    };
    ASSERT_TRUE(scheduler_->next(batches[0]));
    for (size_t i = 0; i < 250; ++i) {
      answer(batches[i % 2]);
      const int64_t before = num_heap_allocations();
      ASSERT_TRUE(scheduler_->next(batches[(i + 1) % 2]));
      scheduler_->commit(batches[i % 2], result);
      if (i >= 10) {
        ASSERT_EQ(num_heap_allocations() - before, 0) << "step " << i;
      }
    }
  }
}

TEST(SchedulePolicyTest, NamesAreParsed) {
  for (const char* name : {"lpm", "dfs-weight", "fcfs", "lof", "random", "priority"})
    EXPECT_EQ(schedule_policy_name(parse_schedule_policy(name).value()), name);
  EXPECT_THAT(parse_schedule_policy("best").error().message(),
              HasSubstr("lpm, dfs-weight, fcfs, lof, random, priority"));
}

}  // namespace
}  // namespace espalier
