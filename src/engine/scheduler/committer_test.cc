#include "engine/scheduler/committer.h"

#include "engine/scheduler/parts_fixture.h"

namespace espalier {
namespace {

using CommitterTest = PartsTest;

TEST_F(CommitterTest, TheLengthEndsASequenceBeforeAStopId) {
  start(100);
  Sequence& a = waiting(counting(0, 3), 1);
  Sequence& b = waiting(counting(20, 3), 5);
  a.spec.stop_ids = b.spec.stop_ids = {7};
  ASSERT_TRUE(admit(a) && admit(b));
  const std::vector<Sequence*> departing = commit(build(), 7);
  EXPECT_EQ(departing, (std::vector<Sequence*>{&a, &b}));
  EXPECT_EQ(ends_.at(1), FinishReason::Type::kLength);
  EXPECT_EQ(ends_.at(2), FinishReason::Type::kStop);
  EXPECT_EQ(a.state, SequenceState::kFinished);
  EXPECT_EQ(running_->num_leaving(), 2);
  for (Sequence* s : departing) committer_->release(*s);
  EXPECT_TRUE(running_->empty());
  EXPECT_EQ(cache_->sizes().in_use(), 0);
  check();
}

TEST_F(CommitterTest, ForcedTokensMakeTheSampleInFlightStale) {
  start(100);
  Sequence& a = waiting(counting(0, 3), 9);
  a.spec.takes_proposals = true;
  ASSERT_TRUE(admit(a));
  const ForwardBatch first = build(), second = build();
  forced_ = {11, 12};
  commit(first, 7);
  EXPECT_EQ(outputs_.at(1), (Tokens{7, 11, 12}));
  commit(second, 40);  // sampled behind token 7, where 11 was forced
  EXPECT_EQ(outputs_.at(1), (Tokens{7, 11, 12}));
  const ForwardBatch third = build();
  EXPECT_EQ(third.token_ids, (Tokens{11, 12}));
  commit(third, 8);
  EXPECT_EQ(outputs_.at(1), (Tokens{7, 11, 12, 8}));
  using enum TokenOrigin;
  EXPECT_EQ(origins_.at(1), (std::vector{kSampled, kForced, kForced, kSampled}));
  EXPECT_EQ(committer_->counts().forced_tokens, 2);
  check();
}

TEST_F(CommitterTest, DraftTokensAreAcceptedUpToTheFirstThatDiffers) {
  start(100, {.draft_samples_max = 8});
  Sequence& a = waiting(counting(0, 3), 9);
  a.spec.takes_proposals = a.spec.has_grammar = true;
  draft_tokens_ = {7, 9, 5};
  ASSERT_TRUE(admit(a));
  commit(build(), 7, {9, 6, 4});  // behind the prompt 7, behind 7 9, behind 9 6: not 5
  EXPECT_EQ(outputs_.at(1), (Tokens{7, 9, 6}));
  using enum TokenOrigin;
  EXPECT_EQ(origins_.at(1), (std::vector{kDrafted, kDrafted, kSampled}));
  EXPECT_EQ(committer_->counts().accepted_draft_tokens, 2);
  EXPECT_EQ(committer_->counts().drafted_tokens, 3);
  EXPECT_EQ(a.num_computed, 5);
  EXPECT_EQ(a.num_launched, 5);
  draft_tokens_.clear();
  EXPECT_EQ(build().token_ids, Tokens{6});
  check();
}

TEST_F(CommitterTest, AFailedEntryEndsItsSequenceAloneAndLeavesNothingCached) {
  start(100);
  Sequence& a = waiting(counting(0, 3), 9);
  Sequence& b = waiting(counting(20, 3), 9);
  ASSERT_TRUE(admit(a) && admit(b));
  const ForwardBatch batch = build();
  StepResult result{.step = batch.step};
  result.entries.resize(2);
  result.entries[0].status = error(StatusCode::kInternal, "the logits are not finite");
  result.entries[1].token = 7;
  steps_.commit(batch.step);
  ASSERT_EQ(committer_->commit(batch, result).size(), 1u);
  EXPECT_EQ(ends_.at(1), FinishReason::Type::kError);
  EXPECT_FALSE(ends_.contains(2));
  committer_->release(a);
  EXPECT_EQ(cache_->match({}, counting(0, 3)), 0);
  EXPECT_EQ(cache_->match({}, counting(20, 3)), 3);
}

TEST_F(CommitterTest, AGrammarMayForceTheWholeOutputBeforeAnythingRuns) {
  start(100);
  Sequence& a = waiting(counting(0, 3), 2);
  a.spec.takes_proposals = a.spec.has_grammar = true;
  queue_->remove(a);
  forced_ = {11, 12, 13};
  EXPECT_FALSE(committer_->take_first_forced(a));
  EXPECT_EQ(outputs_.at(1), (Tokens{11, 12}));
  EXPECT_EQ(ends_.at(1), FinishReason::Type::kLength);
}

}  // namespace
}  // namespace espalier
