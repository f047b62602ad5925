// Entries of draft tokens against what forward_batch.h says of them, token by token.
#include "engine/executor/cuda/draft_rows.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/rng.h"

namespace espalier {
namespace {

// A query token: its slot, position and id, and as which output token it is sampled behind (-1: it
// is not).
using Query = std::tuple<SlotId, int32_t, TokenId, int32_t>;

ForwardBatch random_batch(Rng& rng) {
  ForwardBatch batch{.step = 1 + rng.below(100)};
  const auto num_entries = static_cast<SlotId>(rng.between(1, 6));
  for (SlotId slot = 0; slot < num_entries; ++slot) {
    BatchEntry entry{.slot = slot,
                     .prefix_len = static_cast<int32_t>(rng.below(50)),
                     .query_begin = batch.num_tokens(),
                     .table_version = 1 + rng.below(9),
                     .sample = rng.below(8) > 0,
                     .output_index = static_cast<int32_t>(rng.below(30))};
    const auto num_known = static_cast<int32_t>(rng.below(3) > 0 ? 1 : rng.between(1, 9));
    if (entry.sample) entry.num_draft_tokens = static_cast<int32_t>(rng.below(7));
    entry.has_mask = entry.sample && rng.below(2) == 0;
    entry.num_query_tokens = num_known + entry.num_draft_tokens;
    entry.draft_samples_begin = static_cast<int32_t>(batch.draft_samples.size());
    for (int32_t i = 0; i < entry.num_draft_tokens; ++i)
      if (rng.below(4) > 0) batch.draft_samples.push_back(i);
    entry.num_draft_samples =
        static_cast<int32_t>(batch.draft_samples.size()) - entry.draft_samples_begin;
    for (int32_t i = 0; i < entry.num_query_tokens; ++i)
      batch.token_ids.push_back(static_cast<TokenId>(rng.below(1000)));
    batch.entries.push_back(entry);
  }
  return batch;
}

// Two levels that all and the first two entries of one known token share.
void share(ForwardBatch& batch) {
  std::vector<int32_t> members;
  int32_t least = 50;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    if (!batch.entries[i].has_single_known_row()) continue;
    members.push_back(static_cast<int32_t>(i));
    least = std::min(least, batch.entries[i].prefix_len);
  }
  if (members.size() < 2 || least < 4) return;
  batch.shared_entries = members;
  batch.shared_entries.insert(batch.shared_entries.end(), members.begin(), members.begin() + 2);
  const auto all = static_cast<int32_t>(members.size());
  batch.shared_prefixes.push_back({.begin = 0, .end = 2, .parent = -1, .num_entries = all});
  batch.shared_prefixes.push_back(
      {.begin = 2, .end = 4, .parent = 0, .first_entry = all, .num_entries = 2});
}

std::vector<Query> queries_of(const ForwardBatch& batch) {
  std::vector<Query> out;
  for (const BatchEntry& entry : batch.entries) {
    for (int32_t i = 0; i < entry.num_query_tokens; ++i) {
      int32_t output = i == entry.last_known() && entry.sample ? entry.output_index : -1;
      for (int32_t k = 0; k < entry.num_draft_samples; ++k) {
        const int32_t draft =
            batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin + k)];
        if (i == entry.last_known() + 1 + draft) output = entry.output_index + 1 + draft;
      }
      out.emplace_back(entry.slot, entry.prefix_len + i,
                       batch.token_ids[static_cast<size_t>(entry.query_begin + i)], output);
    }
  }
  return out;
}

// Members are rows of one token, and all that a row is said to share was cached before the step.
void check_prefixes(const ForwardBatch& batch, const ForwardBatch& rows) {
  for (const SharedPrefixSegment& prefix : rows.shared_prefixes) {
    EXPECT_LT(prefix.begin, prefix.end);
    if (prefix.parent >= 0) {
      EXPECT_EQ(rows.shared_prefixes[static_cast<size_t>(prefix.parent)].end, prefix.begin);
    }
    for (int32_t i = 0; i < prefix.num_entries; ++i) {
      const BatchEntry& row = rows.entries[static_cast<size_t>(
          rows.shared_entries[static_cast<size_t>(prefix.first_entry + i)])];
      EXPECT_EQ(row.num_query_tokens, 1);
      EXPECT_LE(prefix.end, batch.entries[static_cast<size_t>(row.slot)].prefix_len);
    }
  }
}

TEST(DraftRows, HaveEachQueryTokenOnceAndFoldBack) {
  DraftRows expander;
  size_t num_prefixes = 0, num_expanded = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ForwardBatch batch = random_batch(rng);
    share(batch);
    const ForwardBatch& rows = expander.expand(batch);
    EXPECT_EQ(&rows == &batch, batch.draft_samples.empty());
    EXPECT_EQ(queries_of(rows), queries_of(batch));
    check_prefixes(batch, rows);
    if (&rows == &batch) continue;
    ++num_expanded;
    EXPECT_EQ(rows.step, batch.step);
    EXPECT_TRUE(rows.draft_samples.empty());
    EXPECT_EQ(rows.entries.size(), batch.entries.size() + batch.draft_samples.size());
    num_prefixes += rows.shared_prefixes.size();
    StepResult& of_rows = expander.results();
    of_rows.entries.clear();
    for (const BatchEntry& row : rows.entries) {
      const BatchEntry& entry = batch.entries[static_cast<size_t>(row.slot)];
      EXPECT_EQ(row.has_mask, entry.has_mask);
      EXPECT_EQ(row.table_version, entry.table_version);
      of_rows.entries.push_back({.token = row.sample ? row.output_index : -1});
      of_rows.entries.back().logprobs.logprob = static_cast<float>(row.output_index);
    }
    StepResult folded;
    expander.fold(batch, folded);
    ASSERT_EQ(folded.entries.size(), batch.entries.size());
    for (size_t i = 0; i < batch.entries.size(); ++i) {
      const BatchEntry& entry = batch.entries[i];
      const EntryResult& result = folded.entries[i];
      EXPECT_EQ(result.token, entry.sample ? entry.output_index : -1);
      ASSERT_EQ(std::ssize(result.draft_tokens), entry.num_draft_samples);
      ASSERT_EQ(std::ssize(result.draft_logprobs), entry.num_draft_samples);
      for (size_t k = 0; k < result.draft_tokens.size(); ++k) {
        const int32_t draft =
            batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin) + k];
        EXPECT_EQ(result.draft_tokens[k], entry.output_index + 1 + draft);
        EXPECT_EQ(result.draft_logprobs[k].logprob,
                  static_cast<float>(entry.output_index + 1 + draft));
      }
    }
  }
  EXPECT_GT(num_expanded, 1000u);
  EXPECT_GT(num_prefixes, 1000u);
}

// A draft token that failed is not the entry's failure.
TEST(DraftRows, FailuresOfDraftTokensAreTheirs) {
  DraftRows expander;
  ForwardBatch batch{.step = 1};
  batch.entries.push_back({.slot = 0,
                           .num_query_tokens = 3,
                           .prefix_len = 7,
                           .sample = true,
                           .num_draft_tokens = 2,
                           .num_draft_samples = 2});
  batch.token_ids = {1, 2, 3};
  batch.draft_samples = {0, 1};
  expander.expand(batch);
  expander.results().entries = {
      {.token = 2}, {.status = error(StatusCode::kInternal, "logits"), .token = -1}, {.token = 9}};
  StepResult folded;
  expander.fold(batch, folded);
  EXPECT_TRUE(folded.entries[0].status.ok());
  EXPECT_EQ(folded.entries[0].token, 2);
  EXPECT_EQ(folded.entries[0].draft_tokens, (std::vector<TokenId>{-1, 9}));
}

// What is not known on the host yet stays so, a token further for each row.
TEST(DraftRows, LengthsFromSlotsStayBounds) {
  DraftRows expander;
  ForwardBatch batch{.step = 1};
  batch.entries.push_back({.slot = 0,
                           .num_query_tokens = 2,
                           .prefix_len = kLengthFromSlot,
                           .prefix_len_max = 10,
                           .sample = true,
                           .num_draft_tokens = 1,
                           .num_draft_samples = 1});
  batch.token_ids = {kTokenFromSlot, 5};
  batch.draft_samples = {0};
  const ForwardBatch& rows = expander.expand(batch);
  ASSERT_EQ(rows.entries.size(), 2u);
  EXPECT_EQ(rows.entries[1].prefix_len, kLengthFromSlot);
  EXPECT_EQ(rows.entries[1].prefix_len_bound(), 11);
  EXPECT_TRUE(rows.shared_prefixes.empty());
}

}  // namespace
}  // namespace espalier
