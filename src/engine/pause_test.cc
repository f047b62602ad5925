// Generation pauses on request, and continues as if it had not paused.
#include <gtest/gtest.h>

#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

class PauseTest : public testing::Test {
 protected:
  void submit(int max_new_tokens = 1000) {
    GenerateRequest request;
    request.text = "the story begins";
    request.sampling.max_new_tokens = max_new_tokens;
    request.sampling.temperature = 0.0f;
    ASSERT_TRUE(test_.engine->submit(std::move(request), collector_.sink()));
  }
  std::vector<TokenId> expected(int count) {
    return Script().answer(bytes_of("the story begins"), count);
  }

  TestEngine test_ = make_test_engine({.step_delay = std::chrono::milliseconds(1)});
  Collector collector_;
};

TEST_F(PauseTest, InPlaceNothingRunsUntilItGoesOn) {
  submit();
  ASSERT_TRUE(collector_.wait_events(5));
  ASSERT_TRUE(test_.engine->pause_generation(Engine::PauseMode::kInPlace).ok());
  const int64_t steps = test_.engine->stats().steps.num_steps;
  EXPECT_EQ(test_.engine->stats().requests.num_running, 1);
  Collector late;
  ASSERT_TRUE(
      test_.engine->submit({.text = "late", .sampling = {.max_new_tokens = 3}}, late.sink()));
  ASSERT_TRUE(test_.engine->pause_generation(Engine::PauseMode::kInPlace).ok());  // twice is once
  EXPECT_EQ(test_.engine->stats().steps.num_steps, steps);
  EXPECT_EQ(test_.engine->flush_cache().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(test_.engine->continue_generation().ok());
  ASSERT_TRUE(collector_.wait_end() && late.wait_end());
  EXPECT_EQ(collector_.result().output_ids, expected(1000));
  EXPECT_EQ(test_.engine->stats().requests.num_retractions, 0);
}

TEST_F(PauseTest, RetractedTheCacheCanBeFlushedAndNoTokenIsLost) {
  submit();
  ASSERT_TRUE(collector_.wait_events(5));
  ASSERT_TRUE(test_.engine->pause_generation(Engine::PauseMode::kRetract).ok());
  EXPECT_EQ(test_.engine->stats().requests.num_running, 0);
  EXPECT_EQ(test_.engine->stats().requests.num_waiting, 1);
  EXPECT_TRUE(test_.engine->flush_cache().ok());
  EXPECT_EQ(test_.engine->stats().memory.kv_tokens_cached, 0);
  ASSERT_TRUE(test_.engine->continue_generation().ok());
  ASSERT_TRUE(collector_.wait_end());
  EXPECT_EQ(collector_.result().output_ids, expected(1000));
  EXPECT_EQ(test_.engine->stats().requests.num_retractions, 1);
}

TEST_F(PauseTest, AbortEndsAllAndLaterOnesWait) {
  submit();
  ASSERT_TRUE(collector_.wait_events(5));
  ASSERT_TRUE(test_.engine->pause_generation(Engine::PauseMode::kAbort).ok());
  ASSERT_TRUE(collector_.wait_end());
  EXPECT_EQ(collector_.finish_type(), FinishReason::Type::kAbort);
  Collector late;
  ASSERT_TRUE(
      test_.engine->submit({.text = "late", .sampling = {.max_new_tokens = 3}}, late.sink()));
  ASSERT_TRUE(test_.engine->continue_generation().ok());
  ASSERT_TRUE(late.wait_end());
  EXPECT_EQ(late.finish_type(), FinishReason::Type::kLength);
}

TEST_F(PauseTest, AnEngineThatIsPausedCanBeDestroyed) {
  submit();
  ASSERT_TRUE(collector_.wait_events(5));
  ASSERT_TRUE(test_.engine->pause_generation(Engine::PauseMode::kInPlace).ok());
  test_.engine.reset();
  ASSERT_TRUE(collector_.wait_end());
  EXPECT_EQ(collector_.finish_type(), FinishReason::Type::kAbort);
}

}  // namespace
}  // namespace espalier
