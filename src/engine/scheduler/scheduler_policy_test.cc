// Who goes first, and who is never forgotten: fair shares, preemption, aging, the bound on what
// prompts may add to a step; and prefixes that are shared as early as can be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <tuple>

#include "base/rng.h"
#include "engine/scheduler/scheduler_fixture.h"
#include "engine/scheduler/step_time.h"
#include "engine/scheduler/waiting_tree.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// The index against a sort of all, while sequences come and go and the cache changes under it.
void compare_with_sort(uint64_t seed) {
  Rng rng(seed);
  const int32_t page_size = rng.below(3) == 0 ? 4 : 1;
  auto cache = make_prefix_cache({.num_pages = 60, .page_size = page_size}).value();
  WaitingTree tree(WaitingTree::Order::kLongestMatch, *cache);
  std::vector<std::unique_ptr<Sequence>> waiting;
  int64_t num_made = 0;
  const auto random_tokens = [&] {
    Tokens tokens;
    for (auto n = rng.between(1, 30); n > 0; --n)
      tokens.push_back(static_cast<TokenId>(rng.below(8) == 0 ? 1 : 0));
    return tokens;
  };
  const auto random_namespace = [&] { return std::string(rng.below(3) == 0 ? "x" : ""); };
  for (int event = 0; event < 300; ++event) {
    const uint64_t kind = rng.below(8);
    if (kind < 3) {
      auto s = std::make_unique<Sequence>();
      s->tokens = random_tokens();
      s->prompt_len = s->logprobs.next = s->logprobs.end = s->num_tokens();
      s->spec.cache_namespace = random_namespace();
      s->queue.rank.order = num_made++;
      tree.add(*s);
      waiting.push_back(std::move(s));
    } else if (kind == 3 && !waiting.empty()) {
      const size_t i = rng.below(waiting.size());
      tree.remove(*waiting[i]);
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (kind < 6) {
      const Tokens tokens = random_tokens();
      const std::string name_space = random_namespace();
      SequencePages pages = cache->begin(name_space, tokens);
      if (!cache->grow(pages, static_cast<int32_t>(tokens.size()))) continue;
      cache->finish(std::move(pages), tokens);
      tree.on_stored(name_space, tokens);
    } else if (kind == 6) {
      cache->evict(static_cast<int32_t>(rng.below(20)));
    }
    tree.check_invariants();
    if (event % 5 != 0) continue;
    std::vector<Sequence*> expected;
    for (const auto& s : waiting) expected.push_back(s.get());
    const auto rank = [&](const Sequence* s) {
      const int32_t matched =
          cache->match(s->spec.cache_namespace, s->first_tokens(s->match_limit()));
      return std::pair(-matched, s->queue.rank.order);
    };
    std::sort(expected.begin(), expected.end(),
              [&](const Sequence* a, const Sequence* b) { return rank(a) < rank(b); });
    for (Sequence* s : expected) {
      ASSERT_EQ(tree.first(), s) << "event " << event;
      tree.defer(*s, 1 << 20);
    }
    ASSERT_EQ(tree.first(), nullptr);
    tree.restore_deferred();
    tree.check_invariants();
  }
  while (!waiting.empty()) {
    tree.remove(*waiting.back());
    waiting.pop_back();
  }
  tree.check_invariants();
}

TEST(WaitingTree, OrdersAsASortOfAllWould) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    compare_with_sort(seed);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(WaitingTree, SequencesThatShareAPrefixAreDeferredTogether) {
  auto cache = make_prefix_cache({.num_pages = 60}).value();
  WaitingTree tree(WaitingTree::Order::kLongestMatch, *cache);
  std::vector<std::unique_ptr<Sequence>> all;
  for (int i = 0; i < 1000; ++i) {
    auto s = std::make_unique<Sequence>();
    s->tokens = counting(0, 20);
    s->tokens.push_back(i);
    s->tokens.push_back(i);
    if (i == 500) s->tokens[10] = 49;  // parts from the others there
    s->prompt_len = s->logprobs.next = s->logprobs.end = s->num_tokens();
    s->queue.rank.order = i;
    tree.add(*s);
    all.push_back(std::move(s));
  }
  EXPECT_EQ(tree.first(), all[0].get());
  tree.defer(*all[0], 15);
  EXPECT_EQ(tree.first(), all[500].get());
  tree.defer(*all[500], 15);
  EXPECT_EQ(tree.first(), nullptr);
  tree.restore_deferred();
  tree.defer(*all[0], 8);
  EXPECT_EQ(tree.first(), nullptr);
  tree.restore_deferred();
  EXPECT_EQ(tree.first(), all[0].get());
  for (const auto& s : all) tree.remove(*s);
}

// The guarantee of the README, for every policy: a sequence that the policy would never take goes
// first once as many as stood before it and bypass_bound more have gone.
TEST_F(SchedulerTest, NobodyStarvesUnderAnyPolicy) {
  for (const SchedulePolicy policy :
       {SchedulePolicy::kLpm, SchedulePolicy::kDfsWeight, SchedulePolicy::kFcfs,
        SchedulePolicy::kLof, SchedulePolicy::kRandom, SchedulePolicy::kPriority}) {
    SCOPED_TRACE(schedule_policy_name(policy));
    constexpr int32_t kBypasses = 10, kBefore = 3;
    start(3000, {.max_running = 1, .policy = policy, .bypass_bound = kBypasses});
    ends_.clear();
    ends_order_.clear();
    ASSERT_TRUE(add(1, counting(0, 10), 1).ok());
    run();
    SequenceId id = 2;
    priority_ = 5;
    for (int i = 0; i < kBefore; ++i) ASSERT_TRUE(add(id++, counting(0, 12), 9).ok());
    const SequenceId victim = id++;
    priority_ = -5;
    ASSERT_TRUE(add(victim, counting(20, 10), 1).ok());
    priority_ = 5;
    while (!ends_.contains(victim)) {
      while (scheduler_->stats().num_waiting < 4) ASSERT_TRUE(add(id++, counting(0, 12), 9).ok());
      ASSERT_FALSE(step().empty());
      ASSERT_LT(ends_order_.size(), 100u);
    }
    EXPECT_LE(ends_order_.size(), 2u + kBefore + kBypasses);
    // One ran before all; the victim is the last.
    std::printf("%-11s %zu went before it; the bound is %d\n",
                std::string(schedule_policy_name(policy)).c_str(), ends_order_.size() - 2,
                kBefore + kBypasses);
    run();
  }
}

TEST_F(SchedulerTest, AFloodOfOneTenantDoesNotStopTheOthers) {
  start(3000, {.max_running = 2, .max_waiting = 1000, .fair_share = FairShare::kTenant});
  SequenceId id = 1;
  cache_namespace_ = "flood";
  for (; id <= 300; ++id) ASSERT_TRUE(add(id, counting(0, 10), 4).ok());
  step();
  step();
  cache_namespace_ = "quiet";
  for (; id <= 310; ++id) ASSERT_TRUE(add(id, counting(static_cast<TokenId>(id % 40), 10), 4).ok());
  while (!ends_.contains(310)) ASSERT_FALSE(step().empty());
  // A sequence of ten tokens in and four out is a service of 18 at most; the flood's cost 8 and one
  // token each, for they share their prompt. In turn, ten of one and twice as many of the other.
  EXPECT_LE(ends_order_.size(), 40u);
  run();
  EXPECT_EQ(ends_.size(), 310u);
}

// Without cached prefixes each step of a search computes all of its tokens anew.
TEST_F(SchedulerTest, ASearchIsChargedForWhatItComputesAnew) {
  start(3000, {.max_running = 1, .max_waiting = 1000, .fair_share = FairShare::kTenant},
        {.disable_radix_cache = true});
  cache_namespace_ = "search";
  num_generated_ = 5;
  SequenceId id = 1;
  for (; id <= 20; ++id) ASSERT_TRUE(add(id, counting(static_cast<TokenId>(id), 50), 0).ok());
  cache_namespace_ = "other";
  num_generated_ = 0;
  for (; id <= 40; ++id) ASSERT_TRUE(add(id, counting(static_cast<TokenId>(id), 50), 0).ok());
  while (ends_order_.size() < 20) ASSERT_FALSE(step().empty());
  const auto num_others =
      std::ranges::count_if(ends_order_, [](SequenceId one) { return one > 20; });
  EXPECT_NEAR(static_cast<double>(num_others), 10.0, 2.0);
  run();
}

// One request with as many samples as there are slots: each sample is a sequence of its tenant's.
TEST_F(SchedulerTest, ATenantThatHoldsAllSlotsGivesThemBackToAnother) {
  start(3000, {.max_running = 8, .max_waiting = 1000, .fair_share = FairShare::kTenant});
  cache_namespace_ = "hostile";
  for (SequenceId id = 1; id <= 32; ++id) ASSERT_TRUE(add(id, counting(0, 10), 200).ok());
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(scheduler_->stats().num_running, 8);
  cache_namespace_ = "other";
  for (SequenceId id = 101; id <= 108; ++id)
    ASSERT_TRUE(add(id, counting(static_cast<TokenId>(id % 40), 10), 40).ok());
  int num_steps = 0;
  for (; !outputs_.contains(101) && num_steps < 20; ++num_steps) step();
  EXPECT_LE(num_steps, 10);
  const auto tokens_of = [&](SequenceId first, SequenceId last) {
    size_t count = 0;
    for (SequenceId id = first; id <= last; ++id) count += outputs_[id].size();
    return static_cast<double>(count);
  };
  const double before = tokens_of(1, 32);
  while (!ends_.contains(104)) ASSERT_FALSE(step().empty());
  const double other = tokens_of(101, 108), hostile = tokens_of(1, 32) - before;
  EXPECT_GE(other / (other + hostile), 0.45);
  run();
  EXPECT_EQ(ends_.size(), 40u);
  for (SequenceId id = 1; id <= 32; ++id)
    EXPECT_EQ(outputs_[id].size(), 200u) << "no token is lost";
}

// Two tenants that always have something waiting, with weights 3 and 1: tokens of output, counted
// over full slots, for answers of different lengths.
TEST_F(SchedulerTest, TokensAreInProportionToWeights) {
  for (const int32_t heavy_length : {5, 20, 200}) {
    SCOPED_TRACE(heavy_length);
    start(3000, {.max_running = 8, .max_waiting = 1000, .fair_share = FairShare::kTenant});
    outputs_.clear();
    ends_.clear();
    ends_order_.clear();
    struct Tenant {
      const char* name;
      double weight;
      int32_t length;
      SequenceId first, next;
      int64_t num_ended = 0, num_tokens = 0;
    };
    Tenant tenants[] = {{"heavy", 3, heavy_length, 1, 1}, {"light", 1, 30, 100'001, 100'001}};
    for (int i = 0; i < 1000; ++i) {
      for (Tenant& t : tenants) {
        tenant_ = t.name;
        share_weight_ = t.weight;
        for (; static_cast<int64_t>(t.next - t.first) < t.num_ended + 30; ++t.next)
          ASSERT_TRUE(add(t.next, counting(static_cast<TokenId>(t.next % 40), 6), t.length).ok());
      }
      ASSERT_FALSE(step().empty());
      for (; !ends_order_.empty(); ends_order_.pop_back())
        ++tenants[ends_order_.back() > 100'000 ? 1 : 0].num_ended;
    }
    for (const auto& [id, tokens] : outputs_)
      tenants[id > 100'000 ? 1 : 0].num_tokens += std::ssize(tokens);
    const int64_t num_heavy = tenants[0].num_tokens, num_light = tenants[1].num_tokens;
    const double ratio = static_cast<double>(num_heavy) / static_cast<double>(num_light);
    std::printf("weights 3:1, answers of %d and 30 tokens: %.2f\n", heavy_length, ratio);
    EXPECT_GE(ratio, 2.7);
    EXPECT_LE(ratio, 3.3);
  }
}

// Answers of different lengths, so that the tenants' slots drift about their parts.
TEST_F(SchedulerTest, TenantsThatHoldAboutTheirPartsHardlyPreemptEachOther) {
  start(9000, {.max_running = 64, .max_waiting = 1000, .fair_share = FairShare::kTenant});
  SequenceId id = 1;
  for (int i = 0; i < 1000; ++i) {
    for (; id < ends_order_.size() + 300; ++id) {
      tenant_ = id % 2 == 0 ? "a" : "b";
      const auto length = static_cast<int32_t>(5 + id * 7919 % 40);
      ASSERT_TRUE(add(id, counting(static_cast<TokenId>(id % 40), 6), length).ok());
    }
    ASSERT_FALSE(step().empty());
  }
  std::printf("%ld preemptions, %zu answers\n",
              static_cast<long>(scheduler_->stats().num_preemptions), ends_order_.size());
  EXPECT_LE(scheduler_->stats().num_preemptions, std::ssize(ends_order_) / 40);
}

TEST_F(SchedulerTest, ATenantWithManyCacheNamespacesHasOneShare) {
  start(3000, {.max_running = 8, .max_waiting = 1000, .fair_share = FairShare::kTenant});
  tenant_ = "hostile";
  for (SequenceId id = 1; id <= 64; ++id) {
    cache_namespace_ = "hostile/" + std::to_string(id);
    ASSERT_TRUE(add(id, counting(0, 10), 50).ok());
  }
  tenant_ = cache_namespace_ = "other";
  for (SequenceId id = 101; id <= 140; ++id)
    ASSERT_TRUE(add(id, counting(static_cast<TokenId>(id % 40), 10), 50).ok());
  for (int i = 0; i < 150; ++i) ASSERT_FALSE(step().empty());
  int64_t hostile = 0, other = 0;
  for (const auto& [id, tokens] : outputs_) (id > 100 ? other : hostile) += std::ssize(tokens);
  EXPECT_GE(static_cast<double>(other) / static_cast<double>(other + hostile), 0.45);
}

TEST_F(SchedulerTest, WhoHasPriorityTakesTheirPlaces) {
  const auto config = [](int32_t threshold) {
    return SchedulerConfig{.max_running = 2,
                           .policy = SchedulePolicy::kPriority,
                           .priority_preemption_threshold = threshold};
  };
  start(100, config(3));
  priority_ = 1;
  ASSERT_TRUE(add(1, counting(0, 5), 9).ok());
  priority_ = 0;
  ASSERT_TRUE(add(2, counting(10, 5), 9).ok());
  EXPECT_THAT(step(), ElementsAre("1:0+5s", "2:0+5s"));
  priority_ = 2;
  ASSERT_TRUE(add(3, counting(20, 5), 2).ok());
  EXPECT_THAT(step(), ElementsAre("1:5+1s", "2:5+1s"));  // not so much higher
  priority_ = 3;
  ASSERT_TRUE(add(4, counting(30, 5), 2).ok());
  EXPECT_THAT(step(), ElementsAre("1:6+1s", "2:6+1s"));  // the entries were chosen before
  EXPECT_THAT(step(), ElementsAre("1:7+1s", "4:0+5s"));
  EXPECT_EQ(scheduler_->stats().num_preemptions, 1);
  EXPECT_THAT(step(), ElementsAre("1:8+1s", "4:5+1s"));
  run();
  EXPECT_EQ(ends_.at(2).stats.num_retractions, 1);
  EXPECT_EQ(ends_.at(1).stats.num_retractions, 0);
  EXPECT_THAT(ends_order_, ElementsAre(4, 3, 1, 2));
  const Tokens crowd = outputs_[2];
  start(100, config(0));
  outputs_.clear();
  ends_.clear();
  ASSERT_TRUE(add(2, counting(10, 5), 9).ok());
  run();
  EXPECT_EQ(outputs_[2], crowd);
}

TEST_F(SchedulerTest, MemoryIsTakenFromLowerPriorities) {
  start(20, {.policy = SchedulePolicy::kPriority, .priority_preemption_threshold = 1});
  ASSERT_TRUE(add(1, counting(0, 8), 6).ok());
  EXPECT_THAT(step(), ElementsAre("1:0+8s"));
  priority_ = 1;
  ASSERT_TRUE(add(2, counting(20, 15), 3).ok());
  while (!ends_.contains(2)) ASSERT_FALSE(step().empty());
  EXPECT_FALSE(ends_.contains(1));
  run();
  EXPECT_EQ(outputs_[1].size(), 6u);
}

// A step costs 10 ms and 1 ms for each prompt token; decode entries shall not wait longer than 60.
TEST_F(SchedulerTest, PromptsKeepWithinTheInterTokenBound) {
  seconds_of_ = [](const ForwardBatch& batch) {
    double seconds = 0.010;
    for (const BatchEntry& entry : batch.entries)
      if (entry.num_query_tokens > 1) seconds += 0.001 * entry.num_query_tokens;
    return seconds;
  };
  start(3000, {.chunked_prefill_size = 500, .step_bound = {.seconds = 0.060}});
  ASSERT_TRUE(add(1, counting(0, 300), 60).ok());
  EXPECT_THAT(step(), ElementsAre("1:0+300s"));  // nobody waits for a token
  step();
  for (SequenceId id = 2; id <= 5; ++id)
    ASSERT_TRUE(add(id, counting(static_cast<TokenId>(id * 5), 400), 1).ok());
  int num_steps = 0;
  double slowest = 0;
  while (!ends_.contains(1)) {
    ForwardBatch& batch = batches_[num_launched_ % 2];
    ASSERT_FALSE(next().empty());
    if (num_steps++ > 0) slowest = std::max(slowest, seconds_of_(batch));  // the first one learns
    commit();
  }
  EXPECT_LE(slowest, 0.0605);
  EXPECT_GE(slowest, 0.050);  // and uses what it may
  run();
  EXPECT_EQ(ends_.size(), 5u);
}

// A token costs more the more tokens are before it, as on a CPU: behind 800 as much as a decode
// entry.
TEST_F(SchedulerTest, PromptsTakeNoMoreOfAStepThanDecode) {
  seconds_of_ = [](const ForwardBatch& batch) {
    double seconds = 0.010;
    for (const BatchEntry& entry : batch.entries)
      for (int32_t i = 0; entry.num_query_tokens > 1 && i < entry.num_query_tokens; ++i)
        seconds += 0.0002 * (1 + (entry.prefix_len + i) / 64.0);
    return seconds;
  };
  start(8000, {.chunked_prefill_size = 500, .context_length = 2000, .step_bound = {.ratio = 2}});
  ASSERT_TRUE(add(1, counting(0, 4), 900).ok());
  for (int i = 0; i < 20; ++i) step();
  for (SequenceId id = 2; id <= 6; ++id)
    ASSERT_TRUE(add(id, counting(static_cast<TokenId>(id * 5), 800), 1).ok());
  std::vector<double> seconds;
  while (ends_.size() < 5 && !ends_.contains(1)) {
    ForwardBatch& batch = batches_[num_launched_ % 2];
    ASSERT_FALSE(next().empty());
    seconds.push_back(seconds_of_(batch));
    commit();
  }
  EXPECT_EQ(ends_.size(), 5u) << "prompts have half of the time";
  std::ranges::sort(seconds);
  EXPECT_LE(seconds[seconds.size() * 98 / 100], 0.025);
  EXPECT_LE(seconds.back(), 0.100) << "while nothing is known, too";
  EXPECT_GE(seconds[seconds.size() / 2], 0.016);
}

// Behind it no token is to come, and the step that computes it is no longer for that.
TEST_F(SchedulerTest, TheLastTokenWaitsNoLongerThanOthers) {
  seconds_of_ = [](const ForwardBatch& batch) {
    return 0.010 + 0.001 * static_cast<double>(batch.token_ids.size());
  };
  start(8000, {.chunked_prefill_size = 500, .context_length = 2000, .step_bound = {.ratio = 2}});
  ASSERT_TRUE(add(1, counting(0, 4), 40).ok());
  for (int i = 0; i < 20; ++i) step();
  ASSERT_TRUE(add(2, counting(10, 1500), 1).ok());
  while (!ends_.contains(1)) {
    const ForwardBatch& batch = batches_[num_launched_ % 2];
    ASSERT_FALSE(next().empty());
    EXPECT_LE(seconds_of_(batch), 0.025);
    commit();
  }
  EXPECT_THAT(step(), ElementsAre(testing::EndsWith("+500"))) << "nobody waits for a token";
}

// The entry in flight of a sequence that has ended is not committed yet.
TEST_F(SchedulerTest, TheAnswerIsCachedWhenItsEndIsReported) {
  start(100, {});
  Tokens any_stop;
  for (TokenId token = 0; token < kFakeVocab; ++token) any_stop.push_back(token);
  ASSERT_TRUE(add(1, counting(0, 5), 9, -1, any_stop).ok());
  EXPECT_THAT(next(), ElementsAre("1:0+5s"));
  EXPECT_THAT(next(), ElementsAre("1:5+1s"));
  listening_ = true;
  commit();
  ASSERT_TRUE(ends_.contains(1));
  Tokens turn = counting(0, 5);
  turn.push_back(outputs_[1].at(0));
  turn.push_back(7);
  ASSERT_TRUE(add(2, turn, 1).ok());
  EXPECT_THAT(next(),
              ElementsAre("2:5+2s"));  // the token itself is computed by the entry in flight
  commit();
  commit();

  // Longer answers, all but the last token.
  ends_.clear();
  outputs_.clear();
  ASSERT_TRUE(add(3, counting(20, 5), 9).ok());
  next();
  next();
  commit();
  next();
  commit();
  turn = counting(20, 5);
  turn.insert(turn.end(), outputs_[3].begin(), outputs_[3].end());
  turn.push_back(7);
  scheduler_->abort(3, {.type = FinishReason::Type::kAbort});
  commit();
  ASSERT_TRUE(ends_.contains(3));
  ASSERT_TRUE(add(4, turn, 1).ok());
  EXPECT_THAT(next(), ElementsAre("4:7+1s"));
  commit();
  EXPECT_TRUE(scheduler_->idle());
}

}  // namespace
}  // namespace espalier
