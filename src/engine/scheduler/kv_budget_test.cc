#include "engine/scheduler/kv_budget.h"

#include "engine/scheduler/parts_fixture.h"

namespace espalier {
namespace {

using KvBudgetTest = PartsTest;

TEST_F(KvBudgetTest, ReservesThePromptAndAShareOfTheOutput) {
  start(100, {.new_token_ratio_init = 0.5});
  Sequence& a = waiting(counting(0, 20), 60);  // 20 + 30 pages
  Sequence& b = waiting(counting(1, 30), 42);  // 30 + 21: one too many
  Sequence& c = waiting(counting(2, 30), 40);  // 30 + 20
  ASSERT_TRUE(admit(a));
  EXPECT_FALSE(admit(b));
  EXPECT_FALSE(b.kv.pages.holds());
  EXPECT_TRUE(admit(c));
  EXPECT_EQ(budget_->room_for(a), 100);
  check();
}

TEST_F(KvBudgetTest, ASequenceAloneIsAdmittedWhateverTheEstimate) {
  start(50, {.new_token_ratio_init = 1.0});
  EXPECT_TRUE(admit(waiting(counting(0, 20), 500)));
  EXPECT_EQ(budget_->max_sequence_tokens(), 51);
}

TEST_F(KvBudgetTest, TheVictimHasTheFewestOutputsAndCameLast) {
  start(100);
  Sequence& a = waiting(counting(0, 2), 9);
  Sequence& b = waiting(counting(1, 2), 9);
  Sequence& c = waiting(counting(2, 2), 9);
  for (Sequence* s : {&a, &b, &c}) ASSERT_TRUE(admit(*s));
  EXPECT_EQ(&budget_->retraction_victim(), &c);
  c.tokens.push_back(1);
  EXPECT_EQ(&budget_->retraction_victim(), &b);
  const double before = budget_->new_token_ratio();
  budget_->on_decode_step();
  EXPECT_LT(budget_->new_token_ratio(), before);
  budget_->on_retraction();
  EXPECT_GT(budget_->new_token_ratio(), before);
}

TEST_F(KvBudgetTest, DecodeFitsWhilePagesAreLeft) {
  start(8, {.new_token_ratio_init = 0.01});
  Sequence& a = waiting(counting(0, 3), 20);
  Sequence& b = waiting(counting(10, 3), 2);
  ASSERT_TRUE(admit(a) && admit(b));
  commit(build(), 1);  // both prompts
  EXPECT_TRUE(budget_->decode_fits());
  commit(build(), 1);  // all 8 pages
  EXPECT_EQ(ends_.at(b.spec.id), FinishReason::Type::kLength);
  EXPECT_TRUE(budget_->decode_fits());  // the pages of b come back
  check();
}

TEST_F(KvBudgetTest, RetainedPagesAreKeptFromOthersForSomeSteps) {
  start(20, {.retention_steps = 2, .new_token_ratio_init = 0.01});
  Sequence& a = waiting(counting(0, 10), 1);
  Sequence& busy = waiting(counting(30, 2), 30);
  ASSERT_TRUE(admit(a) && admit(busy));
  const std::vector<Sequence*> departing = commit(build(), 7);
  ASSERT_EQ(departing, std::vector<Sequence*>{&a});
  budget_->retain(a);
  committer_->release(a);
  Sequence& other = waiting(counting(15, 12), 1);
  EXPECT_FALSE(admit(other));
  EXPECT_TRUE(budget_->retains_pages());
  Sequence& continuation = waiting(counting(0, 12), 1);
  EXPECT_TRUE(admit(continuation));  // it matches the retained pages
  for (int i = 0; i < 4; ++i) commit(build(), 7);
  check();
}

TEST_F(KvBudgetTest, PreemptsAsFewAsItTakes) {
  start(64, {.policy = SchedulePolicy::kPriority,
             .priority_preemption_threshold = 1,
             .new_token_ratio_init = 0.01});
  Sequence& a = waiting(counting(0, 20), 2, 0);
  Sequence& b = waiting(counting(20, 20), 2, 1);
  Sequence& c = waiting(counting(10, 15), 2, 0);
  for (Sequence* s : {&a, &b, &c}) ASSERT_TRUE(admit(*s));
  build();
  Sequence& high = waiting(counting(40, 18), 1, 5);
  EXPECT_EQ(budget_->plan_preemption(high), std::vector<Sequence*>{&c});
  Sequence& low = waiting(counting(45, 18), 1, 0);
  EXPECT_EQ(budget_->plan_preemption(low), std::nullopt);
  c.preemption.exempt = true;
  EXPECT_EQ(budget_->plan_preemption(high), std::vector<Sequence*>{&a});
}

TEST_F(KvBudgetTest, DuplicatesAreKeptUntilTheStepThatMayReadThemIsCommitted) {
  start(40);
  Sequence& a = waiting(counting(0, 8), 4);
  Sequence& b = waiting(counting(0, 8), 4);
  ASSERT_TRUE(admit(a) && admit(b));
  const ForwardBatch first = build(), second = build();
  commit(first, 1);  // b's prompt is the same: its own pages are duplicates of a's
  std::vector<PageId> detached;
  budget_->append_detached(detached);
  EXPECT_EQ(detached.size(), 8u);
  check();
  commit(second, 1);
  detached.clear();
  budget_->append_detached(detached);
  EXPECT_TRUE(detached.empty());
}

}  // namespace
}  // namespace espalier
