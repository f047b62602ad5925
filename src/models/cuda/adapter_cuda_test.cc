// LoRA adapters on the GPU against the CPU's: alone, mixed in one batch, in chunks, over all
// families whose matrices take them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/temp_folder.h"
#include "models/cuda/test_model.h"
#include "models/golden.h"
#include "models/test_adapter.h"
#include "tensor/cuda/testing.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr int32_t kTestRanks[] = {4, 40};

KvType kv_type_of(DType type) {
  return type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
}

// All logits of the golden's sequences, one for each adapter.
std::vector<golden::Track> run_adapters(Model& model, const golden::Golden& golden, KvType type,
                                        const std::vector<AdapterId>& adapters,
                                        int32_t chunk = 1 << 20) {
  EXPECT_TRUE(model.reserve(1024, 16).ok());
  Rng rng(5);
  golden::KvMemory kv(model.info(), type, 4, 2048, rng);
  std::vector<golden::Track> tracks;
  for (size_t i = 0; i < adapters.size(); ++i)
    tracks.push_back(
        {golden.sequences[i % golden.sequences.size()].tokens, 0, {}, {}, adapters[i]});
  for (bool any = true; any;) {
    std::vector<golden::Piece> pieces;
    for (golden::Track& track : tracks) {
      const auto left = static_cast<int32_t>(track.tokens.size()) - track.done;
      if (left > 0) pieces.push_back({&track, std::min(left, chunk), golden::Piece::Want::kAll});
    }
    any = !pieces.empty();
    if (any) golden::run_step(model, kv, pieces);
  }
  return tracks;
}

// Of each position the largest difference, in units of the golden's spread.
std::vector<float> largest_differences(const golden::Golden& golden, const golden::Track& a,
                                       const golden::Track& b) {
  std::vector<float> out;
  for (const auto& [position, logits] : a.logits) {
    out.push_back(0);
    for (size_t i = 0; i < logits.size(); ++i) {
      const float difference = std::abs(logits[i] - b.logits.at(position)[i]) / golden.spread;
      if (!(difference <= out.back())) out.back() = difference;
    }
  }
  return out;
}

class AdapterGoldenCuda : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    for (size_t i = 0; i < std::size(kTestRanks); ++i)
      write_test_adapter(golden_.folder, 7 + i, folder(i), kTestRanks[i]);
    auto decoder =
        CudaDecoder::load({golden_.spec, type_}, {.path = golden_.folder, .enable_lora = true});
    ASSERT_TRUE(decoder) << decoder.error().to_string();
    gpu_ = std::make_unique<CudaTestModel>(std::move(*decoder));
    load_into(*gpu_);
  }
  std::filesystem::path folder(size_t i) const { return temp_.path() / std::to_string(i); }
  void load_into(Model& model) {
    for (size_t i = 0; i < std::size(kTestRanks); ++i) {
      const auto info = model.load_adapter(static_cast<AdapterId>(i + 1), folder(i), 0);
      ASSERT_TRUE(info) << info.error().to_string();
      EXPECT_EQ(info->rank, kTestRanks[i]);
      EXPECT_GT(info->num_modules, 0);
    }
  }
  // In bfloat16 the GPU rounds activations, which the CPU does not, and the adapters' results are
  // larger than the golden's.
  float tolerance() const { return type_ == DType::kFloat32 ? 2e-4f : 6e-2f; }
  float difference(const golden::Track& a, const golden::Track& b) const {
    return golden::largest_error(largest_differences(golden_, a, b),
                                 golden::may_jump(type_, golden_));
  }

  const DType type_ = std::get<1>(GetParam());
  const golden::Golden golden_ = golden::read(std::get<0>(GetParam()));
  TempFolder temp_;
  WorkPool pool_{2};
  std::unique_ptr<CudaTestModel> gpu_;
};

TEST_P(AdapterGoldenCuda, HasTheLogitsOfTheCpu) {
  const auto cpu = load_model({.path = golden_.folder,
                               .dtype = type_ == DType::kFloat32 ? "float32" : "bfloat16",
                               .pool = &pool_,
                               .enable_lora = true});
  ASSERT_TRUE(cpu) << cpu.error().to_string();
  load_into(**cpu);
  const std::vector<AdapterId> ids = {1, 2, kNoAdapter, 2, 1, 1};
  const auto want = run_adapters(**cpu, golden_, KvType::kFloat32, ids);
  const auto plain = run_adapters(*gpu_, golden_, kv_type_of(type_), {kNoAdapter});
  EXPECT_GT(difference(plain[0], want[0]), 2 * tolerance()) << "the adapter changes nothing";
  for (const int32_t chunk : {1 << 20, 5, 1}) {
    const auto got = run_adapters(*gpu_, golden_, kv_type_of(type_), ids, chunk);
    for (size_t i = 0; i < ids.size(); ++i) {
      const float error = difference(got[i], want[i]);
      EXPECT_LE(error, tolerance()) << "sequence " << i << ", chunks of " << chunk;
      RecordProperty("error_" + std::to_string(chunk) + "_" + std::to_string(i),
                     std::to_string(error));
    }
  }
}

TEST_P(AdapterGoldenCuda, AnUnloadedOneIsNoLongerThere) {
  const auto with = run_adapters(*gpu_, golden_, kv_type_of(type_), {1, 2});
  gpu_->unload_adapter(1);
  const auto without = run_adapters(*gpu_, golden_, kv_type_of(type_), {1, 2});
  EXPECT_GT(difference(with[0], without[0]), 2 * tolerance());
  EXPECT_LE(difference(with[1], without[1]), tolerance());
  const auto info = gpu_->load_adapter(9, folder(0), 0);
  ASSERT_TRUE(info) << info.error().to_string();
  const auto again = run_adapters(*gpu_, golden_, kv_type_of(type_), {9, 2});
  EXPECT_EQ(again[0].logits, with[0].logits);
  EXPECT_EQ(again[1].logits, with[1].logits);
}

INSTANTIATE_TEST_SUITE_P(All, AdapterGoldenCuda,
                         testing::Combine(testing::Values("llama_tied_llama3", "qwen2_sharded",
                                                          "qwen3_head_dim", "gemma2", "olmo2",
                                                          "granite", "mixtral", "qwen2_moe"),
                                          testing::Values(DType::kFloat32, DType::kBFloat16)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) +
                                  (std::get<1>(tested.param) == DType::kFloat32 ? "_float32"
                                                                                : "_bfloat16");
                         });

// On matrices of codes the adapter is added to the rounded GEMM, unrounded itself.
TEST(AdapterCuda, AddsToARoundedBase) {
  ESPALIER_REQUIRE_DEVICE();
  const golden::Golden golden = golden::read("llama_tied_llama3");
  const TempFolder temp;
  write_test_adapter(golden.folder, 3, temp.path(), 8);
  const auto load = [&](bool e4m3) {
    ModelPlan plan{golden.spec, DType::kBFloat16};
    plan.weights.e4m3 = e4m3;
    auto decoder = CudaDecoder::load(std::move(plan), {.path = golden.folder, .enable_lora = true});
    EXPECT_TRUE(decoder) << decoder.error().to_string();
    auto model = std::make_unique<CudaTestModel>(std::move(*decoder));
    EXPECT_TRUE(model->load_adapter(1, temp.path(), 0));
    return model;
  };
  const auto plain = load(false), rounded = load(true);
  const auto want = run_adapters(*plain, golden, KvType::kBFloat16, {1});
  const auto got = run_adapters(*rounded, golden, KvType::kBFloat16, {1});
  const auto base = run_adapters(*rounded, golden, KvType::kBFloat16, {kNoAdapter});
  auto errors = largest_differences(golden, got[0], want[0]);
  auto distance = largest_differences(golden, base[0], want[0]);
  std::ranges::sort(errors);
  std::ranges::sort(distance);
  EXPECT_LE(errors[errors.size() / 2], 0.15f);
  EXPECT_GT(distance[distance.size() / 2], 3 * errors[errors.size() / 2]);
}

TEST(AdapterCuda, NamesWhatDoesNotFit) {
  ESPALIER_REQUIRE_DEVICE();
  const golden::Golden golden = golden::read("qwen2_sharded");
  const TempFolder temp, other;
  write_test_adapter(golden.folder, 3, temp.path(), 40);
  write_test_adapter(golden::read("gemma2").folder, 3, other.path(), 4);
  auto decoder =
      CudaDecoder::load({golden.spec, DType::kFloat32},
                        {.path = golden.folder, .enable_lora = true, .max_lora_rank = 32});
  ASSERT_TRUE(decoder) << decoder.error().to_string();
  CudaTestModel model(std::move(*decoder));
  EXPECT_THAT(model.load_adapter(1, temp.path(), 0).error().to_string(),
              HasSubstr("the rank 40 is above the 32"));
  EXPECT_THAT(model.load_adapter(1, temp.path(), 32).error().to_string(),
              HasSubstr("the rank 40 is above the 32 of --max-lora-rank"));
  EXPECT_FALSE(model.load_adapter(1, other.path(), 0));
  EXPECT_FALSE(model.load_adapter(1, temp.path() / "none", 0));
  write_test_adapter(golden.folder, 3, temp.path(), 8);
  EXPECT_TRUE(model.load_adapter(1, temp.path(), 0));
}

}  // namespace
}  // namespace espalier
