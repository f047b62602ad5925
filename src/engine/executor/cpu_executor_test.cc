// The executor around a model whose logits are known in advance; the engine's tests run it around
// real ones.
#include "engine/executor/cpu_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocab = 40;

// Logits that favour the token after the last query token, the one after that a little less, and so
// on. A query token of kBadToken gives a NaN.
class NextTokenModel final : public Model {
 public:
  static constexpr TokenId kBadToken = 39;

  NextTokenModel() { info_.vocab_size = kVocab; }
  const ModelInfo& info() const override { return info_; }
  Status reserve(int32_t max_tokens, int32_t) override {
    if (max_tokens < 1) return invalid_argument("max_tokens is {}", max_tokens);
    return {};
  }
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView&, const InputLogitsSink& sink) override {
    rows_.clear();
    for (size_t i = 0; i < batch.entries.size(); ++i) {
      const BatchEntry& entry = batch.entries[i];
      for (size_t t = 0; t < entry.input_logprob_targets.size(); ++t) {
        const auto at = static_cast<size_t>(entry.query_begin + entry.input_logprob_begin) + t;
        sink(static_cast<int32_t>(i), static_cast<int32_t>(t), logits_after(token_ids[at]));
      }
    }
    for (const BatchEntry& entry : batch.entries)
      if (entry.sample) {
        const auto last = static_cast<size_t>(entry.query_begin + entry.num_query_tokens - 1);
        const auto row = logits_after(token_ids[last]);
        rows_.insert(rows_.end(), row.begin(), row.end());
      }
    return {.sample_logits = rows_};
  }

 private:
  static std::vector<float> logits_after(TokenId token) {
    std::vector<float> row(kVocab);
    for (int32_t i = 0; i < kVocab; ++i)
      row[static_cast<size_t>((token + 1 + i) % kVocab)] = -0.5f * static_cast<float>(i);
    if (token == kBadToken) row[3] = std::numeric_limits<float>::quiet_NaN();
    return row;
  }
  ModelInfo info_;
  std::vector<float> rows_;
};

std::unique_ptr<CpuExecutor> make_executor(int threads = 2) {
  CpuExecutorParts parts{
      .pool = std::make_unique<WorkPool>(threads),
      .model = std::make_unique<NextTokenModel>(),
      .kv = *KvPool::create({.num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .num_pages = 64})};
  auto executor = CpuExecutor::create(std::move(parts), {.max_slots = 8, .max_tokens = 64});
  EXPECT_TRUE(executor) << executor.error().to_string();
  return std::move(*executor);
}

void add_entry(ForwardBatch& batch, SlotId slot, std::vector<TokenId> tokens, int32_t prefix_len,
               int32_t output_index) {
  batch.entries.push_back({.slot = slot,
                           .num_query_tokens = static_cast<int32_t>(tokens.size()),
                           .prefix_len = prefix_len,
                           .query_begin = batch.num_tokens(),
                           .sample = true,
                           .output_index = output_index});
  for (size_t i = 0; i < tokens.size(); ++i)
    batch.positions.push_back(prefix_len + static_cast<int32_t>(i));
  batch.token_ids.insert(batch.token_ids.end(), tokens.begin(), tokens.end());
}

void init_slot(ForwardBatch& batch, SlotId slot, SamplingSpec spec,
               std::vector<TokenId> prompt = {}, std::vector<TokenId> output = {}) {
  batch.slot_inits.push_back({.slot = slot,
                              .sampling = std::make_shared<SamplingSpec>(std::move(spec)),
                              .prompt_ids = std::move(prompt),
                              .output_ids = std::move(output)});
}

const SamplingSpec kGreedy{{.temperature = 0}};

TEST(CpuExecutor, TakesLastTokensFromSlots) {
  auto executor = make_executor();
  ForwardBatch one{.step = 1}, two{.step = 2};
  init_slot(one, 3, kGreedy);
  init_slot(one, 0, kGreedy);
  add_entry(one, 3, {1, 2}, 0, 0);
  add_entry(one, 0, {20}, 0, 0);
  add_entry(two, 0, {kTokenFromSlot}, 1, 1);
  add_entry(two, 3, {kTokenFromSlot}, 2, 1);
  executor->launch(one);
  executor->launch(two);
  const StepResult& first = executor->wait(1);
  EXPECT_EQ(first.entries[0].token, 3);
  EXPECT_EQ(first.entries[1].token, 21);
  const StepResult& second = executor->wait(2);
  EXPECT_EQ(second.entries[0].token, 22);
  EXPECT_EQ(second.entries[1].token, 4);
  EXPECT_GE(second.forward_seconds, 0);
}

TEST(CpuExecutor, EntriesThatDoNotSampleGiveNoToken) {
  auto executor = make_executor();
  ForwardBatch one{.step = 1};
  for (SlotId slot = 0; slot < 3; ++slot) {
    init_slot(one, slot, kGreedy);
    add_entry(one, slot, {slot * 10}, 0, 0);
  }
  one.entries[1].sample = false;
  executor->launch(one);
  const StepResult& result = executor->wait(1);
  EXPECT_EQ(result.entries[0].token, 1);
  EXPECT_EQ(result.entries[1].token, -1);
  EXPECT_EQ(result.entries[2].token, 21);
}

TEST(CpuExecutor, PenaltiesCountWhatTheSlotHasDrawn) {
  auto executor = make_executor();
  SamplingSpec spec{{.temperature = 0, .presence_penalty = 2.0f}};
  ForwardBatch one{.step = 1};
  init_slot(one, 0, spec, {5}, {6});
  add_entry(one, 0, {5}, 0, 1);  // 6 is best, but has been put out: 7 at -0.5 beats 6 at -2
  executor->launch(one);
  EXPECT_EQ(executor->wait(1).entries[0].token, 7);
  ForwardBatch two{.step = 2};
  add_entry(two, 0, {5}, 0, 2);  // now 7 too: 8 at -1
  executor->launch(two);
  EXPECT_EQ(executor->wait(2).entries[0].token, 8);
  ForwardBatch three{.step = 3};  // a new request in the slot
  init_slot(three, 0, spec);
  add_entry(three, 0, {5}, 0, 0);
  executor->launch(three);
  EXPECT_EQ(executor->wait(3).entries[0].token, 6);
}

TEST(CpuExecutor, ALaneThatFailsFailsAlone) {
  auto executor = make_executor();
  ForwardBatch one{.step = 1}, two{.step = 2};
  init_slot(one, 0, kGreedy);
  init_slot(one, 1, kGreedy);
  add_entry(one, 0, {NextTokenModel::kBadToken}, 0, 0);
  add_entry(one, 1, {7}, 0, 0);
  add_entry(two, 0, {kTokenFromSlot}, 1, 1);  // launched before the failure is known
  executor->launch(one);
  executor->launch(two);
  const StepResult& result = executor->wait(1);
  EXPECT_EQ(result.entries[0].status.code(), StatusCode::kInternal);
  EXPECT_THAT(result.entries[0].status.message(), HasSubstr("not finite"));
  EXPECT_EQ(result.entries[1].token, 8);
  executor->wait(2);
}

TEST(CpuExecutor, MasksGoToTheirEntries) {
  auto executor = make_executor();
  ForwardBatch one{.step = 1};
  for (SlotId slot = 0; slot < 3; ++slot) {
    init_slot(one, slot, kGreedy);
    add_entry(one, slot, {0}, 0, 0);
  }
  one.entries[0].has_mask = one.entries[2].has_mask = true;
  executor->launch(one);
  const std::vector<uint32_t> words = {1u << 9, 0, 0, 1u << 5};
  executor->provide_masks(1, {.words = words, .words_per_mask = 2});
  const StepResult& result = executor->wait(1);
  EXPECT_EQ(result.entries[0].token, 9);
  EXPECT_EQ(result.entries[1].token, 1);
  EXPECT_EQ(result.entries[2].token, 37);
}

TEST(CpuExecutor, LogprobsOfInputAndOutput) {
  auto executor = make_executor();
  SamplingSpec spec{{.temperature = 0}};
  spec.return_logprob = true;
  spec.top_logprobs_num = 2;
  ForwardBatch one{.step = 1};
  init_slot(one, 0, spec);
  add_entry(one, 0, {4, 5, 9}, 0, 0);
  one.entries[0].input_logprob_begin = 0;
  one.entries[0].input_logprob_targets = {5, 9};
  executor->launch(one);
  EntryResult result = executor->wait(1).entries[0];
  double sum = 0;
  for (int i = 0; i < kVocab; ++i) sum += std::exp(-0.5 * i);
  ASSERT_EQ(result.input_logprobs.size(), 2u);
  EXPECT_NEAR(result.input_logprobs[0].logprob, -std::log(sum), 1e-5);        // 5 after 4: the best
  EXPECT_NEAR(result.input_logprobs[1].logprob, -1.5 - std::log(sum), 1e-5);  // 9 after 5: fourth
  EXPECT_EQ(result.input_logprobs[1].top[0].first, 6);
  EXPECT_EQ(result.token, 10);
  EXPECT_NEAR(result.logprobs.logprob, -std::log(sum), 1e-5);
  ASSERT_EQ(result.logprobs.top.size(), 2u);
  EXPECT_EQ(result.logprobs.top[1].first, 11);
}

TEST(CpuExecutor, SampledTokensDoNotDependOnTheBatch) {
  const auto run = [](int threads, int entries, int which) {
    auto executor = make_executor(threads);
    ForwardBatch one{.step = 1};
    for (SlotId slot = 0; slot < entries; ++slot) {
      init_slot(one, slot,
                {{.temperature = 2, .seed = static_cast<uint64_t>(slot == which ? 77 : slot)}});
      add_entry(one, slot, {slot == which ? 13 : slot}, 0, 5);
    }
    executor->launch(one);
    return executor->wait(1).entries[static_cast<size_t>(which)].token;
  };
  const TokenId alone = run(1, 1, 0);
  for (int which = 0; which < 8; ++which) EXPECT_EQ(run(2, 8, which), alone);
}

TEST(CpuExecutor, ReserveFailureIsReportedAtCreation) {
  CpuExecutorParts parts{
      .pool = std::make_unique<WorkPool>(1),
      .model = std::make_unique<NextTokenModel>(),
      .kv = *KvPool::create({.num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .num_pages = 4})};
  const auto executor = CpuExecutor::create(std::move(parts), {.max_slots = 8, .max_tokens = 0});
  ASSERT_FALSE(executor);
  EXPECT_EQ(executor.error().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
