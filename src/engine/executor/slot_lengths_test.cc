// Entries whose prefix length only the executor knows: steps launched before the draft tokens of
// the step before them are verified give the tokens and log-probabilities of steps of one token
// each.
#include "engine/executor/slot_lengths.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/rng.h"
#include "engine/executor/cpu_executor.h"
#include "engine/executor/null_executor.h"

namespace espalier {
namespace {

constexpr int32_t kTableVocab = 50, kTablePage = 4, kTablePages = 64;
const std::vector<TokenId> kTablePrompt = {5, 6, 7};

// Logits are a function of a query token and its position.
class PositionModel final : public Model {
 public:
  PositionModel() { info_.vocab_size = kTableVocab; }
  const ModelInfo& info() const override { return info_; }
  Status reserve(int32_t, int32_t) override { return {}; }
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView&, const InputLogitsSink&) override {
    rows_.clear();
    for (const BatchEntry& entry : batch.entries) {
      if (!entry.sample) continue;
      add_row(batch, token_ids, entry, entry.last_known());
      for (int32_t k = 0; k < entry.num_draft_samples; ++k)
        add_row(batch, token_ids, entry,
                entry.last_known() + 1 +
                    batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin + k)]);
    }
    return {.sample_logits = rows_};
  }

 private:
  void add_row(const ForwardBatch& batch, std::span<const TokenId> token_ids,
               const BatchEntry& entry, int32_t query_token) {
    const auto at = static_cast<size_t>(entry.query_begin + query_token);
    EXPECT_EQ(batch.positions[at], entry.prefix_len + query_token);
    Rng rng(static_cast<uint64_t>(token_ids[at]) * 1000 +
            static_cast<uint64_t>(batch.positions[at]));
    for (int32_t i = 0; i < kTableVocab; ++i)
      rows_.push_back(static_cast<float>(4 * rng.uniform()));
  }
  ModelInfo info_;
  std::vector<float> rows_;
};

std::unique_ptr<Executor> cpu_executor() {
  CpuExecutorParts parts{.pool = std::make_unique<WorkPool>(2),
                         .model = std::make_unique<PositionModel>(),
                         .kv = *KvPool::create({.num_layers = 1,
                                                .num_kv_heads = 1,
                                                .head_dim = 8,
                                                .num_pages = kTablePages,
                                                .page_size = kTablePage})};
  return *CpuExecutor::create(std::move(parts), {.max_slots = 8, .max_tokens = 64});
}

std::unique_ptr<Executor> null_executor() {
  return std::make_unique<NullExecutor>(
      NullExecutorConfig{.vocab_size = kTableVocab, .page_size = kTablePage});
}

using MakeExecutor = std::unique_ptr<Executor> (*)();

struct Output {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  friend bool operator==(const Output&, const Output&) = default;
};

// The first step, which sets slot 0 up, and the later ones have one entry each.
ForwardBatch make_step(uint64_t step, std::span<const TokenId> known,
                       std::span<const TokenId> draft, int32_t prefix_len, int32_t prefix_len_max) {
  ForwardBatch batch{.step = step};
  if (step == 1) {
    SamplingSpec spec{{.temperature = 1.5f, .seed = 42}};
    spec.return_logprob = true;
    batch.slot_inits.push_back({.slot = 0, .sampling = std::make_shared<SamplingSpec>(spec)});
  }
  batch.token_ids.assign(known.begin(), known.end());
  batch.token_ids.insert(batch.token_ids.end(), draft.begin(), draft.end());
  const auto count = static_cast<int32_t>(batch.token_ids.size());
  // Positions of an entry with kLengthFromSlot are not read.
  for (int32_t i = 0; i < count; ++i)
    batch.positions.push_back(prefix_len < 0 ? -9 : prefix_len + i);
  BatchEntry entry{.slot = 0,
                   .num_query_tokens = count,
                   .prefix_len = prefix_len,
                   .prefix_len_max = prefix_len_max,
                   .sample = true,
                   .output_index = prefix_len < 0
                                       ? -9
                                       : prefix_len + static_cast<int32_t>(known.size()) -
                                             static_cast<int32_t>(kTablePrompt.size())};
  entry.num_pages = (entry.prefix_len_bound() + count + kTablePage - 1) / kTablePage;
  for (int32_t i = 0; i < entry.num_pages; ++i) batch.page_tables.push_back(kTablePages - 1 - i);
  entry.num_draft_tokens = entry.num_draft_samples = static_cast<int32_t>(draft.size());
  for (int32_t i = 0; i < entry.num_draft_tokens; ++i) batch.draft_samples.push_back(i);
  batch.entries.push_back(entry);
  return batch;
}

// One token a step, each step waited for.
Output run_waiting(Executor& executor, int32_t num_tokens) {
  Output out;
  for (int32_t i = 0; i < num_tokens; ++i) {
    const std::vector<TokenId> known =
        i == 0 ? kTablePrompt : std::vector<TokenId>{out.tokens.back()};
    const int32_t prefix_len = i == 0 ? 0 : static_cast<int32_t>(kTablePrompt.size()) + i - 1;
    const ForwardBatch batch = make_step(static_cast<uint64_t>(i) + 1, known, {}, prefix_len, 0);
    executor.launch(batch);
    const EntryResult& result = executor.wait(batch.step).entries[0];
    EXPECT_EQ(result.length, prefix_len + static_cast<int32_t>(known.size()));
    out.tokens.push_back(result.token);
    out.logprobs.push_back(result.logprobs.logprob);
  }
  return out;
}

void take(const EntryResult& result, int32_t num_accepted, Output& out) {
  ASSERT_TRUE(result.status.ok()) << result.status.to_string();
  out.tokens.push_back(result.token);
  out.logprobs.push_back(result.logprobs.logprob);
  for (int32_t i = 0; i < num_accepted; ++i) {
    out.tokens.push_back(result.draft_tokens[static_cast<size_t>(i)]);
    out.logprobs.push_back(result.draft_logprobs[static_cast<size_t>(i)].logprob);
  }
}

// Three draft tokens a step, of which the first accepted[i] of step i + 1 are right; each step is
// launched before the one before it is waited for.
Output run_overlapped(Executor& executor, const std::vector<TokenId>& truth,
                      const std::vector<int32_t>& accepted) {
  constexpr int32_t kDraft = 3;
  std::vector<ForwardBatch> batches;
  std::vector<int32_t> lengths;
  int32_t num_out = 0, length_max = 0;
  for (size_t i = 0; i < accepted.size(); ++i) {
    std::vector<TokenId> draft(truth.begin() + num_out, truth.begin() + num_out + kDraft);
    if (accepted[i] < kDraft) draft[static_cast<size_t>(accepted[i])] += 1;
    const std::vector<TokenId> known = i == 0 ? kTablePrompt : std::vector<TokenId>{kTokenFromSlot};
    const int32_t prefix_len = i == 0 ? 0 : kLengthFromSlot;
    batches.push_back(make_step(i + 1, known, draft, prefix_len, length_max));
    num_out += 1 + accepted[i];
    length_max += static_cast<int32_t>(known.size()) + kDraft;
    lengths.push_back(static_cast<int32_t>(kTablePrompt.size()) - 1 + num_out);
  }
  Output out;
  executor.launch(batches[0]);
  for (size_t i = 0; i < batches.size(); ++i) {
    if (i + 1 < batches.size()) executor.launch(batches[i + 1]);
    const EntryResult& result = executor.wait(i + 1).entries[0];
    EXPECT_EQ(result.length, lengths[i]);
    take(result, accepted[i], out);
  }
  return out;
}

class LengthsFromSlots : public testing::TestWithParam<MakeExecutor> {};

TEST_P(LengthsFromSlots, StepsLaunchedEarlyGiveWhatStepsThatWaitGive) {
  EXPECT_TRUE(GetParam()()->takes_lengths_from_slots());
  const Output truth = run_waiting(*GetParam()(), 20);
  for (int32_t first = 0; first <= 3; ++first)
    for (int32_t second = 0; second <= 3; ++second)
      for (int32_t third = 0; third <= 3; ++third) {
        SCOPED_TRACE(testing::Message() << first << " " << second << " " << third);
        const std::vector<int32_t> accepted = {first, second, third, 0};
        const Output out = run_overlapped(*GetParam()(), truth.tokens, accepted);
        ASSERT_EQ(out.tokens.size(), static_cast<size_t>(first + second + third + 4));
        for (size_t i = 0; i < out.tokens.size(); ++i) {
          ASSERT_EQ(out.tokens[i], truth.tokens[i]) << i;
          ASSERT_EQ(out.logprobs[i], truth.logprobs[i]) << i;
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Executors, LengthsFromSlots,
                         testing::Values(&cpu_executor, &null_executor),
                         [](const testing::TestParamInfo<MakeExecutor>& made) {
                           return made.index == 0 ? "Cpu" : "Null";
                         });

// A draft token without a sample behind it ends the chain, though it equals the sampled token: what
// follows it is unknown to the device.
TEST(AcceptDraft, StopsAtTheFirstTokenWithoutASample) {
  ForwardBatch batch{.token_ids = {1, 10, 11, 12}, .draft_samples = {0, 2}};
  const BatchEntry entry{.num_query_tokens = 4, .num_draft_tokens = 3, .num_draft_samples = 2};
  const EntryResult result{.token = 10, .draft_tokens = {11, 13}};
  const AcceptedDraft accepted = accept_draft(batch, entry, result);
  EXPECT_EQ(accepted.num_tokens, 1);
  EXPECT_EQ(accepted.next, 11);
  batch.draft_samples = {0, 1};
  EXPECT_EQ(accept_draft(batch, entry, {.token = 10, .draft_tokens = {11, 13}}).num_tokens, 2);
  EXPECT_EQ(accept_draft(batch, entry, {.token = 10, .draft_tokens = {11, -1}}).num_tokens, 1);
  EXPECT_EQ(accept_draft(batch, entry, {.token = -1, .draft_tokens = {11, 12}}).num_tokens, 0);
}

}  // namespace
}  // namespace espalier
