// The golden models with data-parallel attention: each of several ranks has all of attention, and
// rows and pages of its own; MLPs and experts are divided. Logits are those of the whole model up
// to the order of sums, and the same bits however sequences are cut and whichever rank has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "models/golden.h"
#include "models/program/check.h"
#include "models/program/gpu_passes.h"
#include "models/program/partition.h"
#include "models/rank_steps.h"
#include "seams/rank_batches.h"

namespace espalier {
namespace {

using testing::HasSubstr;

ModelLoadOptions options_of(const golden::Golden& golden, int32_t tp_size, WorkPool& pool,
                            int32_t ep_size = 1) {
  return {.path = golden.folder,
          .dtype = "float32",
          .pool = &pool,
          .tp_size = tp_size,
          .ep_size = ep_size,
          .enable_dp_attention = tp_size > 1};
}

// Runs batches of one pool on a model whose ranks have pages of their own. A sequence's rank is its
// first page's number modulo that of ranks; each rank has as many pages as the caller's pool, so
// that pages keep their numbers.
class RankModel final : public Model {
 public:
  RankModel(std::unique_ptr<Model> model, int32_t num_ranks)
      : model_(std::move(model)), num_ranks_(num_ranks) {}

  const ModelInfo& info() const override { return model_->info(); }
  Status reserve(int32_t max_tokens, int32_t max_entries) override {
    max_entries_ = max_entries;
    kv_.reset();
    return model_->reserve(max_tokens, max_entries);
  }
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView& kv, const InputLogitsSink& sink) override {
    if (!kv_) {
      Rng rng(1);
      const KvView::Layer& layer = kv.layers.front();
      kv_.emplace(info(), layer.type, kv.page_size, num_ranks_ * layer.num_pages * kv.page_size,
                  rng);
    }
    ForwardBatch all;
    std::vector<int32_t> order;  // of the batch's entries
    all.ranks.resize(static_cast<size_t>(num_ranks_));
    for (int32_t rank = 0; rank < num_ranks_; ++rank) take_entries(batch, rank, all, order);
    join_ranks(max_entries_, all);
    EXPECT_EQ(all.token_ids.size(), token_ids.size());
    num_idle_ += std::ranges::count_if(
        all.ranks, [](const ForwardBatch& part) { return part.entries.empty(); });
    const ForwardOutput out = model_->forward(
        all, all.token_ids, kv_->view(), [&](int32_t entry, int32_t target, auto logits) {
          sink(order[static_cast<size_t>(entry)], target, logits);
        });
    return in_order(all, order, out);
  }
  int64_t num_idle() const { return num_idle_; }

 private:
  void take_entries(const ForwardBatch& batch, int32_t rank, ForwardBatch& all,
                    std::vector<int32_t>& order) const {
    ForwardBatch& part = all.ranks[static_cast<size_t>(rank)];
    part.page_tables = batch.page_tables;
    for (size_t i = 0; i < batch.entries.size(); ++i) {
      BatchEntry entry = batch.entries[i];
      const PageId page = batch.page_tables[static_cast<size_t>(entry.page_begin)];
      if (page % num_ranks_ != rank) continue;
      const auto first = batch.token_ids.begin() + entry.query_begin;
      const auto position = batch.positions.begin() + entry.query_begin;
      entry.query_begin = part.num_tokens();
      part.token_ids.insert(part.token_ids.end(), first, first + entry.num_query_tokens);
      part.positions.insert(part.positions.end(), position, position + entry.num_query_tokens);
      part.entries.push_back(std::move(entry));
      order.push_back(static_cast<int32_t>(i));
    }
  }

  // The samples' rows in the order of the caller's entries.
  ForwardOutput in_order(const ForwardBatch& all, const std::vector<int32_t>& order,
                         const ForwardOutput& out) {
    const auto vocab = static_cast<size_t>(info().vocab_size);
    std::vector<std::pair<int32_t, size_t>> rows;
    for (size_t i = 0; i < order.size(); ++i)
      if (all.entries[i].sample) rows.emplace_back(order[i], rows.size());
    std::ranges::sort(rows);
    logits_.clear();
    for (const auto& [entry, row] : rows) {
      const std::span<const float> of_row = out.sample_logits.subspan(row * vocab, vocab);
      logits_.insert(logits_.end(), of_row.begin(), of_row.end());
    }
    return {.sample_logits = logits_};
  }

  std::unique_ptr<Model> model_;
  const int32_t num_ranks_;
  int32_t max_entries_ = 0;
  std::optional<golden::KvMemory> kv_;
  std::vector<float> logits_;
  int64_t num_idle_ = 0;
};

std::vector<std::vector<TokenId>> inputs(const golden::Golden& golden) {
  std::vector<std::vector<TokenId>> out;
  for (const golden::Sequence& sequence : golden.sequences) out.push_back(sequence.tokens);
  return out;
}

class WholeAttention : public testing::TestWithParam<std::string> {
 protected:
  void expect_near_whole(int32_t tp_size, int32_t ep_size) {
    SCOPED_TRACE(std::to_string(tp_size) + " ranks, " + std::to_string(ep_size) + " groups");
    auto divided = load_model(options_of(golden_, tp_size, pool_, ep_size));
    ASSERT_TRUE(divided) << divided.error().to_string();
    RankModel model(*std::move(divided), tp_size);
    const auto whole = load_model(options_of(golden_, 1, pool_));
    const auto run = [&](Model& of, int32_t chunk, bool together) {
      return golden::run_all(of, inputs(golden_), KvType::kFloat32, 16, chunk, together);
    };
    const auto want = run(**whole, 1 << 20, true), got = run(model, 1 << 20, true);
    const auto cut = run(model, 5, true), alone = run(model, 1, false);
    EXPECT_GT(model.num_idle(), 0);
    for (size_t i = 0; i < want.size(); ++i) {
      for (size_t j = 0; j < want[i].size(); ++j)
        ASSERT_NEAR(got[i][j], want[i][j], 1e-5f * golden_.spread) << i << " " << j;
      ASSERT_EQ(std::memcmp(cut[i].data(), got[i].data(), got[i].size() * 4), 0) << i;
      ASSERT_EQ(std::memcmp(alone[i].data(), got[i].data(), got[i].size() * 4), 0) << i;
    }
  }
  bool has_experts() const {
    return std::ranges::any_of(golden_.spec.layers,
                               [](const LayerSpec& layer) { return layer.experts.has_value(); });
  }

  const golden::Golden golden_ = golden::read(GetParam());
  WorkPool pool_{2};
};

TEST_P(WholeAttention, HasTheLogitsOfTheWhole) {
  for (const int32_t tp_size : {2, 4}) {
    DecoderSpec spec = golden_.spec;
    spec.whole_attention = true;
    if (program::check_partition(spec, tp_size).ok()) expect_near_whole(tp_size, 1);
  }
}

TEST_P(WholeAttention, GoesWithWholeExperts) {
  if (!has_experts()) return;
  expect_near_whole(2, 2);
  DecoderSpec spec = golden_.spec;
  spec.whole_attention = true;
  spec.expert_groups = 2;
  if (program::check_partition(spec, 4).ok()) expect_near_whole(4, 2);
}

// Blocks of experts stay one operation, norms go into the GEMMs behind them, and the number of
// tokens alone says what ranks exchange.
TEST_P(WholeAttention, IsAProgramOfGpus) {
  DecoderSpec spec = golden_.spec;
  spec.whole_attention = true;
  const program::Program divided = program::gpu_passes(
      program::partition(spec, {1, 2}, program::RankPages::kOwn), false, /*all_rows=*/true);
  const Status status = program::check(divided);
  EXPECT_TRUE(status.ok()) << status.message();
  for (const program::Buffer& buffer : divided.buffers)
    EXPECT_NE(buffer.rows.count, program::RowCount::kRankWanted) << buffer.name;
  spec.whole_attention = false;
  const program::Program whole = program::gpu_passes(program::partition(spec, {}));
  EXPECT_EQ(program::find_alternatives(divided).size(), program::find_alternatives(whole).size());
  const auto num_norms = [](const program::Program& of) {
    return std::ranges::count(of.ops, program::OpKind::kNorm, &program::Op::kind);
  };
  EXPECT_EQ(num_norms(divided), num_norms(whole));
}

INSTANTIATE_TEST_SUITE_P(All, WholeAttention, testing::ValuesIn(golden::names()),
                         [](const auto& tested) { return tested.param; });

TEST(WholeAttentionParts, RanksDivideMlpsAlone) {
  DecoderSpec spec = golden::read("qwen2_sharded").spec;
  spec.whole_attention = true;
  const DecoderSpec local = program::local_spec(spec, {1, 2});
  const AttentionSpec &whole = spec.layers[0].attention, &own = local.layers[0].attention;
  EXPECT_EQ(own.num_heads, whole.num_heads);
  EXPECT_EQ(own.num_kv_heads, whole.num_kv_heads);
  EXPECT_EQ(local.layers[0].mlp.intermediate_size, spec.layers[0].mlp.intermediate_size / 2);
  const WeightLayout layout = program::partition_weights(spec, {1, 2});
  EXPECT_EQ(layout.layers[0].qkv.shard.num_ranks, 1);
  EXPECT_EQ(layout.layers[0].mlp.gate_up.shard.num_ranks, 2);
  EXPECT_FALSE(program::divides_vocabulary(spec, {1, 2}));

  int num_gathers = 0, num_sums = 0;
  for (const program::Op& op : program::partition(spec, {1, 2}).ops) {
    num_gathers += op.kind == program::OpKind::kGatherRows ? 1 : 0;
    num_sums += op.kind == program::OpKind::kScatterSums ? 1 : 0;
    EXPECT_NE(op.kind, program::OpKind::kAllReduce);
  }
  EXPECT_EQ(num_gathers, std::ssize(spec.layers));
  EXPECT_EQ(num_sums, std::ssize(spec.layers));
}

// By which the type of keys and values is chosen.
TEST(WholeAttentionParts, BytesOfRanksAreThoseOfWhatTheyHold) {
  WorkPool pool(1);
  for (const char* name : {"qwen2_sharded", "mixtral", "deepseek_v2"}) {
    const golden::Golden golden = golden::read(name);
    for (const char* dtype : {"float32", "bfloat16"}) {
      ModelLoadOptions options = options_of(golden, 2, pool, 1);
      options.dtype = dtype;
      const auto model = load_model(options);
      ASSERT_TRUE(model) << model.error().to_string();
      const ModelInfo& info = (*model)->info();
      EXPECT_GT(info.num_loaded_parameters, info.num_parameters) << name;
      EXPECT_LT(info.num_loaded_parameters, 2 * info.num_parameters) << name;
      const bool is_float32 = info.weight_bytes >= 4 * info.num_loaded_parameters;
      EXPECT_EQ(is_float32, dtype == std::string("float32")) << name;
    }
  }
}

// Heads that so many ranks would not divide are no hindrance; features are.
TEST(WholeAttentionParts, NeedsFeaturesThatRanksDivide) {
  DecoderSpec spec = golden::read("qwen2_sharded").spec;
  const int32_t features = spec.layers[0].mlp.intermediate_size;
  int32_t num_ranks = spec.layers[0].attention.num_heads + 1;
  while (features % num_ranks != 0 && num_ranks < features) ++num_ranks;
  ASSERT_LT(num_ranks, features);
  EXPECT_FALSE(program::check_partition(spec, num_ranks).ok());
  spec.whole_attention = true;
  EXPECT_TRUE(program::check_partition(spec, num_ranks).ok());
  spec.layers[0].mlp.intermediate_size = num_ranks + 1;
  EXPECT_THAT(program::check_partition(spec, num_ranks).message(), HasSubstr("features in an MLP"));
}

}  // namespace
}  // namespace espalier
