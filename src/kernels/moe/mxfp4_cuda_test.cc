// Experts in MXFP4 on Hopper against float32 with the numbers that codes and scales stand for, and
// against slow loops on the CPU.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/activation/cuda.h"
#include "kernels/cuda/test_device.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/mxfp4_weights.h"
#include "kernels/random/cuda.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

struct Mxfp4LayerShape {
  int rows, top_k, experts, dim, ffn;
  Activation activation = Activation::kClampedSwiglu;
  bool bias = true;
  int favourites = 0;  // experts that most rows choose; 0: all alike
};

constexpr float kMxfp4Limit = 7;

// Matrices of one expert behind the other as a checkpoint has them, and their numbers.
struct Mxfp4Matrices {
  std::vector<uint8_t> blocks, scales;
  std::vector<float> values;  // [experts, rows, in], in the order of the blocks

  Mxfp4Matrices(Rng& rng, int64_t rows, int in)
      : blocks(static_cast<size_t>(rows * in / 2)), scales(static_cast<size_t>(rows * in / 32)) {
    constexpr float kSizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(rng.between(0, 255));
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(rng.between(117, 122));
    values.resize(static_cast<size_t>(rows * in));
    for (size_t i = 0; i < values.size(); ++i) {
      const int code = i % 2 == 0 ? blocks[i / 2] & 15 : blocks[i / 2] >> 4;
      const float size = std::ldexp(kSizes[code & 7], scales[i / 32] - 127);
      values[i] = code < 8 ? size : -size;
    }
  }
};

// The records of a stack of matrices.
DeviceArray<uint8_t> records_of(const Mxfp4Matrices& from, const cuda::Mxfp4Shape& shape,
                                int experts) {
  const int64_t bytes = shape.size_bytes();
  DeviceArray<uint8_t> records(static_cast<size_t>(experts * bytes));
  cudaMemset(records.get(), 0, records.size());
  const DeviceArray<uint8_t> blocks(from.blocks), scales(from.scales);
  const int64_t of_matrix = int64_t{shape.out_features} * shape.in_features;
  // In two parts, as a loader has them.
  const int first = std::max(1, shape.out_features / 3 / 2 * 2);
  for (int expert = 0; expert < experts; ++expert) {
    for (const auto& [begin, rows] : {std::pair{0, first}, {first, shape.out_features - first}}) {
      if (rows == 0) continue;
      const int64_t at = expert * of_matrix + int64_t{begin} * shape.in_features;
      EXPECT_TRUE(cuda::repack_mxfp4({.blocks = blocks.get() + at / 2,
                                      .scales = scales.get() + at / 32,
                                      .to = {.shape = shape,
                                             .records = records.get() + expert * bytes,
                                             .first_row = begin,
                                             .rows = rows}},
                                     {})
                      .ok());
    }
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return records;
}

// Rows of gate and up that alternate become all of gate, then all of up.
std::vector<float> parted(const std::vector<float>& from, int experts, int rows, int in) {
  std::vector<float> out(from.size());
  for (int64_t i = 0; i < int64_t{experts} * rows; ++i) {
    const int64_t row = i % rows, to = i - row + row / 2 + row % 2 * (rows / 2);
    std::copy_n(from.begin() + i * in, in, out.begin() + to * in);
  }
  return out;
}

// Like parted(), of the activated sums in double: silu of the clamped gate.
double swiglu(double gate, double up) {
  gate = std::min<double>(gate, kMxfp4Limit);
  up = std::clamp<double>(up, -kMxfp4Limit, kMxfp4Limit);
  return gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
}

class Mxfp4Layer {
 public:
  Mxfp4Layer(Rng& rng, const Mxfp4LayerShape& s)
      : shape_(s),
        gate_up_shape_{2 * s.ffn, s.dim, true},
        down_shape_{s.dim, s.ffn, false},
        x_(random_rows(rng, int64_t{s.rows} * s.dim)),
        gate_up_(rng, int64_t{s.experts} * 2 * s.ffn, s.dim),
        down_(rng, int64_t{s.experts} * s.dim, s.ffn),
        gate_up_records_(records_of(gate_up_, gate_up_shape_, s.experts)),
        down_records_(records_of(down_, down_shape_, s.experts)),
        gate_up_bias_(random_rows(rng, int64_t{s.experts} * 2 * s.ffn)),
        down_bias_(random_rows(rng, int64_t{s.experts} * s.dim)),
        host_chosen_(chosen_experts(rng, s)),
        chosen_(host_chosen_),
        slots_(chosen_.size()),
        pairs_(chosen_.size()),
        begins_(static_cast<size_t>(s.experts) + 1),
        tiles_(static_cast<size_t>(s.experts) + 1),
        plan_{slots_.get(), pairs_.get(), begins_.get(), tiles_.get()} {}

  void arrange(int rows) {
    rows_ = rows;
    EXPECT_TRUE(cuda::arrange({.experts = chosen_.get(),
                               .num_pairs = rows * shape_.top_k,
                               .num_experts = shape_.experts,
                               .plan = plan_},
                              {})
                    .ok());
  }
  size_t num_pairs() const { return static_cast<size_t>(rows_ * shape_.top_k); }

  std::vector<BFloat16> inner(bool row_invariant) const {
    const DeviceArray<BFloat16> x(x_), bias(gate_up_bias_);
    const DeviceArray<BFloat16> y(num_pairs() * static_cast<size_t>(shape_.ffn));
    cuda::GroupedArgs args = up_args(x.get(), gate_up_records_.get(), y.get());
    args.weights_stride = gate_up_shape_.size_bytes();
    args.mxfp4 = true;
    args.bias = shape_.bias ? bias.get() : nullptr;
    args.activation = shape_.activation, args.limit = kMxfp4Limit;
    args.y_stride = shape_.ffn;
    args.row_invariant = row_invariant;
    EXPECT_TRUE(cuda::grouped_linear(args, {.pdl = true}).ok());
    return y.read();
  }
  std::vector<BFloat16> outer(const std::vector<BFloat16>& inner, bool row_invariant) const {
    const DeviceArray<BFloat16> x(inner), bias(down_bias_);
    const DeviceArray<BFloat16> y(num_pairs() * static_cast<size_t>(shape_.dim));
    cuda::GroupedArgs args = down_args(x.get(), down_records_.get(), y.get());
    args.weights_stride = down_shape_.size_bytes();
    args.mxfp4 = true;
    args.bias = shape_.bias ? bias.get() : nullptr;
    args.row_invariant = row_invariant;
    EXPECT_TRUE(cuda::grouped_linear(args, {.pdl = true}).ok());
    return y.read();
  }
  std::vector<float> float_inner() const {
    const DeviceArray<float> x(test::to_floats(x_));
    const DeviceArray<float> bias(test::to_floats(gate_up_bias_));
    const DeviceArray<float> weights(
        parted(gate_up_.values, shape_.experts, 2 * shape_.ffn, shape_.dim));
    const DeviceArray<float> both(num_pairs() * static_cast<size_t>(2 * shape_.ffn));
    cuda::GroupedArgs args = up_args(x.get(), weights.get(), both.get());
    args.type = DType::kFloat32;
    args.bias = shape_.bias ? bias.get() : nullptr;
    EXPECT_TRUE(cuda::grouped_linear(args, {}).ok());
    const DeviceArray<float> y(num_pairs() * static_cast<size_t>(shape_.ffn));
    EXPECT_TRUE(cuda::gated({.type = DType::kFloat32,
                             .gate = both.get(),
                             .gate_stride = 2 * shape_.ffn,
                             .up = both.get() + shape_.ffn,
                             .up_stride = 2 * shape_.ffn,
                             .y = y.get(),
                             .y_stride = shape_.ffn,
                             .rows = static_cast<int32_t>(num_pairs()),
                             .dim = shape_.ffn,
                             .activation = shape_.activation,
                             .limit = kMxfp4Limit},
                            {})
                    .ok());
    return y.read();
  }
  std::vector<float> float_outer(const std::vector<BFloat16>& inner) const {
    const DeviceArray<float> x(test::to_floats(inner)), weights(down_.values);
    const DeviceArray<float> bias(test::to_floats(down_bias_));
    const DeviceArray<float> y(num_pairs() * static_cast<size_t>(shape_.dim));
    cuda::GroupedArgs args = down_args(x.get(), weights.get(), y.get());
    args.type = DType::kFloat32;
    args.bias = shape_.bias ? bias.get() : nullptr;
    EXPECT_TRUE(cuda::grouped_linear(args, {}).ok());
    return y.read();
  }
  // The first pair's inner row by loops in double.
  std::vector<double> slow_inner() const {
    std::vector<double> out;
    const int64_t expert = host_chosen_[0];
    const auto sum = [&](int row) {  // of the checkpoint's, in which gate and up alternate
      double total = 0;
      for (int k = 0; k < shape_.dim; ++k)
        total +=
            gate_up_.values[static_cast<size_t>((expert * 2 * shape_.ffn + row) * shape_.dim + k)] *
            double{to_float(x_[static_cast<size_t>(k)])};
      const int64_t bias = row / 2 + row % 2 * shape_.ffn;
      return total + to_float(gate_up_bias_[static_cast<size_t>(expert * 2 * shape_.ffn + bias)]);
    };
    for (int i = 0; i < shape_.ffn; ++i) out.push_back(swiglu(sum(2 * i), sum(2 * i + 1)));
    return out;
  }
  int slot_of_first_pair() const { return slots_.read()[0]; }
  // Rows in the order of slots become rows in the order of pairs.
  std::vector<uint16_t> by_pair(const std::vector<BFloat16>& of_slots, int columns) const {
    const std::vector<int32_t> slots = slots_.read();
    std::vector<uint16_t> out;
    for (size_t pair = 0; pair < num_pairs(); ++pair)
      for (int i = 0; i < columns; ++i)
        out.push_back(of_slots[static_cast<size_t>(slots[pair] * columns + i)].bits);
    return out;
  }

 private:
  static std::vector<BFloat16> random_rows(Rng& rng, int64_t count) {
    return test::to_bfloat16s(test::random_floats(rng, count, 1));
  }
  static std::vector<int32_t> chosen_experts(Rng& rng, const Mxfp4LayerShape& s) {
    std::vector<int32_t> chosen, ids(static_cast<size_t>(s.experts));
    std::iota(ids.begin(), ids.end(), 0);
    for (int row = 0; row < s.rows; ++row) {
      const bool all = s.favourites == 0 || rng.between(0, 7) == 0;
      const int most = all ? s.experts : std::min(s.experts, std::max(s.favourites, s.top_k));
      for (int i = 0; i < s.top_k; ++i)
        std::swap(ids[static_cast<size_t>(i)], ids[static_cast<size_t>(rng.between(i, most - 1))]);
      chosen.insert(chosen.end(), ids.begin(), ids.begin() + s.top_k);
      std::ranges::sort(ids);
    }
    return chosen;
  }
  cuda::GroupedArgs up_args(const void* x, const void* weights, void* y) const {
    return {.num_groups = shape_.experts,
            .in_features = shape_.dim,
            .out_features = 2 * shape_.ffn,
            .x = x,
            .x_stride = shape_.dim,
            .weights = weights,
            .weights_stride = int64_t{2} * shape_.ffn * shape_.dim,
            .y = y,
            .y_stride = 2 * shape_.ffn,
            .plan = &plan_,
            .num_pairs = static_cast<int32_t>(num_pairs()),
            .pairs_per_row = shape_.top_k};
  }
  cuda::GroupedArgs down_args(const void* x, const void* weights, void* y) const {
    return {.num_groups = shape_.experts,
            .in_features = shape_.ffn,
            .out_features = shape_.dim,
            .x = x,
            .x_stride = shape_.ffn,
            .weights = weights,
            .weights_stride = int64_t{shape_.ffn} * shape_.dim,
            .y = y,
            .y_stride = shape_.dim,
            .plan = &plan_,
            .num_pairs = static_cast<int32_t>(num_pairs())};
  }

  const Mxfp4LayerShape shape_;
  const cuda::Mxfp4Shape gate_up_shape_, down_shape_;
  int rows_ = 0;
  const std::vector<BFloat16> x_;
  const Mxfp4Matrices gate_up_, down_;
  const DeviceArray<uint8_t> gate_up_records_, down_records_;
  const std::vector<BFloat16> gate_up_bias_, down_bias_;
  const std::vector<int32_t> host_chosen_;
  const DeviceArray<int32_t> chosen_, slots_, pairs_, begins_, tiles_;
  const cuda::ExpertPlan plan_;
};

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
  void check(const Mxfp4LayerShape& s) {
    SCOPED_TRACE(fmt::format("{} rows, {} of {} experts, {} x {}", s.rows, s.top_k, s.experts,
                             s.dim, s.ffn));
    Mxfp4Layer layer(rng_, s);
    layer.arrange(s.rows);
    const auto inner = layer.inner(false);
    const double inner_error = test::relative_error(test::to_floats(inner), layer.float_inner());
    const auto outer = layer.outer(inner, false);
    const double outer_error =
        test::relative_error(test::to_floats(outer), layer.float_outer(inner));
    fmt::print("{} rows, {} of {} experts, {} x {}: errors {:.5f} and {:.5f}\n", s.rows, s.top_k,
               s.experts, s.dim, s.ffn, inner_error, outer_error);
    EXPECT_LT(inner_error, 0.004);
    EXPECT_LT(outer_error, 0.004);
    EXPECT_EQ(layer.by_pair(layer.inner(false), s.ffn), layer.by_pair(inner, s.ffn));
    // row_invariant: a row's bits are those that it has in a batch of fewer rows.
    const auto invariant = layer.inner(true);
    EXPECT_LT(test::relative_error(test::to_floats(invariant), layer.float_inner()), 0.004);
    const auto all = layer.by_pair(invariant, s.ffn);
    const auto all_outer = layer.by_pair(layer.outer(invariant, true), s.dim);
    layer.arrange((s.rows + 1) / 2);
    const auto half = layer.inner(true);
    const auto some = layer.by_pair(half, s.ffn);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
    const auto some_outer = layer.by_pair(layer.outer(half, true), s.dim);
    EXPECT_TRUE(std::equal(some_outer.begin(), some_outer.end(), all_outer.begin()));
  }
};

TEST_F(CudaMxfp4, OneRowAgainstSlowLoops) {
  const Mxfp4LayerShape shape{.rows = 1, .top_k = 2, .experts = 3, .dim = 160, .ffn = 96};
  Mxfp4Layer layer(rng_, shape);
  layer.arrange(1);
  const std::vector<double> expected = layer.slow_inner();
  const std::vector<float> got = test::to_floats(layer.inner(false));
  const auto first = static_cast<size_t>(layer.slot_of_first_pair() * shape.ffn);
  double most = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    most = std::max(most, std::abs(got[first + i] - expected[i]) / (1 + std::abs(expected[i])));
  fmt::print("largest error {:.5f}\n", most);
  EXPECT_LT(most, 0.005);
}

TEST_F(CudaMxfp4, FewRows) {
  for (const int rows : {1, 3, 17, 64})
    check({.rows = rows, .top_k = 4, .experts = 12, .dim = 768, .ffn = 384});
  check({.rows = 50, .top_k = 3, .experts = 6, .dim = 512, .ffn = 320, .favourites = 3});
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
    const std::vector<uint8_t> expected = records_of(from, shape, 1).read();
    const DeviceArray<uint8_t> records(expected.size());
    cudaMemset(records.get(), 0, records.size());
    // Gate and up apart.
    const DeviceArray<float> x(gated ? parted(from.values, 1, kRows, kIn) : from.values);
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
  Mxfp4Layer layer(rng_, {.rows = 2, .top_k = 1, .experts = 2, .dim = 32, .ffn = 32});
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
