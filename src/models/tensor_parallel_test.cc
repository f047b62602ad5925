// The golden models divided among ranks: the logits of the whole model up to the order of sums, and
// the same bits however a sequence is cut and with whom it runs.
#include "models/tensor_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "models/golden.h"
#include "models/program/gpu_passes.h"
#include "models/program/partition.h"

namespace espalier {
namespace {

using testing::HasSubstr;

KvType kv_type(const std::string& dtype) {
  return dtype == "float32" ? KvType::kFloat32 : KvType::kBFloat16;
}

Result<std::unique_ptr<Model>> load(const golden::Golden& golden, int32_t tp_size, WorkPool& pool,
                                    const std::string& dtype = "float32", int32_t ep_size = 1) {
  return load_model({.path = golden.folder,
                     .dtype = dtype,
                     .pool = &pool,
                     .tp_size = tp_size,
                     .ep_size = ep_size});
}

std::vector<std::vector<TokenId>> inputs(const golden::Golden& golden) {
  std::vector<std::vector<TokenId>> out;
  for (const golden::Sequence& sequence : golden.sequences) out.push_back(sequence.tokens);
  return out;
}

class DividedModel : public testing::TestWithParam<std::string> {
 protected:
  const golden::Golden golden_ = golden::read(GetParam());
  WorkPool pool_{2};
};

TEST_P(DividedModel, HasTheLogitsOfTheWhole) {
  for (const int32_t tp_size : {2, 4}) {
    SCOPED_TRACE(tp_size);
    if (!program::check_partition(golden_.spec, tp_size).ok()) {
      EXPECT_FALSE(load(golden_, tp_size, pool_));
      continue;
    }
    const auto model = load(golden_, tp_size, pool_);
    ASSERT_TRUE(model) << model.error().to_string();
    EXPECT_LE(golden::max_error(**model, golden_, KvType::kFloat32), 1e-4f);
    const auto whole = load(golden_, 1, pool_);
    const auto want =
        golden::run_all(**whole, inputs(golden_), KvType::kFloat32, 16, 1 << 20, true);
    const auto got = golden::run_all(**model, inputs(golden_), KvType::kFloat32, 16, 1 << 20, true);
    for (size_t i = 0; i < want.size(); ++i) {
      for (size_t j = 0; j < want[i].size(); ++j) {
        ASSERT_NEAR(got[i][j], want[i][j], 1e-5f * golden_.spread) << i << " " << j;
      }
    }
  }
}

TEST_P(DividedModel, GivesTheSameBitsThroughEveryPath) {
  const int32_t tp_size = program::check_partition(golden_.spec, 4).ok() ? 4 : 2;
  if (!program::check_partition(golden_.spec, tp_size).ok()) return;
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const auto model = load(golden_, tp_size, pool_, dtype);
    ASSERT_TRUE(model) << model.error().to_string();
    std::vector<std::vector<float>> first;
    for (const int32_t chunk : {1 << 20, 1, 5}) {
      const auto logits = golden::run_all(**model, inputs(golden_), kv_type(dtype),
                                          chunk == 5 ? 1 : 16, chunk, chunk != 1);
      if (first.empty()) first = logits;
      for (size_t i = 0; i < logits.size(); ++i) {
        ASSERT_EQ(std::memcmp(logits[i].data(), first[i].data(), first[i].size() * 4), 0)
            << dtype << ", sequence " << i << ", chunks of " << chunk;
      }
    }
  }
}

bool has_experts(const DecoderSpec& spec) {
  return std::ranges::any_of(spec.layers,
                             [](const LayerSpec& layer) { return layer.experts.has_value(); });
}

// Whole experts on groups of ranks: the logits of the whole model, and the same bits whatever else
// is in the batch.
TEST_P(DividedModel, SpreadsExpertsOverGroupsOfRanks) {
  if (!has_experts(golden_.spec)) {
    EXPECT_THAT(load(golden_, 2, pool_, "float32", 2).error().message(),
                HasSubstr("the model has no experts"));
    return;
  }
  const auto whole = load(golden_, 1, pool_);
  const auto want = golden::run_all(**whole, inputs(golden_), KvType::kFloat32, 16, 1 << 20, true);
  int num_tried = 0;
  for (const auto& [tp_size, ep_size] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
    SCOPED_TRACE(std::to_string(tp_size) + " ranks, " + std::to_string(ep_size) + " groups");
    DecoderSpec spec = golden_.spec;
    spec.expert_groups = ep_size;
    if (!program::check_partition(spec, tp_size).ok()) {
      EXPECT_FALSE(load(golden_, tp_size, pool_, "float32", ep_size));
      continue;
    }
    ++num_tried;
    const auto model = load(golden_, tp_size, pool_, "float32", ep_size);
    ASSERT_TRUE(model) << model.error().to_string();
    EXPECT_LE(golden::max_error(**model, golden_, KvType::kFloat32), 1e-4f);
    const auto got = golden::run_all(**model, inputs(golden_), KvType::kFloat32, 16, 1 << 20, true);
    const auto alone = golden::run_all(**model, inputs(golden_), KvType::kFloat32, 16, 5, false);
    for (size_t i = 0; i < want.size(); ++i) {
      for (size_t j = 0; j < want[i].size(); ++j)
        ASSERT_NEAR(got[i][j], want[i][j], 1e-5f * golden_.spread) << i << " " << j;
      ASSERT_EQ(std::memcmp(alone[i].data(), got[i].data(), got[i].size() * 4), 0) << i;
    }
  }
  EXPECT_GE(num_tried, 1);
}

INSTANTIATE_TEST_SUITE_P(All, DividedModel, testing::ValuesIn(golden::names()),
                         [](const auto& tested) { return tested.param; });

TEST(TensorParallel, AllFamiliesAreDivided) {
  for (const std::string& name : golden::names()) {
    EXPECT_TRUE(program::check_partition(golden::read(name).spec, 2).ok()) << name;
  }
}

TEST(TensorParallel, RefusalsNameWhatIsNotDivided) {
  const golden::Golden golden = golden::read("qwen2_sharded");
  WorkPool pool(1);
  EXPECT_THAT(load(golden, 3, pool).error().message(),
              HasSubstr("tp_size is 3, but the model has"));
  EXPECT_THAT(load(golden, 0, pool).error().message(), HasSubstr("must be at least 1"));
}

TEST(TensorParallel, GroupsOfRanksHaveWholeExperts) {
  DecoderSpec spec = golden::read("qwen3_moe").spec;
  spec.expert_groups = 2;
  const ExpertsSpec whole = *spec.layers.back().experts;
  const int32_t half = whole.router.num_experts / 2;
  for (int32_t rank = 0; rank < 4; ++rank) {
    const ExpertsSpec local = *program::local_spec(spec, {rank, 4}).layers.back().experts;
    EXPECT_EQ(local.first_local, rank / 2 * half);
    EXPECT_EQ(local.num_local(), half);
    EXPECT_EQ(local.expert.intermediate_size, whole.expert.intermediate_size / 2);
    const auto layout = program::partition_weights(spec, {rank, 4}).layers.back().experts;
    EXPECT_EQ(std::ssize(layout.experts), half);
    EXPECT_EQ(std::ssize(layout.elsewhere), half);
    EXPECT_EQ(layout.experts[0].gate_up.shard.rank, rank % 2);
  }
  const auto refusal = [&](int32_t groups, int32_t ranks) {
    spec.expert_groups = groups;
    return program::check_partition(spec, ranks).message();
  };
  EXPECT_THAT(refusal(3, 4), HasSubstr("ep_size is 3, but must divide tp_size, which is 4"));
  EXPECT_THAT(refusal(2, 1), HasSubstr("must divide tp_size, which is 1"));
  EXPECT_THAT(refusal(0, 2), HasSubstr("ep_size is 0"));
  spec.layers.back().experts->router.num_experts = 6;
  EXPECT_THAT(refusal(4, 4), HasSubstr("6 experts in a layer, which it does not divide"));
}

// What the kernels of GPUs need: which of the experts have a slot, in all forms of a layer.
TEST(TensorParallel, OperationsOfExpertsHaveTheirRange) {
  DecoderSpec spec = golden::read("qwen3_moe").spec;
  spec.expert_groups = 2;
  const int32_t all = spec.layers.back().experts->router.num_experts, half = all / 2;
  for (int32_t rank = 0; rank < 4; ++rank) {
    const program::Program program =
        program::gpu_passes(program::partition(spec, {rank, 4}, program::RankPages::kOwn));
    int num_ops = 0;
    for (const program::Op& op : program.ops) {
      if (op.kind == program::OpKind::kMoeRoute) {
        EXPECT_EQ(op.as<program::MoeRoute>().first_local, rank / 2 * half);
        EXPECT_EQ(op.as<program::MoeRoute>().num_local, half);
      } else if (op.kind == program::OpKind::kMoeMatmul) {
        EXPECT_EQ(op.as<program::MoeMatmul>().num_experts, half);
        EXPECT_EQ(op.as<program::MoeMatmul>().num_routed, all);
      } else if (op.kind == program::OpKind::kMoeCombine) {
        EXPECT_TRUE(op.as<program::MoeCombine>().spread);
      } else {
        continue;
      }
      ++num_ops;
    }
    EXPECT_GE(num_ops, 4);
    int num_blocks = 0;
    for (const program::Alternative& alternative : program::find_alternatives(program)) {
      if (alternative.op.kind != program::OpKind::kMoeBlock) continue;
      ++num_blocks;
      EXPECT_EQ(alternative.op.as<program::MoeBlock>().route.first_local, rank / 2 * half);
    }
    EXPECT_GE(num_blocks, 1);
  }
  spec.expert_groups = 1;
  for (const program::Op& op : program::partition(spec, {1, 4}).ops) {
    if (op.kind != program::OpKind::kMoeCombine) continue;
    EXPECT_FALSE(op.as<program::MoeCombine>().spread) << "all experts are on all ranks";
  }
}

// Each rank holds its share of the matrices.
TEST(TensorParallel, RanksShareTheBytes) {
  const golden::Golden golden = golden::read("qwen2_sharded");
  WorkPool pool(1);
  const auto whole = load(golden, 1, pool), divided = load(golden, 2, pool);
  ASSERT_TRUE(whole && divided);
  EXPECT_LT((*divided)->info().weight_bytes, (*whole)->info().weight_bytes * 12 / 10);
  EXPECT_EQ((*divided)->info().num_parameters, (*whole)->info().num_parameters);
  EXPECT_EQ((*divided)->info().num_kv_heads, (*whole)->info().num_kv_heads);
}

}  // namespace
}  // namespace espalier
