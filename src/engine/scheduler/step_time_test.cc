#include "engine/scheduler/step_time.h"

#include <gtest/gtest.h>

#include <limits>

namespace espalier {
namespace {

// Decode entries and a chunk of a prompt behind `prefix` tokens.
ForwardBatch batch_of(int32_t num_rows, int32_t num_prompt_tokens, int32_t prefix = 0) {
  ForwardBatch batch;
  for (int32_t i = 0; i < num_rows; ++i)
    batch.entries.push_back({.num_query_tokens = 1, .prefix_len = 100});
  if (num_prompt_tokens > 0)
    batch.entries.push_back({.num_query_tokens = num_prompt_tokens, .prefix_len = prefix});
  return batch;
}

void observe(StepTime& time, int32_t num_rows, int32_t num_prompt_tokens, double seconds,
             int times = 5) {
  for (int i = 0; i < times; ++i) time.observe(batch_of(num_rows, num_prompt_tokens), seconds);
}

// In a step that is not one of those from which plain time is learnt.
int32_t prompt_tokens(StepTime& time, int32_t num_rows, int32_t prefix = 0) {
  const int32_t tokens = time.prompt_tokens(batch_of(num_rows, 0), prefix);
  return tokens != 0 ? tokens : time.prompt_tokens(batch_of(num_rows, 0), prefix);
}

TEST(StepTime, KnowsWhatItHasSeen) {
  StepTime time({.seconds = 0.5});
  EXPECT_EQ(prompt_tokens(time, 1), std::numeric_limits<int32_t>::max()) << "nothing is measured";
  observe(time, 1, 100, 0.5);  // without a plain step it says nothing
  EXPECT_EQ(prompt_tokens(time, 1), StepTime::kUnknown);
  observe(time, 1, 0, 0.1);
  observe(time, 1, 100, 0.3);
  EXPECT_NEAR(prompt_tokens(time, 1), 200, 1);
  StepTime shorter({.seconds = 0.05});
  observe(shorter, 1, 0, 0.1);
  observe(shorter, 1, 100, 0.3);
  EXPECT_EQ(prompt_tokens(shorter, 1), StepTime::kLeast);
}

// Where plain time was measured too long, prompts seem to cost nothing, for as long as that stays.
TEST(StepTime, PromptsThatSeemedFreeAreNotForEver) {
  for (const int times : {500, 6'000, 20'000}) {
    StepTime time({.seconds = 0.5});
    observe(time, 1, 0, 0.1);
    observe(time, 1, 100, 0.3);
    observe(time, 1, 100, 0.1, times);
    observe(time, 1, 100, 0.3, 8);
    EXPECT_NEAR(prompt_tokens(time, 1), 200, 50) << times;
  }
}

TEST(StepTime, ARatioIsOfTheStepWithoutPrompts) {
  StepTime time({.ratio = 2});
  observe(time, 1, 0, 0.1);
  observe(time, 64, 0, 0.4);
  observe(time, 64, 100, 0.5);
  EXPECT_NEAR(prompt_tokens(time, 64), 400, 1);
  EXPECT_NEAR(prompt_tokens(time, 1), 100, 1);
  StepTime both({.seconds = 0.15, .ratio = 2});
  observe(both, 1, 0, 0.1);
  observe(both, 1, 100, 0.2);
  EXPECT_NEAR(prompt_tokens(both, 1), 50, 1) << "the smaller one";
}

TEST(StepTime, AStepIsDividedAmongThoseWhoWait) {
  StepTime time({.ratio = 2, .ratio_most = 8});
  observe(time, 1, 0, 0.1);
  observe(time, 1, 100, 0.2);
  (void)prompt_tokens(time, 1);
  EXPECT_NEAR(time.prompt_tokens(batch_of(1, 0), 0, 0.1), 100, 1);
  EXPECT_NEAR(time.prompt_tokens(batch_of(1, 0), 0, 3), 300, 1);
  EXPECT_NEAR(time.prompt_tokens(batch_of(1, 0), 0, 50), 700, 1);
}

TEST(StepTime, PlainTimeIsLearntNowAndThen) {
  StepTime time({.ratio = 2});
  observe(time, 1, 0, 0.1);
  observe(time, 1, 100, 0.2);
  const auto tries = [&] {
    int count = 0;
    for (int i = 0; i < 40; ++i) count += time.prompt_tokens(batch_of(2, 0), 0) == 0 ? 1 : 0;
    return count;
  };
  EXPECT_EQ(tries(), 10) << "of another number of rows nothing is known";
  observe(time, 2, 0, 0.11);
  EXPECT_EQ(tries(), 0);
  observe(time, 2, 50, 0.2, 600);
  EXPECT_EQ(tries(), 10) << "what is old is learnt anew";
  EXPECT_NE(time.prompt_tokens({}, 0), 0) << "a step without decode entries teaches nothing";
}

TEST(PromptCost, ATokenCostsMoreBehindMany) {
  PromptCost cost;
  for (int i = 0; i < 40; ++i) {
    const double depth = 100 * (i % 20);
    cost.observe(50, depth, 50 * 1e-3 * (1 + depth / 500));
  }
  EXPECT_NEAR(cost.seconds(10, 0), 0.010, 1e-4);
  EXPECT_NEAR(cost.seconds(10, 4000), 0.090, 1e-3);
  for (const int32_t prefix : {0, 500, 4000}) {
    const int32_t count = cost.tokens_within(0.5, prefix);
    EXPECT_NEAR(cost.seconds(count, prefix + 0.5 * count), 0.5, 0.02) << prefix;
  }
  EXPECT_EQ(cost.tokens_within(0, 10), 0);
}

TEST(PromptCost, FollowsTheLatestStepsAndForgivesOne) {
  PromptCost cost;
  for (int i = 0; i < 20; ++i) cost.observe(10, 5, 0.010);
  cost.observe(10, 5, 1.0);  // the system had other work
  EXPECT_LT(cost.seconds(10, 5), 0.025);
  for (int i = 0; i < 30; ++i) cost.observe(10, 5, 0.040);
  EXPECT_NEAR(cost.seconds(10, 5), 0.040, 0.006);
}

}  // namespace
}  // namespace espalier
