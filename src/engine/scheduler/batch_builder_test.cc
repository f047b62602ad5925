#include "engine/scheduler/batch_builder.h"

#include <array>

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

// Neither a plan that waits nor a step that verifies splits those that decode, and prompts wait
// with them.
TEST_F(BatchBuilderTest, PlannedDraftTokensKeepDecodeEntriesTogether) {
  start(100, {.chunked_prefill_size = 8, .draft_samples_max = 8});
  plan_.is_made = true;
  Sequence& a = waiting(counting(0, 3), 9);
  Sequence& b = waiting(counting(20, 3), 9);
  a.spec.takes_proposals = true;
  ASSERT_TRUE(admit(a) && admit(b));
  commit(build(), 7);
  using Site = std::tuple<SequenceId, int32_t, bool>;
  const ForwardBatch plain = build();
  EXPECT_EQ(plain.entries.size(), 2u);
  EXPECT_EQ(plan_.sites, std::vector<Site>{Site(a.spec.id, 9 - 1 - 1, false)});
  const auto num_built = [&] {
    ForwardBatch batch;
    builder_->begin(batch, steps_.launched() + 1);
    builder_->add_running(batch);
    builder_->end(batch);
    return batch.entries.size();
  };
  plan_.waits = true;
  ASSERT_TRUE(admit(waiting(counting(40, 3), 9)));
  EXPECT_EQ(num_built(), 0u);
  EXPECT_EQ(plan_.sites, std::vector<Site>{Site(a.spec.id, 9 - 1 - 2, true)});
  EXPECT_EQ(builder_->prompt_tokens_left(), 0) << "a prompt would have a step of its own";
  commit(plain, 7);
  draft_tokens_ = {8, 9};
  const ForwardBatch verifying = build();
  ASSERT_EQ(verifying.entries.size(), 3u) << "nothing is in flight, so nothing waits";
  EXPECT_EQ(verifying.entries[0].num_draft_tokens, 2);
  plan_.waits = false;
  EXPECT_EQ(num_built(), 0u) << "those without draft tokens wait for those with them";
  commit(verifying, 8, {5});
  EXPECT_EQ(num_built(), 3u);
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

std::shared_ptr<const EncodedRows> rows_of_a_picture(int32_t num_rows) {
  auto rows = std::make_shared<EncodedRows>();
  rows->num_rows = num_rows;
  return rows;
}

// Chunks cut pictures anywhere; decode entries have no spans.
TEST_F(BatchBuilderTest, SpansFollowTheirPositions) {
  start(100, {.chunked_prefill_size = 4});
  const TokenId key = kFirstSpanKey;
  Sequence& a = waiting({1, key, key, key, 2, key + 1, key + 1, 3}, 9);
  const PromptSpans spans{.spans = {{.begin = 1, .rows = rows_of_a_picture(3)},
                                    {.begin = 5, .rows = rows_of_a_picture(2)}},
                          .placeholder = 9};
  a.spec.has_spans = true;
  a.spec.spans = std::make_shared<const PromptSpans>(spans);
  a.logprobs.next = 1;
  SamplingSpec sampling;
  sampling.repetition_penalty = 1.5f;
  a.spec.sampling = std::make_shared<SamplingSpec>(sampling);
  ASSERT_TRUE(admit(a));
  const auto span_of = [](const EmbeddingSpan& span) {
    return std::vector<int32_t>{span.token_begin, span.count, span.first_row};
  };
  const ForwardBatch first = build();
  EXPECT_EQ(first.token_ids, (Tokens{1, key, key, key}));
  ASSERT_EQ(first.embedding_spans.size(), 1u);
  EXPECT_EQ(span_of(first.embedding_spans[0]), (std::vector<int32_t>{1, 3, 0}));
  EXPECT_EQ(first.embedding_spans[0].rows, spans.spans[0].rows);
  EXPECT_EQ(first.slot_inits[0].prompt_ids, (Tokens{1, 2, 3}));  // keys have no penalty
  EXPECT_EQ(first.entries[0].input_logprob_targets, (Tokens{9, 9, 9, 2}));
  commit(first, 7);
  const ForwardBatch second = build();
  ASSERT_EQ(second.embedding_spans.size(), 1u);
  EXPECT_EQ(span_of(second.embedding_spans[0]), (std::vector<int32_t>{1, 2, 0}));
  EXPECT_EQ(second.embedding_spans[0].rows, spans.spans[1].rows);
  EXPECT_EQ(second.entries[0].input_logprob_targets, (Tokens{9, 9, 3}));
  commit(second, 7);
  EXPECT_TRUE(build().embedding_spans.empty());
  check();
}

TEST_F(BatchBuilderTest, AChunkMayBeginWithinAPicture) {
  start(100, {.chunked_prefill_size = 3});
  const TokenId key = kFirstSpanKey + 5;
  Sequence& b = waiting(counting(20, 1), 9);
  ASSERT_TRUE(admit(b));
  commit(build(), 7);
  Sequence& a = waiting(Tokens(8, key), 9);
  a.spec.has_spans = true;
  a.spec.spans = std::make_shared<const PromptSpans>(
      PromptSpans{.spans = {{.begin = 0, .rows = rows_of_a_picture(8)}}, .placeholder = 9});
  ASSERT_TRUE(admit(a));
  const ForwardBatch first = build();
  ASSERT_EQ(first.embedding_spans.size(), 1u);
  EXPECT_EQ(first.embedding_spans[0].token_begin, 1);  // behind the decode entry's
  EXPECT_EQ(first.embedding_spans[0].count, 3);
  const ForwardBatch second = build();
  ASSERT_EQ(second.embedding_spans.size(), 1u);
  EXPECT_EQ(second.embedding_spans[0].first_row, 3);
  commit(first, 7);
  commit(second, 7);
  check();
}

// A picture as large as a chunk has room where no draft tokens are.
TEST_F(BatchBuilderTest, AWholePictureWaitsForNoDraftTokens) {
  start(200, {.chunked_prefill_size = 8, .draft_samples_max = 4});
  Sequence& a = waiting(counting(20, 1), 90);
  a.spec.takes_proposals = true;
  ASSERT_TRUE(admit(a));
  commit(build(), 7);
  draft_tokens_ = {8, 9};
  const TokenId key = kFirstSpanKey + 5;
  Sequence& b = waiting(Tokens(8, key), 9);
  b.spec.has_spans = true;
  b.spec.spans = std::make_shared<const PromptSpans>(PromptSpans{
      .spans = {{.begin = 0, .rows = rows_of_a_picture(8)}}, .placeholder = 9, .whole = true});
  ASSERT_TRUE(admit(b));
  const ForwardBatch drafting = build();
  ASSERT_EQ(drafting.entries.size(), 1u);
  EXPECT_EQ(drafting.entries[0].num_draft_tokens, 2);
  commit(drafting, 7, {7, 7});
  const ForwardBatch whole = build();
  ASSERT_EQ(whole.entries.size(), 2u);
  EXPECT_EQ(whole.entries[0].num_draft_tokens, 0);
  EXPECT_EQ(whole.entries[1].num_query_tokens, 8);
  commit(whole, 7);
  EXPECT_EQ(build().entries[0].num_draft_tokens, 2) << "draft tokens come again";
  check();
}

using Place = std::array<int32_t, 3>;

// What a model makes of a batch's positions.
std::vector<Place> places_of(const ForwardBatch& batch) {
  std::vector<Place> places;
  for (const int32_t position : batch.positions) places.push_back({position, position, position});
  for (const RotarySpan& span : batch.rotary_spans) {
    for (int32_t i = 0; i < span.count; ++i) {
      const int32_t row = span.first_row + i, text = span.position + i;
      places.at(static_cast<size_t>(span.token_begin + i)) =
          span.columns == 0 ? Place{text, text, text}
                            : Place{span.position, span.position + row / span.columns,
                                    span.position + row % span.columns};
    }
  }
  return places;
}

// Two pictures of two lines of three and of three lines of one, cut anywhere, beside a text.
class CutGrids : public PartsTest, public testing::WithParamInterface<int32_t> {};

TEST_P(CutGrids, RotaryPositionsGoOnBehindThem) {
  const std::vector<Place> wanted = {{0, 0, 0}, {1, 1, 1}, {1, 1, 2}, {1, 1, 3},   {1, 2, 1},
                                     {1, 2, 2}, {1, 2, 3}, {4, 4, 4}, {5, 5, 5},   {5, 6, 5},
                                     {5, 7, 5}, {8, 8, 8}, {9, 9, 9}, {10, 10, 10}};
  const auto grid = [](int32_t num_rows, int32_t columns) {
    auto rows = std::make_shared<EncodedRows>();
    rows->num_rows = num_rows;
    rows->grid_columns = columns;
    return rows;
  };
  start(100, {.chunked_prefill_size = GetParam()});
  ASSERT_TRUE(admit(waiting(counting(20, 1), 50)));
  commit(build(), 7);
  Tokens prompt(12, kFirstSpanKey);
  prompt[0] = prompt[7] = prompt[11] = 1;
  Sequence& a = waiting(prompt, 9);
  a.spec.has_spans = true;
  a.spec.spans = std::make_shared<const PromptSpans>(
      PromptSpans{.spans = {{.begin = 1, .rows = grid(6, 3), .rotary = 1},
                            {.begin = 8, .rows = grid(3, 1), .rotary = 5}},
                  .placeholder = 9,
                  .have_grids = true});
  ASSERT_TRUE(admit(a));
  std::vector<Place> made;
  while (made.size() < wanted.size()) {
    const ForwardBatch batch = build();
    ASSERT_FALSE(batch.entries.empty());
    const std::vector<Place> places = places_of(batch);
    const BatchEntry& text = batch.entries[0];
    EXPECT_EQ(places[0][0], text.prefix_len);  // of the other sequence
    for (size_t i = 1; i < places.size(); ++i) made.push_back(places[i]);
    commit(batch, 7);
  }
  EXPECT_EQ(made, wanted);
}

INSTANTIATE_TEST_SUITE_P(All, CutGrids, testing::Values(1, 2, 3, 5, 20));

}  // namespace
}  // namespace espalier
