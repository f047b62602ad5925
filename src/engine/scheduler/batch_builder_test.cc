#include "engine/scheduler/batch_builder.h"

#include "engine/scheduler/parts_fixture.h"

namespace espalier {
namespace {

using BatchBuilderTest = PartsTest;

TEST_F(BatchBuilderTest, DecodeComesFirstAndPromptsShareTheLimit) {
  start(100, {.chunked_prefill_size = 5});
  Sequence& a = waiting(counting(0, 3), 9);
  ASSERT_TRUE(admit(a));
  commit(build(), 7);
  Sequence& b = waiting(counting(20, 4), 9);
  Sequence& c = waiting(counting(30, 4), 9);
  ASSERT_TRUE(admit(b) && admit(c));
  const ForwardBatch batch = build();
  ASSERT_EQ(batch.entries.size(), 3u);
  EXPECT_EQ(batch.entries[0].sequence, a.spec.id);
  EXPECT_EQ(batch.entries[0].num_query_tokens, 1);
  EXPECT_EQ(batch.entries[1].num_query_tokens, 4);
  EXPECT_TRUE(batch.entries[1].sample);
  EXPECT_EQ(batch.entries[2].num_query_tokens, 1);
  EXPECT_FALSE(batch.entries[2].sample);
  EXPECT_EQ(builder_->prompt_tokens_left(), 0);
  check();
}

TEST_F(BatchBuilderTest, ATokenThatAStepInFlightSamplesIsTakenFromItsSlot) {
  start(100);
  Sequence& a = waiting(counting(0, 3), 3);
  ASSERT_TRUE(admit(a));
  const ForwardBatch first = build(), second = build();
  EXPECT_EQ(second.token_ids, Tokens{kTokenFromSlot});
  EXPECT_EQ(second.positions, std::vector<int32_t>{3});
  commit(first, 7);
  EXPECT_EQ(build().positions, std::vector<int32_t>{4});
  commit(second, 7);
  EXPECT_TRUE(build().entries.empty());  // its third token is being sampled: the end is certain
}

TEST_F(BatchBuilderTest, DraftTokensUseWhatOthersLeave) {
  start(12, {.chunked_prefill_size = 8, .draft_samples_max = 2});
  Sequence& a = waiting(counting(0, 3), 9);
  a.spec.takes_proposals = a.spec.has_grammar = true;
  draft_tokens_ = {8, 9};
  ASSERT_TRUE(admit(a));
  const ForwardBatch batch = build();
  ASSERT_EQ(batch.entries.size(), 1u);
  EXPECT_EQ(limits_, std::pair(5, 2));  // 8 less the prompt
  EXPECT_EQ(batch.entries[0].num_draft_tokens, 2);
  EXPECT_EQ(batch.entries[0].last_known(), 2);
  EXPECT_EQ(batch.draft_samples, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(a.awaiting_commit);
  EXPECT_TRUE(build().entries.empty());
  check();
}

// Forced tokens of a grammar count as a prompt's do: in parts of 4 and 8 tokens, by weight.
TEST_F(BatchBuilderTest, ForcedTokensOfOneShareLeaveTheOthersTheirParts) {
  start(100, {.chunked_prefill_size = 12, .fair_share = FairShare::kTenant});
  tenant_ = "a";
  Sequence& a = waiting(counting(0, 3), 50);
  a.spec.takes_proposals = true;
  ASSERT_TRUE(admit(a));
  forced_ = counting(3, 20);
  commit(build(), 7);
  EXPECT_GE(a.num_due(), 20);
  tenant_ = "b";
  share_weight_ = 2;
  Sequence& b = waiting(counting(20, 20), 9);
  ASSERT_TRUE(admit(b));
  const ForwardBatch batch = build({.count = 2, .weight = 3});
  ASSERT_EQ(batch.entries.size(), 2u);
  EXPECT_EQ(batch.entries[0].num_query_tokens, 1 + 4);
  EXPECT_EQ(batch.entries[1].num_query_tokens, 8);
  EXPECT_EQ(builder_->prompt_tokens_left(), 0);
  check();
}

// Counting shares reads all running sequences, so it is left out of steps that only decode.
TEST_F(BatchBuilderTest, SharesAreCountedAtTheFirstPromptToken) {
  start(1000, {.chunked_prefill_size = 12, .fair_share = FairShare::kTenant});
  int num_counted = 0;
  const auto step = [&] {
    ForwardBatch batch;
    builder_->begin(batch, steps_.launched() + 1);
    builder_->add_running(batch, [&] {
      ++num_counted;
      return PromptShares{.count = 2, .weight = 2};
    });
    builder_->end(batch);
    steps_.launch();
    return batch;
  };
  ASSERT_TRUE(admit(waiting(counting(0, 3), 50)));
  ASSERT_TRUE(admit(waiting(counting(20, 3), 50)));
  commit(step(), 7);
  EXPECT_EQ(num_counted, 1);  // two prompts, counted once
  commit(step(), 7);
  commit(step(), 7);
  EXPECT_EQ(num_counted, 1);
  ASSERT_TRUE(admit(waiting(counting(40, 3), 50)));
  EXPECT_EQ(step().entries.size(), 3u);
  EXPECT_EQ(num_counted, 2);
}

TEST_F(BatchBuilderTest, SlotsAreSetUpOnceWithTheHistoryThatPenaltiesNeed) {
  start(100);
  Sequence& a = waiting(counting(0, 3), 9);
  SamplingSpec sampling;
  sampling.presence_penalty = 1;
  a.spec.sampling = std::make_shared<SamplingSpec>(sampling);
  ASSERT_TRUE(admit(a));
  const ForwardBatch first = build();
  ASSERT_EQ(first.slot_inits.size(), 1u);
  EXPECT_EQ(first.slot_inits[0].prompt_ids, counting(0, 3));
  EXPECT_TRUE(build().slot_inits.empty());
}

}  // namespace
}  // namespace espalier
