// Experts in MXFP4 on Hopper against float32 with the numbers that codes and scales stand for, and
// against slow loops on the CPU.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/moe/coded_layer_checks.h"
#include "kernels/moe/mxfp4_test_experts.h"
#include "kernels/random/cuda.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;
using test::Mxfp4Experts;
using test::Mxfp4Matrices;

class CudaMxfp4 : public test::OnDevice {
 protected:
  void SetUp() override {
    test::OnDevice::SetUp();
    if (IsSkipped()) return;
    const auto traits = cuda::device_traits();
    ASSERT_TRUE(traits);
    if (traits->compute_capability != 90)
      GTEST_SKIP() << "SKIPPED: experts in MXFP4 need code for Hopper";
  }
  void check(const test::CodedLayerShape& s) {
    test::check_coded_layer<Mxfp4Experts>(rng_, s, 0.004);
  }
};

TEST_F(CudaMxfp4, OneRowAgainstSlowLoops) {
  test::check_one_row<Mxfp4Experts>(
      rng_, {.rows = 1, .top_k = 2, .experts = 3, .dim = 160, .ffn = 96}, 0.005);
}

TEST_F(CudaMxfp4, FewRows) {
  for (const int rows : {1, 3, 17, 64})
    check({.rows = rows, .top_k = 4, .experts = 12, .dim = 768, .ffn = 384});
  check({.rows = 50, .top_k = 3, .experts = 6, .dim = 512, .ffn = 320, .favourites = 3});
}

TEST_F(CudaMxfp4, NumbersOfBlocksAreRoundedToThemselves) {
  for (const int rows : {1, 40})
    test::check_coded_layer<test::RoundedMxfp4Experts>(
        rng_, {.rows = rows, .top_k = 3, .experts = 5, .dim = 512, .ffn = 320}, 0.004);
}

TEST_F(CudaMxfp4, SomeRows) {
  for (const int rows : {200, 700})
    check({.rows = rows, .top_k = 4, .experts = 12, .dim = 768, .ffn = 384});
  check({.rows = 300, .top_k = 3, .experts = 6, .dim = 512, .ffn = 320, .favourites = 4});
}

TEST_F(CudaMxfp4, ManyRows) {
  check({.rows = 2000, .top_k = 4, .experts = 8, .dim = 768, .ffn = 384});
  check({.rows = 1400, .top_k = 2, .experts = 3, .dim = 512, .ffn = 320, .favourites = 2});
}

TEST_F(CudaMxfp4, TheShapeOfGptOss) {
  check({.rows = 9, .top_k = 4, .experts = 8, .dim = 2880, .ffn = 2880});
  check({.rows = 150, .top_k = 4, .experts = 8, .dim = 2880, .ffn = 2880});
}

TEST_F(CudaMxfp4, RangesOfExperts) {
  for (const int rows : {1, 70})
    test::check_expert_ranges<Mxfp4Experts>(
        rng_, {.rows = rows, .top_k = 3, .experts = 7, .dim = 256, .ffn = 128});
}

TEST_F(CudaMxfp4, OddSizes) {
  constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                         Activation::kClampedSwiglu};
  for (int round = 0; round < 20; ++round) {
    const auto pick = [&](int low, int high) { return static_cast<int>(rng_.between(low, high)); };
    const int experts = pick(1, 20);
    check({.rows = pick(1, 400),
           .top_k = pick(1, std::min(experts, 6)),
           .experts = experts,
           .dim = 32 * pick(1, 16),
           .ffn = 32 * pick(1, 16),
           .activation = kActivations[round % 3],
           .bias = round % 2 == 0,
           .favourites = round % 3});
  }
}

// Numbers that are multiples of their blocks' scales become the codes that they were.
TEST_F(CudaMxfp4, RoundsNumbersToTheirCodes) {
  constexpr int kRows = 96, kIn = 160;
  Mxfp4Matrices from(rng_, kRows, kIn);
  for (size_t block = 0; block < from.scales.size(); ++block) {  // 6 fixes the block's scale
    from.blocks[block * 16] = static_cast<uint8_t>((from.blocks[block * 16] & 0xf0) | 7);
    from.values[block * 32] = std::ldexp(6.0f, from.scales[block] - 127);
  }
  for (const bool gated : {false, true}) {
    const cuda::Mxfp4Shape shape{kRows, kIn, gated};
    const std::vector<uint8_t> expected = test::records_of(from, shape, 1).read();
    const DeviceArray<uint8_t> records(expected.size());
    cudaMemset(records.get(), 0, records.size());
    // Gate and up apart.
    const DeviceArray<float> x(gated ? test::parted(from.values, 1, kRows, kIn) : from.values);
    const int parts = gated ? 2 : 1;
    for (int part = 0; part < parts; ++part)
      ASSERT_TRUE(cuda::quantize_mxfp4({.type = DType::kFloat32,
                                        .x = x.get() + part * kRows / 2 * kIn,
                                        .x_stride = kIn,
                                        .to = {.shape = shape,
                                               .records = records.get(),
                                               .first_row = part,
                                               .row_step = parts,
                                               .rows = kRows / parts}},
                                       {})
                      .ok());
    EXPECT_EQ(records.read(), expected) << (gated ? "gated" : "plain");
  }
}

// A last block of 8, 16 or 24 numbers is filled up: as rows of whole blocks with zeros behind.
TEST_F(CudaMxfp4, FillsUpTheLastBlock) {
  constexpr int kRows = 64, kWhole = 96;
  for (const int in : {72, 80, 88}) {
    std::vector<float> numbers = test::random_floats(rng_, kRows * kWhole, 1);
    for (int i = 0; i < kRows * kWhole; ++i)
      if (i % kWhole >= in) numbers[static_cast<size_t>(i)] = 0;
    const DeviceArray<float> x(numbers);
    std::vector<uint8_t> got[2];
    for (const bool whole : {false, true}) {
      const cuda::Mxfp4Shape shape{kRows, whole ? kWhole : in, false};
      const DeviceArray<uint8_t> records(static_cast<size_t>(shape.size_bytes()));
      cudaMemset(records.get(), 0, records.size());
      ASSERT_TRUE(
          cuda::quantize_mxfp4({.type = DType::kFloat32,
                                .x = x.get(),
                                .x_stride = kWhole,
                                .to = {.shape = shape, .records = records.get(), .rows = kRows}},
                               {})
              .ok());
      got[whole ? 1 : 0] = records.read();
    }
    EXPECT_EQ(got[0], got[1]) << in;
  }
}

TEST_F(CudaMxfp4, RefusesWhatTheKernelDoesNotTake) {
  const DeviceArray<uint8_t> bytes(1 << 16);
  const cuda::GroupedArgs args{.num_groups = 2,
                               .in_features = 32,
                               .out_features = 32,
                               .x = bytes.get(),
                               .x_stride = 32,
                               .weights = bytes.get(),
                               .weights_stride = 2176,
                               .mxfp4 = true,
                               .y = bytes.get(),
                               .y_stride = 32,
                               .rows = 2};
  EXPECT_EQ(cuda::grouped_linear(args, {}).code(), StatusCode::kUnimplemented) << "no plan";
  cuda::Mxfp4Destination to{.shape = {64, 40, false}, .records = bytes.get(), .rows = 64};
  EXPECT_EQ(cuda::repack_mxfp4({.blocks = bytes.get(), .scales = bytes.get(), .to = to}, {}).code(),
            StatusCode::kInvalidArgument)
      << "no whole blocks";
  to.shape.in_features = 64, to.first_row = 8;
  EXPECT_EQ(cuda::repack_mxfp4({.blocks = bytes.get(), .scales = bytes.get(), .to = to}, {}).code(),
            StatusCode::kInvalidArgument)
      << "rows behind the last";
}

}  // namespace
}  // namespace espalier::kernels
