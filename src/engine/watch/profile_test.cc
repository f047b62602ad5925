// A profile of an engine at work: what is recorded, and when it begins and ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <set>

#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

using namespace std::chrono_literals;

class ProfileTest : public ::testing::Test {
 protected:
  void submit(Collector& collector, int max_new_tokens) {
    GenerateRequest request;
    request.text = "the story begins";
    request.sampling.max_new_tokens = max_new_tokens;
    request.sampling.temperature = 0.0f;
    ASSERT_TRUE(test_.engine->submit(std::move(request), collector.sink()));
  }
  Status start(const ProfileOptions& options) {
    std::promise<Status> answered;
    test_.engine->profile(
        {.start = options,
         .done = [this](StepProfile&& profile) { done_.set_value(std::move(profile)); },
         .answered = [&](const Status& status) { answered.set_value(status); }});
    return answered.get_future().get();
  }
  Status stop() {
    std::promise<Status> answered;
    test_.engine->profile({.answered = [&](const Status& status) { answered.set_value(status); }});
    return answered.get_future().get();
  }
  StepProfile wait() {
    StepProfile profile = done_.get_future().get();
    done_ = {};
    return profile;
  }

  TestEngine test_ = make_test_engine({.step_delay = 1ms});
  std::promise<StepProfile> done_;
};

void expect_sound(const StepProfile& p) {
  EXPECT_LE(p.begin, p.end);
  EXPECT_EQ(p.num_dropped, 0);
  for (size_t i = 0; i < p.turns.size(); ++i) {
    EXPECT_LE(p.turns[i].begin, p.turns[i].end);
    EXPECT_GE(p.turns[i].begin, i == 0 ? p.begin : p.turns[i - 1].end);
  }
  // The phases fill the turns.
  size_t turn = 0;
  TimePoint last = p.turns.empty() ? TimePoint{} : p.turns[0].begin;
  for (const StepProfile::Phase& phase : p.phases) {
    if (last == p.turns.at(turn).end) last = p.turns.at(++turn).begin;
    EXPECT_EQ(phase.begin, last);
    last = phase.end;
    EXPECT_LE(last, p.turns[turn].end);
    EXPECT_NE(phase.phase, LoopPhase::kParked);
  }
  for (size_t i = 0; i < p.steps.size(); ++i) {
    EXPECT_EQ(p.steps[i].step, p.steps[0].step + i);
    EXPECT_GT(p.steps[i].entries, 0);
    EXPECT_GE(p.steps[i].tokens, p.steps[i].entries);
    EXPECT_LE(p.steps[i].begin, p.steps[i].end);
    if (i > 0) {
      EXPECT_GE(p.steps[i].begin, p.steps[i - 1].begin);
    }
  }
}

int64_t count(const StepProfile& p, LoopPhase phase) {
  return std::ranges::count(p.phases, phase, &StepProfile::Phase::phase);
}

TEST_F(ProfileTest, EndsAfterItsSteps) {
  ASSERT_TRUE(start({.num_steps = 7}).ok());
  Collector collector;
  submit(collector, 40);
  const StepProfile p = wait();
  expect_sound(p);
  EXPECT_EQ(p.steps.size(), 7u);
  EXPECT_EQ(p.steps[0].step, 1u);
  EXPECT_EQ(p.steps[0].tokens, 16) << "the prompt";
  EXPECT_EQ(count(p, LoopPhase::kWait), 7);
  EXPECT_EQ(count(p, LoopPhase::kCommit), 7);
  EXPECT_FALSE(p.steps[0].is_estimated);
  ASSERT_EQ(p.samples.size(), 1u);
  EXPECT_FALSE(p.samples[0].has_ended);
  EXPECT_EQ(stop().code(), StatusCode::kFailedPrecondition) << "it has ended by itself";
  ASSERT_TRUE(collector.wait_end());
}

TEST_F(ProfileTest, HoldsTheRequestsThatEnded) {
  ASSERT_TRUE(start({}).ok());
  Collector first, second;
  submit(first, 5);
  submit(second, 9);
  ASSERT_TRUE(first.wait_end() && second.wait_end());
  ASSERT_TRUE(stop().ok());
  const StepProfile p = wait();
  expect_sound(p);
  ASSERT_EQ(p.samples.size(), 2u);
  std::multiset<int32_t> tokens;
  for (const StepProfile::Sample& sample : p.samples) {
    EXPECT_TRUE(sample.has_ended);
    tokens.insert(sample.stats.completion_tokens);
    EXPECT_LE(sample.stats.scheduled, sample.stats.first_token);
    EXPECT_LE(sample.stats.first_token, sample.stats.finished);
  }
  EXPECT_EQ(tokens, (std::multiset<int32_t>{5, 9}));
}

TEST_F(ProfileTest, BeginsWithAStatedStep) {
  ASSERT_TRUE(start({.start_step = 11, .num_steps = 3}).ok());
  Collector collector;
  submit(collector, 40);
  const StepProfile p = wait();
  expect_sound(p);
  ASSERT_EQ(p.steps.size(), 3u);
  EXPECT_EQ(p.steps[0].step, 11u);
  ASSERT_TRUE(collector.wait_end());
  // A step of the past is the next one.
  ASSERT_TRUE(start({.start_step = 2, .num_steps = 3}).ok());
  Collector later;
  submit(later, 40);
  EXPECT_GT(wait().steps[0].step, 11u);
  ASSERT_TRUE(later.wait_end());
}

TEST_F(ProfileTest, OneAtATimeAndAnIdleEngineHasNone) {
  EXPECT_EQ(stop().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(start({.num_steps = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(start({.num_steps = ProfileOptions::kStepsMax + 1}).code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(start({}).ok());
  EXPECT_EQ(start({}).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(stop().ok());
  const StepProfile p = wait();
  EXPECT_THAT(p.steps, ::testing::IsEmpty());
  expect_sound(p);
}

TEST_F(ProfileTest, StoppedAmidWorkAtAnyMoment) {
  Collector collector;
  submit(collector, 400);
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(start({}).ok());
    for (int i = 0; i < round % 5; ++i) std::this_thread::yield();
    ASSERT_TRUE(stop().ok());
    expect_sound(wait());
  }
  ASSERT_TRUE(collector.wait_end());
}

// What ran slowly is counted; the engine goes on.
TEST(WatchdogEngine, CountsStepsBeyondTheLimits) {
  TestEngineOptions options{.step_delay = 60ms, .context_length = 8192};
  options.config.watch = {.watchdog_timeout = 0.016, .soft_watchdog_timeout = 0.008};
  TestEngine test = make_test_engine(std::move(options));
  Collector collector;
  ASSERT_TRUE(
      test.engine->submit({.text = "x", .sampling = {.max_new_tokens = 4000}}, collector.sink()));
  ASSERT_TRUE(collector.wait_events(1));
  while (test.engine->stats().steps.num_very_slow == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  test.engine->abort("", Engine::AbortScope::kAll);
  ASSERT_TRUE(collector.wait_end());
  EXPECT_GT(collector.result().output_ids.size(), 0u);
}

}  // namespace
}  // namespace espalier
