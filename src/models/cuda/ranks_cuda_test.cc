// The golden models divided among two GPUs: the logits of transformers, whatever kernels sum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>

#include "models/cuda/rank_models.h"
#include "models/expert_locations.h"
#include "models/golden.h"
#include "models/program/partition.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr int32_t kNumRanks = 2;

#define ESPALIER_REQUIRE_DEVICES()                                     \
  do {                                                                 \
    ESPALIER_REQUIRE_DEVICE();                                         \
    if (cuda::count_devices() < kNumRanks)                             \
      GTEST_SKIP() << "needs two GPUs that reach each other's memory"; \
  } while (false)

// As golden_cuda_test.cc's; sums over ranks are rounded once more.
float largest_difference(DType type, const golden::Golden& golden) {
  if (type == DType::kFloat32) return 1e-4f;
  if (golden.spec.layers[0].attention.latent) return 2.5e-2f;
  return golden.spec.checkpoint_dtype == DType::kBFloat16 ? 2e-2f : 3e-2f;
}
KvType pages_of(DType type) {
  return type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
}

class RanksCuda : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  // spec: of the golden, however it is divided.
  void expect_logits(const DecoderSpec& spec) {
    auto model = CudaRankModels::load({spec, type_}, {.path = golden_.folder}, kNumRanks);
    if (!model && model.error().code() == StatusCode::kUnimplemented) {
      GTEST_SKIP() << model.error().message();
    }
    ASSERT_TRUE(model) << model.error().to_string();
    for (const int64_t message_bytes : {int64_t{1} << 20, int64_t{0}}) {
      (*model)->group().set_message_bytes(message_bytes);
      const float error = golden::largest_error(
          golden::row_errors(**model, golden_, pages_of(type_)), golden::may_jump(type_, golden_));
      EXPECT_LE(error, largest_difference(type_, golden_)) << "messages of " << message_bytes;
    }
    // Chunks, pages and company: decode's kernels and prompts' kernels.
    for (const int32_t chunk : {1, 5}) expect_logits_in_chunks(**model, chunk);
  }

  const DType type_ = std::get<1>(GetParam());
  const golden::Golden golden_ = golden::read(std::get<0>(GetParam()));

 private:
  void expect_logits_in_chunks(CudaRankModels& model, int32_t chunk) {
    std::vector<std::vector<TokenId>> input;
    for (const golden::Sequence& sequence : golden_.sequences) input.push_back(sequence.tokens);
    const auto logits =
        golden::run_all(model, input, pages_of(type_), chunk == 1 ? 16 : 1, chunk, chunk == 5);
    std::vector<float> errors;
    const auto vocab = static_cast<size_t>(golden_.spec.vocab_size);
    for (size_t i = 0; i < logits.size(); ++i) {
      for (size_t j = 0; j < logits[i].size(); ++j) {
        if (j % vocab == 0) errors.push_back(0);
        const float error =
            std::abs(logits[i][j] - golden_.sequences[i].logits[j]) / golden_.spread;
        if (!(error <= errors.back())) errors.back() = error;
      }
    }
    EXPECT_LE(golden::largest_error(errors, golden::may_jump(type_, golden_)),
              largest_difference(type_, golden_))
        << "chunks of " << chunk;
  }
};

TEST_P(RanksCuda, HaveTheLogitsOfTransformers) {
  ESPALIER_REQUIRE_DEVICES();
  expect_logits(golden_.spec);
}

// Each rank has half of the experts, whole.
TEST_P(RanksCuda, SpreadExperts) {
  ESPALIER_REQUIRE_DEVICES();
  DecoderSpec spec = golden_.spec;
  spec.expert_groups = kNumRanks;
  if (!program::check_partition(spec, kNumRanks).ok()) {
    EXPECT_FALSE(CudaRankModels::load({spec, type_}, {.path = golden_.folder}, kNumRanks));
    return;
  }
  expect_logits(spec);
}

// Two experts of each layer lie on both ranks.
TEST_P(RanksCuda, HaveRedundantExperts) {
  ESPALIER_REQUIRE_DEVICES();
  DecoderSpec spec = golden_.spec;
  spec.expert_groups = kNumRanks;
  if (!program::check_partition(spec, kNumRanks).ok()) return;
  ASSERT_TRUE(place_experts({.num_redundant = 2}, spec).ok());
  expect_logits(spec);
}

INSTANTIATE_TEST_SUITE_P(All, RanksCuda,
                         testing::Combine(testing::ValuesIn(golden::names()),
                                          testing::Values(DType::kFloat32, DType::kBFloat16)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_" +
                                  std::string(dtype_name(std::get<1>(tested.param)));
                         });

TEST(RanksCudaShares, EachHasItsPartOfWeightsAndPages) {
  ESPALIER_REQUIRE_DEVICES();
  const golden::Golden golden = golden::read("qwen2_sharded");
  const ModelPlan plan{golden.spec, DType::kBFloat16};
  auto whole = CudaDecoder::load(plan, {.path = golden.folder});
  auto ranks = CudaRankModels::load(plan, {.path = golden.folder}, kNumRanks);
  ASSERT_TRUE(whole && ranks);
  EXPECT_LT((*ranks)->info().weight_bytes, (*whole)->info().weight_bytes * 6 / 10);
  EXPECT_EQ((*ranks)->info().num_kv_heads * kNumRanks, (*whole)->info().num_kv_heads);
  EXPECT_EQ((*ranks)->info().num_parameters, (*whole)->info().num_parameters);
}

TEST(RanksCudaShares, EachReadsItsOwnExpertsAlone) {
  ESPALIER_REQUIRE_DEVICES();
  golden::Golden golden = golden::read("qwen3_moe");
  const auto bytes = [&](int32_t groups) {
    golden.spec.expert_groups = groups;
    const auto ranks =
        CudaRankModels::load({golden.spec, DType::kBFloat16}, {.path = golden.folder}, kNumRanks);
    EXPECT_TRUE(ranks);
    return ranks ? (*ranks)->info().weight_bytes : 0;
  };
  EXPECT_EQ(bytes(2), bytes(1)) << "half of the experts, or half of each";
}

}  // namespace
}  // namespace espalier
