// What a draft head is given of a step: the tokens that were accepted, each with the one behind it,
// and its own draft tokens in pages where nobody else's keys lie.
#include "engine/executor/draft_chains.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace espalier {
namespace {

using Ints = std::vector<int32_t>;

constexpr PageId kFirstPage = 1000;

// Proposes the token after the one that it reads, and keeps what it was given.
class CountingHead final : public DraftHead {
 public:
  const DraftHeadInfo& info() const override { return info_; }
  std::span<const TokenId> draft(const ForwardBatch& batch, std::span<const int32_t> rows,
                                 const KvView&) override {
    return take(batch, rows);
  }
  std::span<const TokenId> draft_next(const ForwardBatch& batch, std::span<const int32_t> rows,
                                      const KvView&) override {
    for (const BatchEntry& entry : batch.entries)
      EXPECT_TRUE(entry.sample && entry.num_query_tokens == 1);
    return take(batch, rows);
  }
  Status reserve(int32_t, int32_t) override { return {}; }
  DraftKvInfo kv_info() const override { return {}; }
  std::span<const float> logits() const override { return {}; }

  std::vector<ForwardBatch> batches;
  std::vector<Ints> rows_of;
  DraftHeadInfo info_;

 private:
  std::span<const TokenId> take(const ForwardBatch& batch, std::span<const int32_t> rows) {
    batches.push_back(batch);
    rows_of.emplace_back(rows.begin(), rows.end());
    drafted_.clear();
    for (const BatchEntry& entry : batch.entries) {
      const int32_t end = entry.prefix_len + entry.num_query_tokens;
      EXPECT_EQ(entry.num_pages, (end + 3) / 4);
      const auto last = static_cast<size_t>(entry.query_begin + entry.num_query_tokens - 1);
      if (entry.sample) drafted_.push_back(batch.token_ids[last] + 1);
    }
    return drafted_;
  }
  std::vector<TokenId> drafted_;
};

class DraftChainsTest : public testing::Test {
 protected:
  // An entry whose tokens count up from 10 * slot, on pages of 4 that do so from 100 * slot.
  BatchEntry& add(int32_t prefix_len, int32_t num_query_tokens, int32_t chain_length) {
    const auto slot = static_cast<int32_t>(batch_.entries.size()) + 1;
    BatchEntry entry{.slot = slot,
                     .num_query_tokens = num_query_tokens,
                     .prefix_len = prefix_len,
                     .query_begin = batch_.num_tokens(),
                     .page_begin = static_cast<int32_t>(batch_.page_tables.size()),
                     .num_pages = (prefix_len + num_query_tokens + 3) / 4,
                     .sample = chain_length > 0};
    entry.chain_length = chain_length;
    for (int32_t i = 0; i < num_query_tokens; ++i) {
      batch_.token_ids.push_back(10 * slot + i);
      batch_.positions.push_back(prefix_len + i);
    }
    for (int32_t i = 0; i < entry.num_pages; ++i) batch_.page_tables.push_back(100 * slot + i);
    result_.entries.emplace_back();
    return batch_.entries.emplace_back(entry);
  }
  void run() {
    DraftChains(head_, kFirstPage).run(batch_, batch_.token_ids, {.page_size = 4}, result_);
  }

  CountingHead head_;
  ForwardBatch batch_;
  StepResult result_;
};

TEST_F(DraftChainsTest, ReadsEachTokenWithTheOneBehindIt) {
  add(3, 2, 2);  // tokens 10, 11
  result_.entries[0].token = 70;
  add(0, 5, BatchEntry::kNoChain);
  add(4, 3, 0).next_token = 77;  // a chunk of a prompt: 30, 31, 32
  add(0, 1, 0);                  // nothing is known behind it
  run();
  ASSERT_EQ(head_.batches.size(), 2u);
  EXPECT_EQ(head_.batches[0].token_ids, (Ints{11, 70, 31, 32, 77}));
  EXPECT_EQ(head_.batches[0].positions, (Ints{3, 4, 4, 5, 6}));
  EXPECT_EQ(head_.rows_of[0], (Ints{0, 1, 7, 8, 9}));
  EXPECT_EQ(result_.entries[0].chain, (Ints{71, 72}));
  EXPECT_TRUE(result_.entries[2].chain.empty());
}

// Of four draft tokens one is accepted: the head does not read the others.
TEST_F(DraftChainsTest, ReadsAcceptedDraftTokensAlone) {
  BatchEntry& entry = add(8, 5, 1);  // 10, and draft tokens 11 to 14
  entry.num_draft_tokens = entry.num_draft_samples = 4;
  batch_.draft_samples = {0, 1, 2, 3};
  result_.entries[0].token = 11;
  result_.entries[0].draft_tokens = {50, 51, 52, 53};
  run();
  ASSERT_EQ(head_.batches.size(), 1u);
  EXPECT_EQ(head_.batches[0].token_ids, (Ints{11, 50}));
  EXPECT_EQ(head_.batches[0].entries[0].num_pages, 3);
  EXPECT_EQ(result_.entries[0].chain, (Ints{51}));
}

// The third of four draft tokens is forced by the second, so nothing is sampled behind that one.
TEST_F(DraftChainsTest, WhatAGrammarForcesIsAcceptedWithTheTokenBeforeIt) {
  BatchEntry& entry = add(8, 5, 1);  // 10, and draft tokens 11 to 14
  entry.num_draft_tokens = 4;
  entry.num_draft_samples = 3;
  batch_.draft_samples = {0, 2, 3};
  result_.entries[0].token = 11;
  result_.entries[0].draft_tokens = {12, 14, 50};
  run();
  ASSERT_EQ(head_.batches.size(), 1u);
  EXPECT_EQ(head_.batches[0].token_ids, (Ints{11, 12, 13, 14, 50}));
  EXPECT_EQ(result_.entries[0].chain, (Ints{51}));
  EXPECT_EQ(result_.entries[0].chain_begin, 14);
  result_.entries[0].draft_tokens = {12, 15, 50};
  result_.entries[0].chain.clear();
  run();
  EXPECT_EQ(head_.batches[1].token_ids, (Ints{11, 12, 13, 15}));
  EXPECT_EQ(result_.entries[0].chain_begin, 13);
}

TEST_F(DraftChainsTest, ChainsOfDifferentLengthsHavePagesOfTheirOwn) {
  for (const auto& [prefix_len, length] : {std::pair(6, 9), std::pair(7, 1), std::pair(4, 5)}) {
    add(prefix_len, 1, length);
    result_.entries.back().token = 500 + length;
  }
  run();
  EXPECT_EQ(head_.batches.size(), 9u);
  for (size_t i = 0; i < result_.entries.size(); ++i) {
    const std::vector<TokenId>& chain = result_.entries[i].chain;
    ASSERT_EQ(std::ssize(chain), batch_.entries[i].chain_length);
    for (size_t k = 0; k < chain.size(); ++k)
      EXPECT_EQ(chain[k], result_.entries[i].token + 1 + static_cast<TokenId>(k));
  }
  // The first entry's chain lies at 7 to 14: in its last page, and in two of the class's.
  const ForwardBatch& last = head_.batches.back();
  EXPECT_EQ(last.page_tables, (Ints{100, 101, kFirstPage, kFirstPage + 1}));
  EXPECT_EQ(last.positions, (Ints{14}));
  // Entries of one pass never write into the same page.
  for (const ForwardBatch& batch : head_.batches) {
    std::set<PageId> written;
    for (const BatchEntry& entry : batch.entries)
      EXPECT_TRUE(
          written
              .insert(
                  batch.page_tables[static_cast<size_t>(entry.page_begin + entry.prefix_len / 4)])
              .second);
  }
  EXPECT_LE(kFirstPage + DraftChains::num_pages(3, 4), kFirstPage + 12);
}

// A draft model reads tokens at their own positions, and the sampled one, whose page may be one of
// the class's.
TEST_F(DraftChainsTest, ADraftModelReadsTheTokensThemselves) {
  head_.info_.reads_states = false;
  add(2, 2, 2);  // tokens 10, 11 on one page
  result_.entries[0].token = 70;
  add(4, 3, 0).next_token = 77;      // a chunk of a prompt: 20, 21, 22
  add(0, 1, 0);                      // nothing is known behind it
  BatchEntry& entry = add(8, 4, 1);  // 40, and draft tokens 41 to 43, of which one is accepted
  entry.num_draft_tokens = entry.num_draft_samples = 3;
  batch_.draft_samples = {0, 1, 2};
  result_.entries[3].token = 41;
  result_.entries[3].draft_tokens = {50, 51, 52};
  run();
  ASSERT_EQ(head_.batches.size(), 2u);
  const ForwardBatch& first = head_.batches[0];
  EXPECT_EQ(first.token_ids, (Ints{10, 11, 70, 20, 21, 22, 30, 40, 41, 50}));
  EXPECT_EQ(first.positions, (Ints{2, 3, 4, 4, 5, 6, 0, 8, 9, 10}));
  EXPECT_EQ(first.page_tables, (Ints{100, kFirstPage, 200, 201, 300, 400, 401, 402}));
  EXPECT_EQ(head_.batches[1].positions, (Ints{5}));
  EXPECT_EQ(result_.entries[0].chain, (Ints{71, 72}));
  EXPECT_EQ(result_.entries[3].chain, (Ints{51}));
}

// Beyond the positions that a draft model computes there are no draft tokens.
TEST_F(DraftChainsTest, ChainsEndWithTheDraftModelsContext) {
  head_.info_.reads_states = false;
  head_.info_.context_length = 8;
  add(3, 2, 5);  // the chain's keys lie at 5, 6 and 7
  add(6, 1, 5);
  add(7, 1, 5);
  for (EntryResult& result : result_.entries) result.token = 70;
  run();
  EXPECT_EQ(result_.entries[0].chain, (Ints{71, 72, 73}));
  EXPECT_EQ(result_.entries[1].chain, (Ints{71}));
  EXPECT_TRUE(result_.entries[2].chain.empty());
}

TEST_F(DraftChainsTest, AnEntryThatFailedHasNone) {
  add(0, 2, 3);
  result_.entries[0].status = error(StatusCode::kInternal, "it failed");
  add(0, 2, 3);  // nothing was sampled
  run();
  EXPECT_TRUE(head_.batches.empty());
  EXPECT_TRUE(result_.entries[0].chain.empty() && result_.entries[1].chain.empty());
}

}  // namespace
}  // namespace espalier
