#include "engine/speculation/draft_policy.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

using Origin = DraftPolicy::Origin;

TEST(DraftPolicy, LearnsBySourceMatchAndRequest) {
  DraftPolicy policy;
  AcceptanceRate right, wrong, other;
  const Origin near{.match_length = 3}, far{.match_length = 30};
  const double prior = policy.acceptance(near, other);
  for (int i = 0; i < 200; ++i) {
    policy.observe_token(far, right, true);
    policy.observe_token(near, wrong, i % 4 == 0);
  }
  EXPECT_GT(policy.acceptance(far, right), 0.95);
  EXPECT_NEAR(policy.acceptance(near, wrong), 0.25, 0.05);
  EXPECT_GT(policy.acceptance(far, other), 0.9) << "a new request begins with what others had";
  EXPECT_LT(policy.acceptance(far, wrong), 0.5) << "but its own rate counts more";
  EXPECT_EQ(policy.acceptance({.source = DraftSource::kRadix, .match_length = 3}, other), prior);
}

TEST(DraftPolicy, ForgetsWhatIsOld) {
  DraftPolicy policy;
  AcceptanceRate own;
  for (int i = 0; i < 10000; ++i) policy.observe_token({}, own, false);
  for (int i = 0; i < 200; ++i) policy.observe_token({}, own, true);
  EXPECT_GT(policy.acceptance({}, own), 0.9);
}

}  // namespace
}  // namespace espalier
