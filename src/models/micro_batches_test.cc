// Random batches cut into micro-batches and put together again, equal in all that a model reads.
#include "models/micro_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

constexpr int32_t kPageSize = 4;

int32_t pages_of(int32_t tokens) { return (tokens + kPageSize - 1) / kPageSize; }

void add_entry(ForwardBatch& batch, Rng& rng) {
  BatchEntry e;
  e.slot = static_cast<SlotId>(batch.entries.size());
  e.num_query_tokens = 1 + static_cast<int32_t>(rng.below(12));
  e.prefix_len = static_cast<int32_t>(rng.below(20));
  e.query_begin = batch.num_tokens();
  e.page_begin = static_cast<int32_t>(batch.page_tables.size());
  e.num_pages = pages_of(e.prefix_len + e.num_query_tokens);
  e.sample = rng.below(2) == 0;
  if (e.sample && e.num_query_tokens > 3 && rng.below(2) == 0) {
    e.num_draft_tokens = 2;
    e.draft_samples_begin = static_cast<int32_t>(batch.draft_samples.size());
    e.num_draft_samples = 1;
    batch.draft_samples.push_back(1);
  }
  if (rng.below(3) == 0) {
    e.input_logprob_begin = static_cast<int32_t>(rng.below(e.num_query_tokens));
    for (int32_t i = e.input_logprob_begin; i + 1 < e.num_query_tokens; ++i)
      e.input_logprob_targets.push_back(static_cast<TokenId>(1000 + i));
  }
  if (!e.sample && rng.below(3) == 0)
    e.pooled_begin = static_cast<int32_t>(rng.below(e.num_query_tokens));
  for (int32_t i = 0; i < e.num_query_tokens; ++i) {
    batch.token_ids.push_back(static_cast<TokenId>(rng.below(500)));
    batch.positions.push_back(e.prefix_len + i);
  }
  for (int32_t i = 0; i < e.num_pages; ++i)
    batch.page_tables.push_back(static_cast<PageId>(rng.below(1000)));
  batch.entries.push_back(std::move(e));
}

// What of an entry's parts has been seen.
struct Seen {
  int32_t tokens = 0, samples = 0, pooled = 0;
  std::vector<TokenId> targets;
};

void check_part(const ForwardBatch& batch, const MicroBatch& part, std::vector<Seen>& seen) {
  ASSERT_EQ(part.origins.size(), part.batch.entries.size());
  ASSERT_EQ(part.batch.positions.size(), part.batch.token_ids.size());
  for (size_t i = 0; i < part.origins.size(); ++i) {
    const BatchEntry& own = part.batch.entries[i];
    const BatchEntry& whole = batch.entries[static_cast<size_t>(part.origins[i].entry)];
    Seen& of = seen[static_cast<size_t>(part.origins[i].entry)];
    EXPECT_EQ(own.slot, whole.slot);
    EXPECT_EQ(own.prefix_len, whole.prefix_len + of.tokens);
    EXPECT_EQ(own.num_pages, pages_of(own.prefix_len + own.num_query_tokens));
    for (int32_t page = 0; page < own.num_pages; ++page)
      EXPECT_EQ(part.batch.page_tables[static_cast<size_t>(own.page_begin + page)],
                batch.page_tables[static_cast<size_t>(whole.page_begin + page)]);
    if (!own.input_logprob_targets.empty()) {
      EXPECT_EQ(own.input_logprob_begin + of.tokens,
                whole.input_logprob_begin + part.origins[i].first_target);
      EXPECT_EQ(part.origins[i].first_target, std::ssize(of.targets));
    }
    of.targets.insert(of.targets.end(), own.input_logprob_targets.begin(),
                      own.input_logprob_targets.end());
    if (own.pooled_begin >= 0) of.pooled += own.num_query_tokens - own.pooled_begin;
    of.tokens += own.num_query_tokens;
    if (!own.sample) continue;
    ++of.samples;
    EXPECT_EQ(of.tokens, whole.num_query_tokens) << "the last part samples";
    EXPECT_EQ(own.num_draft_tokens, whole.num_draft_tokens);
    EXPECT_GE(own.last_known(), 0);
    for (int32_t k = 0; k < own.num_draft_samples; ++k)
      EXPECT_EQ(part.batch.draft_samples[static_cast<size_t>(own.draft_samples_begin + k)],
                batch.draft_samples[static_cast<size_t>(whole.draft_samples_begin + k)]);
  }
}

TEST(MicroBatches, OfRandomBatchesAreTheBatch) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    MicroBatches parts(1 + static_cast<int32_t>(rng.below(10)),
                       1 + static_cast<int32_t>(rng.below(8)),
                       {.per_position = static_cast<double>(rng.below(3)) / 2});
    for (int repeat = 0; repeat < 3; ++repeat) {
      ForwardBatch batch;
      const uint64_t count = 1 + rng.below(6);
      while (batch.entries.size() < count) add_entry(batch, rng);
      parts.cut(batch, kPageSize);
      std::vector<Seen> seen(batch.entries.size());
      std::vector<TokenId> tokens;
      std::vector<int32_t> positions;
      for (size_t i = 0; i < parts.size(); ++i) {
        EXPECT_EQ(parts[i].first_token, std::ssize(tokens));
        EXPECT_GT(parts[i].batch.num_tokens(), 0);
        const ForwardBatch& part = parts[i].batch;
        tokens.insert(tokens.end(), part.token_ids.begin(), part.token_ids.end());
        positions.insert(positions.end(), part.positions.begin(), part.positions.end());
        check_part(batch, parts[i], seen);
      }
      EXPECT_EQ(tokens, batch.token_ids);
      EXPECT_EQ(positions, batch.positions);
      for (size_t i = 0; i < seen.size(); ++i) {
        const BatchEntry& whole = batch.entries[i];
        EXPECT_EQ(seen[i].tokens, whole.num_query_tokens);
        EXPECT_EQ(seen[i].samples, whole.sample ? 1 : 0);
        EXPECT_EQ(seen[i].targets, whole.input_logprob_targets);
        EXPECT_EQ(seen[i].pooled,
                  whole.pooled_begin < 0 ? 0 : whole.num_query_tokens - whole.pooled_begin);
      }
    }
  }
}

ForwardBatch prompt(int32_t tokens) {
  ForwardBatch batch;
  BatchEntry e;
  e.num_query_tokens = tokens;
  e.num_pages = pages_of(tokens);
  batch.entries.push_back(e);
  for (int32_t i = 0; i < tokens; ++i) {
    batch.token_ids.push_back(i);
    batch.positions.push_back(i);
  }
  batch.page_tables.resize(static_cast<size_t>(e.num_pages));
  return batch;
}

TEST(MicroBatches, HaveFewerTokensWhereAttentionReadsMore) {
  const ForwardBatch batch = prompt(800);
  MicroBatches even(64, 8, {}), costly(64, 8, {.per_position = 0.01});
  even.cut(batch, kPageSize);
  costly.cut(batch, kPageSize);
  ASSERT_EQ(even.size(), 8u);
  ASSERT_EQ(costly.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(even[i].batch.num_tokens(), 100);
  for (size_t i = 1; i < 8; ++i)
    EXPECT_LE(costly[i].batch.num_tokens(), costly[i - 1].batch.num_tokens());
  EXPECT_LT(costly[7].batch.num_tokens(), 70);
}

TEST(MicroBatches, SmallStepsAreOne) {
  MicroBatches parts(64, 8, {});
  parts.cut(prompt(100), kPageSize);
  EXPECT_EQ(parts.size(), 1u);
  parts.cut(prompt(130), kPageSize);
  EXPECT_EQ(parts.size(), 2u);
}

TEST(MicroBatches, SpansOfPicturesAreCut) {
  ForwardBatch batch = prompt(12);
  const auto rows = std::make_shared<EncodedRows>(EncodedRows{.num_rows = 10, .width = 1});
  batch.embedding_spans = {{.token_begin = 2, .count = 8, .first_row = 1, .rows = rows}};
  batch.rotary_spans = {
      {.token_begin = 2, .count = 8, .position = 30, .first_row = 1, .columns = 3},
      {.token_begin = 10, .count = 2, .position = 50}};
  MicroBatches parts(1, 12, {});
  parts.cut(batch, kPageSize);
  ASSERT_EQ(parts.size(), 12u);
  EXPECT_TRUE(parts[1].batch.embedding_spans.empty());
  for (size_t i = 2; i < 10; ++i) {
    const ForwardBatch& part = parts[i].batch;
    ASSERT_EQ(part.embedding_spans.size(), 1u);
    EXPECT_EQ(part.embedding_spans[0].first_row, static_cast<int32_t>(i) - 1);
    EXPECT_EQ(part.embedding_spans[0].token_begin, 0);
    EXPECT_EQ(part.embedding_spans[0].count, 1);
    EXPECT_EQ(part.rotary_spans.at(0).first_row, static_cast<int32_t>(i) - 1);
    EXPECT_EQ(part.rotary_spans[0].position, 30);
  }
  EXPECT_EQ(parts[11].batch.rotary_spans.at(0).position, 51);
}

}  // namespace
}  // namespace espalier
