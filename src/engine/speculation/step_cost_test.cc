#include "engine/speculation/step_cost.h"

#include <gtest/gtest.h>

#include <cmath>

namespace espalier {
namespace {

void observe(StepCost& cost, int32_t entries, int32_t draft_tokens, double seconds,
             int32_t times = 5) {
  for (int32_t i = 0; i < times; ++i) cost.observe(entries, draft_tokens, seconds);
}

TEST(StepCost, RangesAndEdgesAreInOrder) {
  size_t range = 0;
  for (const int32_t last : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128}) {
    EXPECT_EQ(StepCost::range_of(last), range) << last;
    EXPECT_EQ(StepCost::range_of(last + 1), ++range) << last;
  }
  int32_t before = 0;
  for (const int32_t edge : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40}) {
    for (int32_t rows = before + 1; rows <= edge; ++rows)
      EXPECT_EQ(StepCost::next_edge(rows), edge) << rows;
    before = edge;
  }
}

TEST(StepCost, InterpolatesWhatWasMeasured) {
  StepCost cost;
  EXPECT_EQ(cost.plain_seconds(3), 0);
  EXPECT_FALSE(cost.needs_plain_step(3)) << "a device that measures nothing";
  observe(cost, 1, 0, 2e-3);
  observe(cost, 8, 0, 4e-3);
  EXPECT_DOUBLE_EQ(cost.plain_seconds(1), 2e-3);
  EXPECT_DOUBLE_EQ(cost.plain_seconds(100), 4e-3);
  EXPECT_NEAR(cost.plain_seconds(4), 2e-3 + 2e-3 * 3 / 7, 1e-9);
  EXPECT_TRUE(cost.needs_plain_step(4));
  EXPECT_FALSE(cost.needs_plain_step(8));
  for (const int32_t k : {1, 3, 7}) observe(cost, 1, k, 2e-3 * (1 + 0.1 * k));
  EXPECT_NEAR(cost.curve(1).ratio(2), 1.2, 0.06);
  EXPECT_NEAR(cost.curve(1).ratio(3), 1.3, 0.01);
  EXPECT_NEAR(cost.curve(1).ratio(5), 1.5, 0.11);
  EXPECT_LT(cost.curve(1).ratio(15), 1.7 + 8 * 0.1) << "beyond, half of the slope";
  EXPECT_GT(cost.curve(1).ratio(15), 1.7 + 8 * 0.04);
  EXPECT_NEAR(cost.curve(8).ratio(8), 1.05, 1e-9) << "other numbers of entries are apart";
}

TEST(StepCost, NeverFallsAsRowsRise) {
  StepCost cost;
  observe(cost, 16, 0, 1e-3);
  for (const int32_t k : {1, 8, 16, 32, 48, 100})
    observe(cost, 16, k, 1e-3 * (1 + 0.4 * std::fabs(std::sin(k))));
  double before = 1;
  for (int32_t k = 0; k < 300; ++k) {
    EXPECT_GE(cost.curve(16).ratio(k), before - 1e-9) << k;
    before = cost.curve(16).ratio(k);
  }
}

// The system may take the processor away from any step, the first ones too.
TEST(StepCost, InterruptedStepsDoNotCount) {
  StepCost cost;
  for (int32_t i = 0; i < 300; ++i) {
    cost.observe(1, 0, i % 10 == 0 ? 40e-3 : 1e-3);
    cost.observe(1, 4, i % 10 == 0 ? 90e-3 : 1.4e-3);
    if (i > 1) {
      ASSERT_NEAR(cost.curve(1).ratio(4), 1.4, 0.01) << i;
    }
  }
  observe(cost, 1, 4, 90e-3, 5);
  EXPECT_GT(cost.curve(1).ratio(4), 50) << "a cost that stays is believed";
}

TEST(StepCost, WhatIsOldIsMeasuredAnew) {
  StepCost cost;
  observe(cost, 1, 0, 1e-3, 9);
  observe(cost, 1, 1, 3e-3, 9);
  EXPECT_NEAR(cost.curve(1).ratio(1), 3, 1e-9);
  observe(cost, 1, 0, 1e-3, 4096);
  EXPECT_NEAR(cost.curve(1).ratio(1), 2, 0.01) << "it sinks";
  observe(cost, 1, 0, 1e-3, 2);
  observe(cost, 1, 1, 1.1e-3, 2);
  EXPECT_NEAR(cost.curve(1).ratio(1), 1.1, 1e-3);
  EXPECT_FALSE(cost.needs_plain_step(1));
  observe(cost, 1, 1, 1.1e-3, 600);
  EXPECT_TRUE(cost.needs_plain_step(1));
  observe(cost, 1, 0, 2e-3, 3);
  EXPECT_FALSE(cost.needs_plain_step(1));
  EXPECT_DOUBLE_EQ(cost.plain_seconds(1), 2e-3);
}

}  // namespace
}  // namespace espalier
