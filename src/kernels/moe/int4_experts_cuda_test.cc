// Experts in 4-bit codes with scales of groups on Hopper, against float32 with the numbers that the
// codes stand for and against slow loops on the CPU; their records made of each order of codes.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/test_device.h"
#include "kernels/linear/int4_weights.h"
#include "kernels/moe/coded_layer_checks.h"
#include "kernels/moe/int4_test_experts.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;
using test::ExpertCodes;
using test::Int4Experts;
using test::kExpertGroup;

class CudaInt4Experts : public test::OnDevice {
 protected:
  void SetUp() override {
    test::OnDevice::SetUp();
    if (IsSkipped()) return;
    const auto traits = cuda::device_traits();
    ASSERT_TRUE(traits);
    if (traits->compute_capability != 90)
      GTEST_SKIP() << "SKIPPED: experts in 4 bits need code for Hopper";
  }
  // Weights are exact, and what is rounded is y: 1.7e-3. Where rows fill tiles of 256 weights are
  // rounded to bfloat16 too, which is as much again: 2.3e-3.
  void check(const test::CodedLayerShape& s, double bound = 0.0022) {
    test::check_coded_layer<Int4Experts>(rng_, s, bound);
  }
};

TEST_F(CudaInt4Experts, OneRowAgainstSlowLoops) {
  test::check_one_row<Int4Experts>(
      rng_, {.rows = 1, .top_k = 2, .experts = 3, .dim = 384, .ffn = 128}, 0.005);
}

TEST_F(CudaInt4Experts, FewRows) {
  for (const int rows : {1, 3, 17, 64, 100})
    check({.rows = rows, .top_k = 4, .experts = 12, .dim = 768, .ffn = 384});
  check({.rows = 50, .top_k = 3, .experts = 6, .dim = 512, .ffn = 384, .favourites = 3});
}

TEST_F(CudaInt4Experts, SomeRows) {
  for (const int rows : {200, 256, 700})
    check({.rows = rows, .top_k = 4, .experts = 12, .dim = 768, .ffn = 384});
  check({.rows = 300, .top_k = 3, .experts = 6, .dim = 512, .ffn = 256, .favourites = 4});
}

TEST_F(CudaInt4Experts, ManyRows) {
  check({.rows = 2000, .top_k = 4, .experts = 8, .dim = 768, .ffn = 384}, 0.003);
  check({.rows = 1400, .top_k = 2, .experts = 3, .dim = 512, .ffn = 256, .favourites = 2}, 0.003);
}

// Most of the experts have no row at one, few or some rows.
TEST_F(CudaInt4Experts, ManyExpertsWithoutRows) {
  for (const int rows : {1, 9, 150})
    check({.rows = rows,
           .top_k = 8,
           .experts = 128,
           .dim = 512,
           .ffn = 128,
           .activation = Activation::kSilu,
           .bias = false,
           .favourites = rows == 1 ? 0 : 9});
}

TEST_F(CudaInt4Experts, TheShapeOfQwen3) {
  for (const int rows : {1, 40})
    check({.rows = rows,
           .top_k = 4,
           .experts = 6,
           .dim = 2048,
           .ffn = 768,
           .activation = Activation::kSilu,
           .bias = false});
}

TEST_F(CudaInt4Experts, RangesOfExperts) {
  for (const int rows : {1, 70})
    test::check_expert_ranges<Int4Experts>(
        rng_, {.rows = rows, .top_k = 3, .experts = 7, .dim = 256, .ffn = 128});
}

TEST_F(CudaInt4Experts, OddSizes) {
  constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                         Activation::kClampedSwiglu};
  for (int round = 0; round < 20; ++round) {
    const auto pick = [&](int low, int high) { return static_cast<int>(rng_.between(low, high)); };
    const int experts = pick(1, 20);
    check({.rows = pick(1, 400),
           .top_k = pick(1, std::min(experts, 6)),
           .experts = experts,
           .dim = 128 * pick(1, 4),
           .ffn = 128 * pick(1, 4),
           .activation = kActivations[round % 3],
           .bias = round % 2 == 0,
           .favourites = round % 3},
          0.003);
  }
}

// Of any number of rows of an expert, and sizes that are half of a record of 128 inputs.
TEST_F(CudaInt4Experts, GroupsOf32) {
  using test::Int4SmallExperts;
  for (const int rows : {1, 3, 17, 64, 200, 700})
    test::check_coded_layer<Int4SmallExperts>(
        rng_, {.rows = rows, .top_k = 4, .experts = 12, .dim = 768, .ffn = 320}, 0.003);
  test::check_coded_layer<Int4SmallExperts>(
      rng_, {.rows = 2000, .top_k = 4, .experts = 5, .dim = 320, .ffn = 192}, 0.003);
  test::check_coded_layer<Int4SmallExperts>(
      rng_, {.rows = 50, .top_k = 3, .experts = 6, .dim = 64, .ffn = 64, .favourites = 3}, 0.003);
  test::check_one_row<Int4SmallExperts>(
      rng_, {.rows = 1, .top_k = 2, .experts = 3, .dim = 192, .ffn = 64}, 0.005);
  for (const int rows : {1, 70})
    test::check_expert_ranges<Int4SmallExperts>(
        rng_, {.rows = rows, .top_k = 3, .experts = 7, .dim = 256, .ffn = 128});
}

TEST_F(CudaInt4Experts, RecordsOfSmallGroupsAreTheSameInEachOrder) {
  for (const auto& [out, in, gated] :
       {std::tuple{176, 320, true}, {16, 64, true}, {72, 448, false}, {136, 256, false}}) {
    const ExpertCodes codes(rng_, 2, out, in, cuda::kInt4SmallGroup);
    const auto expected = Int4Experts(codes, 2, gated, cuda::Int4Order::kRows).records.read();
    const auto gptq = Int4Experts(codes, 2, gated, cuda::Int4Order::kColumns).records.read();
    EXPECT_EQ(gptq, expected) << out << " x " << in;
    const auto awq = Int4Experts(codes, 2, gated, cuda::Int4Order::kAwq).records.read();
    EXPECT_EQ(awq, expected) << out << " x " << in;
  }
}

// Rows that fill no record: 8 to 120 of them, of which the last eight may lack those beside them.
TEST_F(CudaInt4Experts, RecordsAreTheSameInEachOrder) {
  for (const auto& [out, in, gated] :
       {std::tuple{176, 384, true}, {16, 128, true}, {72, 384, false}, {136, 256, false}}) {
    const ExpertCodes codes(rng_, 2, out, in);
    const auto expected = Int4Experts(codes, 2, gated, cuda::Int4Order::kRows).records.read();
    const auto gptq = Int4Experts(codes, 2, gated, cuda::Int4Order::kColumns).records.read();
    EXPECT_EQ(gptq, expected) << out << " x " << in;
    const auto awq = Int4Experts(codes, 2, gated, cuda::Int4Order::kAwq).records.read();
    EXPECT_EQ(awq, expected) << out << " x " << in;
  }
}

// Numbers that are codes less eight, times a scale, become those codes, with a zero point of eight.
TEST_F(CudaInt4Experts, RoundsNumbersToTheirCodes) {
  ExpertCodes codes(rng_, 1, 96, 384);
  std::ranges::fill(codes.zeros, uint8_t{8});
  for (size_t i = 0; i < codes.codes.size(); i += kExpertGroup) codes.codes[i] = 0;
  const std::vector<float> numbers = codes.values();
  const DeviceArray<float> x(numbers);
  for (const bool gated : {false, true}) {
    const Int4Experts expected(codes, 1, gated, cuda::Int4Order::kRows);
    const DeviceArray<uint8_t> records(expected.records.size());
    cudaMemset(records.get(), 0, records.size());
    const Status status = cuda::quantize_int4(
        {.type = DType::kFloat32,
         .x = x.get(),
         .x_stride = 384,
         .to = {.format = {.group = kExpertGroup, .zeros = true},
                .kind = gated ? cuda::Int4Records::kGatedExpert : cuda::Int4Records::kExpert,
                .records = records.get(),
                .out_features = 96,
                .in_features = 384,
                .rows = 96}},
        {});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(records.read(), expected.records.read()) << (gated ? "gated" : "plain");
  }
}

// An infinite scale makes the numbers of its row and group infinite or NaN, and no others.
TEST_F(CudaInt4Experts, AnInfiniteScaleStaysInItsRow) {
  constexpr int kOut = 64, kIn = 256, kBroken = 37;
  ExpertCodes codes(rng_, 1, kOut, kIn);
  codes.scales[kBroken * 2 + 1] = 0x7c00;
  const Int4Experts experts(codes, 1, false, cuda::Int4Order::kRows);
  const DeviceArray<int32_t> zeros(std::vector<int32_t>(1, 0)), slots(1), pairs(1), begins(2),
      tiles(2);
  const cuda::ExpertPlan plan{slots.get(), pairs.get(), begins.get(), tiles.get()};
  ASSERT_TRUE(
      cuda::arrange({.experts = zeros.get(), .num_pairs = 1, .num_experts = 1, .plan = plan}, {})
          .ok());
  const DeviceArray<BFloat16> x(test::to_bfloat16s(test::random_floats(rng_, kIn, 1))), y(kOut);
  cuda::GroupedArgs args{.num_groups = 1,
                         .in_features = kIn,
                         .out_features = kOut,
                         .x = x.get(),
                         .x_stride = kIn,
                         .y = y.get(),
                         .y_stride = kOut,
                         .plan = &plan,
                         .num_pairs = 1};
  experts.use(args);
  ASSERT_TRUE(cuda::grouped_linear(args, {}).ok());
  const std::vector<float> got = test::to_floats(y.read());
  for (int row = 0; row < kOut; ++row)
    EXPECT_EQ(std::isfinite(got[static_cast<size_t>(row)]), row != kBroken) << row;
}

TEST_F(CudaInt4Experts, RefusesWhatTheKernelDoesNotTake) {
  const DeviceArray<uint8_t> bytes(1 << 16);
  const cuda::GroupedArgs args{.num_groups = 2,
                               .in_features = 128,
                               .out_features = 64,
                               .x = bytes.get(),
                               .x_stride = 128,
                               .weights = bytes.get(),
                               .weights_stride = cuda::kInt4ExpertRecordBytes,
                               .int4 = true,
                               .y = bytes.get(),
                               .y_stride = 64,
                               .rows = 2};
  const Status status = cuda::grouped_linear(args, {});
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << "no plan";
  cuda::RepackInt4Args repack{.codes = bytes.get(),
                              .line_bytes = 64,
                              .scales = bytes.get(),
                              .zeros = bytes.get(),
                              .inputs = 128,
                              .to = {.format = {.group = 128, .zeros = true},
                                     .kind = cuda::Int4Records::kExpert,
                                     .records = bytes.get(),
                                     .out_features = 64,
                                     .in_features = 128,
                                     .rows = 64}};
  EXPECT_TRUE(cuda::repack_int4(repack, {}).ok());
  repack.to.in_features = 192;
  EXPECT_EQ(cuda::repack_int4(repack, {}).code(), StatusCode::kInvalidArgument) << "half a group";
  repack.to.in_features = 128, repack.to.format.group = 64;
  EXPECT_EQ(cuda::repack_int4(repack, {}).code(), StatusCode::kInvalidArgument) << "other groups";
  repack.to.format.group = 128, repack.to.kind = cuda::Int4Records::kGatedExpert;
  repack.to.out_features = 72, repack.to.rows = 72;
  EXPECT_EQ(cuda::repack_int4(repack, {}).code(), StatusCode::kInvalidArgument)
      << "gate and up of 36 rows";
}

}  // namespace
}  // namespace espalier::kernels
