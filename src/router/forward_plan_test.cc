#include "router/forward_plan.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace espalier::router {
namespace {

using Action = ForwardPlan::Action;

TEST(RetryBudget, EarnsAndIsBounded) {
  RetryBudget budget(0.5, 2);
  EXPECT_TRUE(budget.take());
  EXPECT_TRUE(budget.take());
  EXPECT_FALSE(budget.take());
  budget.count_request();
  EXPECT_FALSE(budget.take());
  budget.count_request();
  EXPECT_TRUE(budget.take());
  for (int i = 0; i < 100; ++i) budget.count_request();
  EXPECT_TRUE(budget.take());
  EXPECT_TRUE(budget.take());
  EXPECT_FALSE(budget.take()) << "no more than the reserve is saved up";
}

TEST(ForwardPlan, RetriesUntilTheClientSawSomething) {
  RetryBudget budget(0.2, 10);
  ForwardPlan plan(3, budget);
  EXPECT_EQ(plan.on_failure(), Action::kRetry);
  EXPECT_EQ(plan.on_status(503), Action::kRetry);
  EXPECT_EQ(plan.on_status(200), Action::kPass);
  EXPECT_EQ(plan.on_failure(), Action::kRetry) << "a head alone was not seen";
  EXPECT_EQ(plan.on_status(429), Action::kPass) << "no retry is left: the worker's answer counts";
  EXPECT_EQ(plan.on_bytes(), Action::kPass);
  EXPECT_EQ(plan.on_failure(), Action::kCut);
  EXPECT_EQ(plan.on_failure(), Action::kNothing);
}

TEST(ForwardPlan, AWorkersOwnErrorIsAnAnswer) {
  RetryBudget budget(0.2, 10);
  for (const int status : {200, 400, 401, 404, 413, 500, 501}) {
    ForwardPlan plan(3, budget);
    EXPECT_EQ(plan.on_status(status), Action::kPass) << status;
  }
}

// Whatever happens: no retry after a byte, one end, no more retries than allowed, none without
// budget.
TEST(ForwardPlan, HoldsItsRulesWhateverHappens) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const int reserve = static_cast<int>(rng.below(6));
    RetryBudget budget(0, reserve);
    const int max_retries = static_cast<int>(rng.below(5));
    ForwardPlan plan(max_retries, budget);
    int retries = 0, ends = 0;
    bool started = false, gone = false;
    for (int i = 0; i < 40; ++i) {
      const bool was_over = ends > 0 || gone;
      Action action = Action::kNothing;
      switch (rng.below(5)) {
        case 0:
          action = plan.on_status(rng.below(2) == 0 ? 200 : 503);
          break;
        case 1:
          action = plan.on_bytes();
          started = started || action == Action::kPass;
          break;
        case 2:
          action = plan.on_end();
          ends += action == Action::kPass ? 1 : 0;
          break;
        case 3:
          action = plan.on_failure();
          break;
        default:
          if (rng.below(10) > 0) continue;
          plan.on_client_gone();
          gone = true;
      }
      if (action == Action::kRetry) {
        ++retries;
        ASSERT_FALSE(started);
      }
      ends += action == Action::kRefuse || action == Action::kCut ? 1 : 0;
      if (action == Action::kRefuse) {
        ASSERT_FALSE(started);
      }
      if (action == Action::kCut) {
        ASSERT_TRUE(started);
      }
      if (was_over) {
        ASSERT_EQ(action, Action::kNothing);
      }
      ASSERT_LE(ends, 1);
      ASSERT_LE(retries, std::min(max_retries, reserve));
      ASSERT_EQ(retries, plan.num_retries());
    }
  }
}

}  // namespace
}  // namespace espalier::router
