// Tokens by layer and expert: sums and differences of tables, how even they are, and what models on
// the CPU count, alone and divided among ranks.
#include "models/expert_counts.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "models/golden.h"
#include "models/model.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

TEST(ExpertCounts, TablesAddUpAndDiffer) {
  ExpertTable sum;
  add_counts(sum, {{1, 2}, {0, 0}});
  add_counts(sum, {{3, 0}, {0, 4}});
  EXPECT_EQ(sum, (ExpertTable{{4, 2}, {0, 4}}));
  add_counts(sum, {});
  EXPECT_EQ(difference(sum, {{1, 2}, {0, 0}}), (ExpertTable{{3, 0}, {0, 4}}));
  EXPECT_EQ(difference(sum, {}), sum);
}

TEST(ExpertCounts, BalanceIsTheBusiestOverTheMean) {
  EXPECT_EQ(balance_of({}).over_experts, 1);
  EXPECT_EQ(balance_of({.tokens = {{0, 0}}, .of_groups = {{0, 0}}}).over_groups, 1)
      << "nothing was counted";
  const ExpertBalance even =
      balance_of({.tokens = {{5, 5, 5, 5}, {0, 0, 0, 0}}, .of_groups = {{10, 10}, {0, 0}}});
  EXPECT_EQ(even.over_experts, 1);
  EXPECT_EQ(even.over_groups, 1);
  const ExpertBalance uneven =
      balance_of({.tokens = {{8, 0, 2, 2}, {1, 3, 4, 4}}, .of_groups = {{8, 4}, {4, 8}}});
  EXPECT_DOUBLE_EQ(uneven.over_experts, (8 + 4) / (3.0 + 3.0));
  EXPECT_DOUBLE_EQ(uneven.over_groups, (8 + 8) / (6.0 + 6.0));
}

TEST(ExpertCounts, BeginLeavesOutWhatWasBefore) {
  ExpertCounts counts;
  EXPECT_EQ(counts.read().value().tokens, ExpertTable());
  const auto tally = std::make_shared<HostExpertTally>(2, 3);
  counts.add(tally, {.num_experts = 3, .layers = {{0, 1, 2}, {0, 1, 2}}});
  tally->count(0, std::vector<int32_t>{0, 1, 1});
  EXPECT_EQ(counts.read().value().tokens, (ExpertTable{{1, 2, 0}, {0, 0, 0}}));
  ASSERT_TRUE(counts.begin().ok());
  tally->count(1, std::vector<int32_t>{2});
  EXPECT_EQ(counts.read().value().tokens, (ExpertTable{{0, 0, 0}, {0, 0, 1}}));
}

// What slots have counted belongs to the experts that were in them, and to their groups.
TEST(ExpertCounts, ExpertsThatMoveKeepTheirTokens) {
  ExpertCounts counts;
  const auto tally = std::make_shared<HostExpertTally>(2, 4);
  counts.add(tally, {.num_experts = 3, .num_groups = 2, .layers = {{}, {0, 1, 2, 0}}});
  tally->count(1, std::vector<int32_t>{0, 0, 1, 2, 3});
  ASSERT_TRUE(counts.begin().ok());
  tally->count(1, std::vector<int32_t>{0, 0, 1, 2, 3});
  const std::vector<LayerSlots> moved = {{1, {0, 2, 1, 0}}};
  ASSERT_TRUE(counts.move(moved, 2).ok());
  EXPECT_EQ(counts.places().layers[1], moved[0].slots);
  tally->count(1, std::vector<int32_t>{1, 1, 1});
  const ExpertTotals totals = counts.read().value();
  EXPECT_EQ(totals.tokens, (ExpertTable{{0, 0, 0}, {3, 1, 1 + 3}}));
  EXPECT_EQ(totals.of_groups, (ExpertTable{{0, 0}, {3 + 3, 2}}));
  EXPECT_EQ(totals.num_moved, 2);
}

// Every token of every layer counts once for each of its experts, the last layer's where their
// logits are wanted; ranks change nothing.
TEST(ExpertCounts, ModelsCountTheirTokens) {
  const golden::Golden golden = golden::read("qwen3_moe");
  std::vector<std::vector<TokenId>> input;
  int64_t num_tokens = 0;
  for (const golden::Sequence& sequence : golden.sequences) {
    input.push_back(sequence.tokens);
    num_tokens += std::ssize(sequence.tokens);
  }
  WorkPool pool(1);
  ExpertTable alone;
  for (const auto& [tp_size, ep_size] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    ExpertCounts counts;
    const auto model = load_model({.path = golden.folder,
                                   .dtype = "float32",
                                   .pool = &pool,
                                   .tp_size = tp_size,
                                   .ep_size = ep_size,
                                   .expert_counts = &counts});
    ASSERT_TRUE(model) << model.error().to_string();
    golden::run_all(**model, input, KvType::kFloat32, 16, 5, true);
    const ExpertTable table = counts.read().value().tokens;
    ASSERT_EQ(table.size(), golden.spec.layers.size());
    for (size_t layer = 0; layer < table.size(); ++layer) {
      const auto& experts = golden.spec.layers[layer].experts;
      const int64_t top_k = experts ? experts->router.top_k : 0;
      EXPECT_EQ(std::accumulate(table[layer].begin(), table[layer].end(), int64_t{}),
                num_tokens * top_k)
          << "layer " << layer << " of " << tp_size << " ranks";
    }
    if (tp_size == 1) alone = table;
    EXPECT_EQ(table, alone) << tp_size << " ranks in " << ep_size << " groups";
  }
}

}  // namespace
}  // namespace espalier
