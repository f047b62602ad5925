#include "text/template/render_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace espalier::jinja {
namespace {

using ::testing::HasSubstr;

TEST(RenderBudget, BoundsSteps) {
  RenderBudget budget({.steps_max = 10});
  EXPECT_TRUE(budget.charge(10).ok());
  const Status status = budget.charge(1);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("more than 10 steps"));
  RenderBudget huge({.steps_max = 10});
  EXPECT_FALSE(huge.charge(std::numeric_limits<size_t>::max()).ok());
}

TEST(RenderBudget, BoundsTextAndOutput) {
  RenderBudget budget({.steps_max = 100, .output_bytes_max = 640});
  EXPECT_THAT(budget.charge_bytes(641).message(), HasSubstr("a text of more than 640 bytes"));
  EXPECT_TRUE(budget.charge_bytes(640).ok());  // ten steps
  EXPECT_TRUE(budget.charge(90).ok());
  EXPECT_FALSE(budget.charge(1).ok());
  EXPECT_TRUE(budget.charge_output(600).ok());
  EXPECT_TRUE(budget.charge_output(40).ok());
  EXPECT_THAT(budget.charge_output(1).message(), HasSubstr("more than 640 bytes"));
}

TEST(RenderBudget, BoundsTime) {
  RenderBudget budget({.seconds_max = 0});
  EXPECT_THAT(budget.charge(1).message(), HasSubstr("more than 0 s"));
}

TEST(RenderBudget, CountsLevelsWhileTheyLive) {
  RenderBudget budget({.depth_max = 1});
  const RenderBudget::Level outer(budget);
  EXPECT_FALSE(budget.too_deep());
  {
    const RenderBudget::Level inner(budget);
    EXPECT_TRUE(budget.too_deep());
  }
  EXPECT_FALSE(budget.too_deep());
}

}  // namespace
}  // namespace espalier::jinja
