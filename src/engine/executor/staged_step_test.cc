// A step in micro-batches has the result of the step in one piece.
#include "engine/executor/staged_step.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

constexpr int32_t kPageSize = 4;
constexpr TokenId kBadToken = 99;

// A token of an executor that only adds up what an entry's tokens and positions are, so that it
// shows which tokens a micro-batch has.
StepResult run(const ForwardBatch& batch) {
  StepResult out{.step = batch.step};
  for (const BatchEntry& entry : batch.entries) {
    EntryResult& result = out.entries.emplace_back();
    const auto at = [&](int32_t i) { return static_cast<size_t>(entry.query_begin + i); };
    for (int32_t i = 0; i < entry.num_query_tokens; ++i) {
      EXPECT_EQ(batch.positions[at(i)], entry.prefix_len + i);
      if (batch.token_ids[at(i)] == kBadToken) result.status = invalid_argument("a bad token");
    }
    for (size_t i = 0; i < entry.input_logprob_targets.size(); ++i) {
      TokenLogprobs& logprobs = result.input_logprobs.emplace_back();
      const int32_t query = entry.input_logprob_begin + static_cast<int32_t>(i);
      logprobs.logprob =
          static_cast<float>(entry.input_logprob_targets[i] * 1000 + batch.positions[at(query)]);
    }
    if (!entry.sample) continue;
    result.token = batch.token_ids[at(entry.last_known())] * 100 + entry.output_index;
    for (int32_t i = 0; i < entry.num_draft_samples; ++i)
      result.draft_tokens.push_back(
          batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin + i)]);
  }
  return out;
}

ForwardBatch random_batch(Rng& rng, bool bad) {
  ForwardBatch batch{.step = 5};
  for (SlotId slot = 0; slot < 6; ++slot) {
    BatchEntry entry{.slot = slot,
                     .num_query_tokens = static_cast<int32_t>(1 + rng.below(slot < 3 ? 40 : 4)),
                     .prefix_len = static_cast<int32_t>(rng.below(9)),
                     .query_begin = batch.num_tokens(),
                     .page_begin = static_cast<int32_t>(batch.page_tables.size()),
                     .table_version = static_cast<uint64_t>(slot + 1),
                     .sample = rng.below(3) > 0,
                     .output_index = slot};
    entry.num_pages = (entry.prefix_len + entry.num_query_tokens + kPageSize - 1) / kPageSize;
    if (slot == 4 && entry.sample) {
      entry.num_query_tokens = 3;
      entry.num_pages = (entry.prefix_len + 3 + kPageSize - 1) / kPageSize;
      entry.num_draft_tokens = entry.num_draft_samples = 2;
      batch.draft_samples = {0, 1};
    }
    for (int32_t i = 0; i < entry.num_query_tokens; ++i) {
      batch.token_ids.push_back(bad && rng.below(30) == 0 ? kBadToken
                                                          : static_cast<TokenId>(rng.below(50)));
      batch.positions.push_back(entry.prefix_len + i);
    }
    if (slot < 2 && entry.num_query_tokens > 2) {
      entry.input_logprob_begin = 1;
      for (int32_t i = 1; i < entry.num_query_tokens - 1; ++i)
        entry.input_logprob_targets.push_back(i);
    }
    for (int32_t i = 0; i < entry.num_pages; ++i) batch.page_tables.push_back(100 * slot + i);
    batch.slot_inits.push_back({.slot = slot});
    batch.entries.push_back(entry);
  }
  return batch;
}

void expect_same(const StepResult& got, const StepResult& want) {
  ASSERT_EQ(got.entries.size(), want.entries.size());
  EXPECT_EQ(got.step, want.step);
  for (size_t i = 0; i < want.entries.size(); ++i) {
    const EntryResult &a = got.entries[i], &b = want.entries[i];
    EXPECT_EQ(a.status.ok(), b.status.ok());
    EXPECT_EQ(a.token, b.token);
    EXPECT_EQ(a.draft_tokens, b.draft_tokens);
    ASSERT_EQ(a.input_logprobs.size(), b.input_logprobs.size());
    for (size_t k = 0; k < b.input_logprobs.size(); ++k)
      EXPECT_EQ(a.input_logprobs[k].logprob, b.input_logprobs[k].logprob);
  }
}

TEST(StagedStep, HasTheResultOfTheWholeStep) {
  size_t most = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    StagedStep step(MicroBatches(3, 8, {.per_position = 0.05}));
    for (int repeat = 0; repeat < 2; ++repeat) {  // nothing of the step before is left
      const ForwardBatch batch = random_batch(rng, repeat == 1);
      step.begin(batch, kPageSize, 17);
      most = std::max(most, step.size());
      for (size_t i = 0; i < step.size(); ++i) {
        const ForwardBatch& part = step.micro_batch(i);
        EXPECT_EQ(part.step, 17 + i);
        EXPECT_EQ(part.slot_inits.size(), i == 0 ? 6u : 0u);
        for (const BatchEntry& entry : part.entries)
          EXPECT_EQ(entry.table_version, static_cast<uint64_t>(entry.slot + 1));
        step.add(i, run(part));
      }
      expect_same(step.result(), run(batch));
    }
  }
  EXPECT_EQ(most, 8u);
}

TEST(StagedStep, WithMasksIsOneMicroBatch) {
  Rng rng(1);
  ForwardBatch batch = random_batch(rng, false);
  StagedStep step(MicroBatches(3, 8, {}));
  step.begin(batch, kPageSize, 1);
  ASSERT_GT(step.size(), 1u);
  batch.entries[5].sample = batch.entries[5].has_mask = true;
  step.begin(batch, kPageSize, 1);
  ASSERT_EQ(step.size(), 1u);
  EXPECT_TRUE(step.micro_batch(0).entries[5].has_mask);
}

// Two runs of entries that decode, some of which share prefixes: what entries of the same part
// share is known to the part.
TEST(StagedStep, ThatDecodesIsCutByEntriesWhichKeepWhatTheyShare) {
  ForwardBatch batch{.step = 3};
  for (SlotId slot = 0; slot < 8; ++slot) {
    batch.entries.push_back({.slot = slot,
                             .num_query_tokens = 1,
                             .prefix_len = 12,
                             .query_begin = slot,
                             .page_begin = 4 * slot,
                             .num_pages = 4,
                             .sample = true});
    batch.token_ids.push_back(kTokenFromSlot);
    batch.positions.push_back(12);
    for (int32_t i = 0; i < 4; ++i) batch.page_tables.push_back(i < 2 ? i : 10 * slot + i);
  }
  batch.shared_prefixes = {{.begin = 0, .end = 4, .first_entry = 0, .num_entries = 7},
                           {.begin = 4, .end = 8, .parent = 0, .first_entry = 7, .num_entries = 2},
                           {.begin = 4, .end = 8, .parent = 0, .first_entry = 9, .num_entries = 2}};
  batch.shared_entries = {0, 1, 2, 3, 4, 5, 6, /**/ 3, 4, /**/ 5, 6};
  StagedStep step(MicroBatches(100, 8, {}, {.entries_min = 3, .count_max = 2}));
  step.begin(batch, kPageSize, 1);
  ASSERT_EQ(step.size(), 2u);
  const ForwardBatch &first = step.micro_batch(0), &second = step.micro_batch(1);
  ASSERT_EQ(first.entries.size(), 4u);
  ASSERT_EQ(first.shared_prefixes.size(), 1u);  // the children's entries are elsewhere
  EXPECT_EQ(first.shared_entries, (std::vector<int32_t>{0, 1, 2, 3}));
  ASSERT_EQ(second.shared_prefixes.size(), 2u);
  EXPECT_EQ(second.shared_entries, (std::vector<int32_t>{0, 1, 2, /**/ 1, 2}));
  EXPECT_EQ(second.shared_prefixes[0].parent, -1);
  EXPECT_EQ(second.shared_prefixes[1].parent, 0);
  EXPECT_EQ(second.shared_prefixes[1].first_entry, 3);
  batch.entries.resize(5);
  batch.token_ids.resize(5);
  batch.positions.resize(5);
  batch.shared_prefixes.clear();
  step.begin(batch, kPageSize, 3);
  EXPECT_EQ(step.size(), 1u) << "too few entries";
}

TEST(StagedStep, AFailureIsOfAllEntries) {
  Rng rng(2);
  const ForwardBatch batch = random_batch(rng, false);
  StagedStep step(MicroBatches(3, 8, {}));
  step.begin(batch, kPageSize, 1);
  step.add(0, run(step.micro_batch(0)));
  step.fail(invalid_argument("a stage is lost"));
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const EntryResult& entry = step.result().entries[i];
    EXPECT_FALSE(entry.status.ok());
    EXPECT_EQ(entry.token, -1);
    EXPECT_EQ(entry.input_logprobs.size(), batch.entries[i].input_logprob_targets.size());
  }
}

}  // namespace
}  // namespace espalier
