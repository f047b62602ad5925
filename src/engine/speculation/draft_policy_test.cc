#include "engine/speculation/draft_policy.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

void learn_costs(DraftPolicy& policy, int32_t num_entries, double plain, double draft_token) {
  for (int i = 0; i < 20; ++i) policy.observe_step(num_entries, 0, plain);
  for (int i = 0; i < 20; ++i) policy.observe_step(num_entries, 4, plain + 4 * draft_token);
}

void learn_acceptance(DraftPolicy& policy, AcceptanceRate& own, int accepted_of_ten) {
  for (int i = 0; i < 200; ++i)
    for (int ahead = 0; ahead < 24; ++ahead)
      policy.observe_token({.match_length = 8 + ahead}, own, (i + ahead) % 10 < accepted_of_ten);
}

const DraftPolicy::Origin kOrigin{.match_length = 8};

TEST(DraftPolicy, MeasuresWhatADraftTokenCosts) {
  DraftPolicy policy;
  learn_costs(policy, 1, 2e-3, 5e-4);
  EXPECT_NEAR(policy.relative_cost(1), 0.25, 1e-6);
  learn_costs(policy, 8, 4e-3, 2e-3);
  EXPECT_NEAR(policy.relative_cost(8), 0.5, 1e-6);
  EXPECT_NEAR(policy.relative_cost(1), 0.25, 1e-6) << "batches of other sizes are apart";
}

// The system may take the processor away from any step, the first ones too.
TEST(DraftPolicy, InterruptedStepsDoNotTurnItOff) {
  DraftPolicy policy;
  AcceptanceRate own;
  policy.observe_step(1, 0, 1e-3);
  policy.observe_step(1, 4, 50e-3);
  policy.observe_step(1, 4, 80e-3);
  EXPECT_GT(policy.length(kOrigin, own, 8, 1), 0) << "two steps prove nothing";
  learn_acceptance(policy, own, 9);
  for (int i = 0; i < 300; ++i) {
    policy.observe_step(1, 0, i % 10 == 3 ? 40e-3 : 1e-3);
    policy.observe_step(1, 4, i % 10 == 7 ? 90e-3 : 1.4e-3);
    ASSERT_GT(policy.length(kOrigin, own, 8, 1), 4) << i;
  }
  for (int i = 0; i < 10; ++i) policy.observe_step(1, 4, 90e-3);
  EXPECT_EQ(policy.length(kOrigin, own, 8, 1), 0) << "a cost that stays is believed";
}

// The length maximises (1 + expected accepted tokens) / time, found by trying all.
TEST(DraftPolicy, LengthMaximisesTokensASecond) {
  for (const int tenths : {3, 5, 7, 9})
    for (const double cost : {0.05, 0.2, 0.4, 0.8}) {
      DraftPolicy policy;
      AcceptanceRate own;
      learn_costs(policy, 1, 1e-3, cost * 1e-3);
      learn_acceptance(policy, own, tenths);
      const int32_t length = policy.length(kOrigin, own, 8, 1);
      double reached = 1, tokens = 1, best_rate = 1, rate = 1;
      for (int32_t k = 0; k < 8; ++k) {
        DraftPolicy::Origin origin = kOrigin;
        origin.match_length += k;
        reached *= policy.acceptance(origin, own);
        tokens += reached;
        const double here = tokens / (1 + (k + 1) * cost);
        best_rate = std::max(best_rate, here);
        if (k + 1 == length) rate = here;
      }
      // The margin refuses what is worth little; the marginal rule compares with a plain step.
      EXPECT_GE(rate, 1.0) << tenths << " " << cost;
      EXPECT_GE(rate, 0.8 * best_rate) << tenths << " " << cost;
    }
}

TEST(DraftPolicy, TurnsItselfOffWhereNothingIsAccepted) {
  DraftPolicy policy;
  AcceptanceRate own;
  learn_costs(policy, 1, 1e-3, 2e-4);
  learn_acceptance(policy, own, 0);
  int drafted = 0;
  for (int i = 0; i < 1280; ++i) drafted += policy.length(kOrigin, own, 8, 1);
  EXPECT_EQ(drafted, 0) << "what is never right is not worth a probe";
  EXPECT_FALSE(policy.pays_to_wait(kOrigin, own, 8, 1));
  learn_acceptance(policy, own, 10);
  EXPECT_GE(policy.length(kOrigin, own, 8, 1), 6) << "and on again";
  EXPECT_TRUE(policy.pays_to_wait(kOrigin, own, 8, 1));
}

// Acceptance is known without verifying, the cost is not: it is measured again now and then.
TEST(DraftPolicy, ProbesTheCostOfWhatIsRight) {
  DraftPolicy policy;
  AcceptanceRate own;
  learn_costs(policy, 1, 1e-3, 2e-3);
  learn_acceptance(policy, own, 9);
  EXPECT_FALSE(policy.may_pay(1));
  int drafted = 0, waited = 0;
  for (int i = 0; i < 1280; ++i) drafted += policy.length(kOrigin, own, 8, 1);
  EXPECT_EQ(drafted, 10) << "one probe of one token in 128";
  for (int i = 0; i < 1280; ++i)
    if (policy.pays_to_wait(kOrigin, own, 8, 1)) {
      ++waited;
      EXPECT_EQ(policy.length(kOrigin, own, 8, 1), 1) << "what waited probes";
    }
  EXPECT_EQ(waited, 10);
  for (int i = 0; i < 20; ++i) policy.observe_step(1, 1, 1.1e-3);
  EXPECT_TRUE(policy.may_pay(1));
  EXPECT_GE(policy.length(kOrigin, own, 8, 1), 4);
}

// A cost that is assumed too high is measured: what is right half of the time may pay.
TEST(DraftPolicy, ProbesACostThatIsNotKnown) {
  DraftPolicy policy;
  AcceptanceRate own;
  learn_acceptance(policy, own, 3);
  int drafted = 0;
  for (int i = 0; i < 80; ++i) drafted += policy.length(kOrigin, own, 8, 1);
  EXPECT_EQ(drafted, 10);
  for (int i = 0; i < 10; ++i) policy.observe_step(1, 0, 1e-3);
  for (int i = 0; i < 10; ++i) policy.observe_step(1, 1, 1.02e-3);
  EXPECT_GT(policy.length(kOrigin, own, 8, 1), 1);
}

TEST(DraftPolicy, ABatchMustGainMore) {
  DraftPolicy policy;
  AcceptanceRate own;
  learn_costs(policy, 1, 1e-3, 1e-4);
  learn_costs(policy, 16, 2e-3, 1e-4);
  learn_acceptance(policy, own, 7);
  EXPECT_GE(policy.length(kOrigin, own, 8, 1), 4);
  EXPECT_EQ(policy.length(kOrigin, own, 8, 16), 0) << "16 x 0.05 of a step for 0.7 of a token";
}

}  // namespace
}  // namespace espalier
