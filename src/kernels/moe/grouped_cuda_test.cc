// Grouped GEMMs of the sizes that models have: the Hopper kernel with rows gathered and activations
// fused against the kernels for any GPU, which moe_cuda_test.cc holds to slow loops; of e4m3
// against float32 with the numbers that codes and scales stand for.
#include <algorithm>
#include <numeric>

#include "kernels/activation/cuda.h"
#include "kernels/cuda/test_device.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/test_values.h"
#include "kernels/random/cuda.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

struct Shape {
  int rows, top_k, experts, dim, ffn;
  Activation activation = Activation::kSilu;
  bool bias = false;
  int favourites = 0;  // experts that most rows choose; 0: all alike
};

DeviceArray<BFloat16> random_bfloat16(Rng& rng, int64_t count, double deviation) {
  DeviceArray<BFloat16> values(static_cast<size_t>(count));
  EXPECT_TRUE(cuda::draw({.out = values.get(),
                          .count = count,
                          .key = static_cast<uint64_t>(rng.between(0, 1 << 30)),
                          .deviation = static_cast<float>(deviation)},
                         {})
                  .ok());
  return values;
}

std::vector<int32_t> random_experts(Rng& rng, const Shape& s) {
  std::vector<int32_t> chosen, ids(static_cast<size_t>(s.experts));
  std::iota(ids.begin(), ids.end(), 0);
  for (int row = 0; row < s.rows; ++row) {
    const bool all = s.favourites == 0 || rng.between(0, 7) == 0;
    const int most = all ? s.experts : std::min(s.experts, std::max(s.favourites, s.top_k));
    for (int i = 0; i < s.top_k; ++i) {
      const auto other = static_cast<size_t>(rng.between(i, most - 1));
      std::swap(ids[static_cast<size_t>(i)], ids[other]);
    }
    chosen.insert(chosen.end(), ids.begin(), ids.begin() + s.top_k);
    std::ranges::sort(ids);
  }
  return chosen;
}

// A layer's experts, its rows and their arrangement, on the device.
class Layer {
 public:
  Layer(Rng& rng, const Shape& s)
      : shape_(s),
        x_(random_bfloat16(rng, int64_t{s.rows} * s.dim, 1)),
        gate_up_(random_bfloat16(rng, int64_t{s.experts} * 2 * s.ffn * s.dim,
                                 1 / std::sqrt(double(s.dim)))),
        down_(
            random_bfloat16(rng, int64_t{s.experts} * s.ffn * s.dim, 1 / std::sqrt(double(s.ffn)))),
        bias_(random_bfloat16(rng, int64_t{s.experts} * 2 * s.ffn, 1)),
        chosen_(random_experts(rng, s)),
        slots_(chosen_.size()),
        pairs_(chosen_.size()),
        begins_(static_cast<size_t>(s.experts) + 1),
        tiles_(static_cast<size_t>(s.experts) + 1),
        plan_{slots_.get(), pairs_.get(), begins_.get(), tiles_.get()} {
    EXPECT_TRUE(cuda::arrange({.experts = chosen_.get(),
                               .num_pairs = num_pairs(),
                               .num_experts = s.experts,
                               .plan = plan_},
                              {})
                    .ok());
  }

  int num_pairs() const { return shape_.rows * shape_.top_k; }

  cuda::GroupedArgs gate_up_args(BFloat16* y, bool fused) const {
    cuda::GroupedArgs args{.num_groups = shape_.experts,
                           .in_features = shape_.dim,
                           .out_features = 2 * shape_.ffn,
                           .x = x_.get(),
                           .x_stride = shape_.dim,
                           .weights = gate_up_.get(),
                           .weights_stride = int64_t{2} * shape_.ffn * shape_.dim,
                           .bias = shape_.bias ? bias_.get() : nullptr,
                           .y = y,
                           .y_stride = fused ? shape_.ffn : 2 * shape_.ffn,
                           .row_invariant = !fused,
                           .plan = &plan_,
                           .num_pairs = num_pairs(),
                           .pairs_per_row = shape_.top_k};
    if (fused) args.activation = shape_.activation, args.limit = 3;
    return args;
  }
  cuda::GroupedArgs down_args(const BFloat16* x, BFloat16* y, bool row_invariant) const {
    return {.num_groups = shape_.experts,
            .in_features = shape_.ffn,
            .out_features = shape_.dim,
            .x = x,
            .x_stride = shape_.ffn,
            .weights = down_.get(),
            .weights_stride = int64_t{shape_.ffn} * shape_.dim,
            .y = y,
            .y_stride = shape_.dim,
            .row_invariant = row_invariant,
            .plan = &plan_,
            .num_pairs = num_pairs()};
  }
  bool fuses() const {
    const auto fuses = cuda::grouped_linear_fuses(gate_up_args(nullptr, true));
    EXPECT_TRUE(fuses.has_value());
    return fuses.has_value() && *fuses;
  }

  std::vector<BFloat16> inner(bool fused) const {
    const DeviceArray<BFloat16> y(static_cast<size_t>(int64_t{num_pairs()} * shape_.ffn));
    if (fused) {
      EXPECT_TRUE(cuda::grouped_linear(gate_up_args(y.get(), true), {.pdl = true}).ok());
      return y.read();
    }
    const DeviceArray<BFloat16> both(static_cast<size_t>(int64_t{num_pairs()} * 2 * shape_.ffn));
    EXPECT_TRUE(cuda::grouped_linear(gate_up_args(both.get(), false), {}).ok());
    EXPECT_TRUE(cuda::gated({.type = DType::kBFloat16,
                             .gate = both.get(),
                             .gate_stride = 2 * shape_.ffn,
                             .up = both.get() + shape_.ffn,
                             .up_stride = 2 * shape_.ffn,
                             .y = y.get(),
                             .y_stride = shape_.ffn,
                             .rows = num_pairs(),
                             .dim = shape_.ffn,
                             .activation = shape_.activation,
                             .limit = 3},
                            {})
                    .ok());
    return y.read();
  }
  std::vector<BFloat16> outer(const std::vector<BFloat16>& inner, bool row_invariant) const {
    const DeviceArray<BFloat16> x(inner);
    const DeviceArray<BFloat16> y(static_cast<size_t>(int64_t{num_pairs()} * shape_.dim));
    EXPECT_TRUE(
        cuda::grouped_linear(down_args(x.get(), y.get(), row_invariant), {.pdl = true}).ok());
    return y.read();
  }

 private:
  Shape shape_;
  DeviceArray<BFloat16> x_, gate_up_, down_, bias_;
  DeviceArray<int32_t> chosen_, slots_, pairs_, begins_, tiles_;
  cuda::ExpertPlan plan_;
};

std::vector<uint16_t> bits(const std::vector<BFloat16>& values) {
  std::vector<uint16_t> out(values.size());
  std::memcpy(out.data(), values.data(), values.size() * 2);
  return out;
}

class CudaGrouped : public test::OnDevice {
 protected:
  void check(const Shape& s) {
    SCOPED_TRACE(fmt::format("{} rows, {} of {} experts, {} x {}", s.rows, s.top_k, s.experts,
                             s.dim, s.ffn));
    const Layer layer(rng_, s);
    if (!layer.fuses()) GTEST_SKIP() << "this GPU has no fused grouped GEMM";
    const auto want = layer.inner(false), got = layer.inner(true);
    EXPECT_LT(test::relative_error(test::to_floats(got), test::to_floats(want)), 0.006);
    const auto want_outer = layer.outer(want, true), got_outer = layer.outer(want, false);
    EXPECT_LT(test::relative_error(test::to_floats(got_outer), test::to_floats(want_outer)), 0.004);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(bits(layer.inner(true)), bits(got)) << "run " << i;
      EXPECT_EQ(bits(layer.outer(want, false)), bits(got_outer)) << "run " << i;
    }
  }
};

TEST_F(CudaGrouped, ModelsAtAllNumbersOfRows) {
  for (const int rows : {1, 3, 16, 64, 200, 1000, 2500}) {
    check({.rows = rows, .top_k = 8, .experts = 128, .dim = 2048, .ffn = 768});
    check({.rows = rows, .top_k = 6, .experts = 64, .dim = 2048, .ffn = 1408, .favourites = 9});
  }
}

TEST_F(CudaGrouped, BiasesAndActivations) {
  check({.rows = 300,
         .top_k = 4,
         .experts = 32,
         .dim = 2880,
         .ffn = 2880,
         .activation = Activation::kClampedSwiglu,
         .bias = true});
  check({.rows = 70,
         .top_k = 2,
         .experts = 8,
         .dim = 512,
         .ffn = 200,
         .activation = Activation::kGeluTanh,
         .bias = true,
         .favourites = 2});
}

TEST_F(CudaGrouped, OddSizes) {
  for (int round = 0; round < 25; ++round) {
    const auto pick = [&](int low, int high) { return static_cast<int>(rng_.between(low, high)); };
    const int experts = pick(1, 40);
    check({.rows = pick(1, 700),
           .top_k = pick(1, std::min(experts, 8)),
           .experts = experts,
           .dim = 8 * pick(1, 90),
           .ffn = 8 * pick(1, 90),
           .bias = round % 2 == 0,
           .favourites = round % 3});
  }
}

// x and weights as codes and as the float32 numbers that these stand for.
class CodedLayer {
 public:
  CodedLayer(Rng& rng, const Shape& s)
      : shape_(s),
        x_(test::rounded_rows(random_bfloat16(rng, int64_t{s.rows} * s.dim, 1), s.rows, s.dim)),
        gate_up_(test::rounded_rows(random_bfloat16(rng, int64_t{s.experts} * 2 * s.ffn * s.dim,
                                                    1 / std::sqrt(double(s.dim))),
                                    s.experts * 2 * s.ffn, s.dim)),
        down_(test::rounded_rows(
            random_bfloat16(rng, int64_t{s.experts} * s.ffn * s.dim, 1 / std::sqrt(double(s.ffn))),
            s.experts * s.dim, s.ffn)),
        bias_(random_bfloat16(rng, int64_t{s.experts} * 2 * s.ffn, 1)),
        float_bias_(test::to_floats(bias_.read())),
        host_chosen_(random_experts(rng, s)),
        chosen_(host_chosen_),
        slots_(chosen_.size()),
        pairs_(chosen_.size()),
        begins_(static_cast<size_t>(s.experts) + 1),
        tiles_(static_cast<size_t>(s.experts) + 1),
        plan_{slots_.get(), pairs_.get(), begins_.get(), tiles_.get()} {}

  // The plan of the first `rows` rows.
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

  // The results of each pair, gated, or of down; in the order of slots.
  std::vector<BFloat16> inner(bool row_invariant) const {
    const DeviceArray<BFloat16> y(num_pairs() * static_cast<size_t>(shape_.ffn));
    cuda::GroupedArgs args = up_args(x_.codes.get(), gate_up_.codes.get(), y.get());
    args.x_scales = x_.scales.get(), args.weight_scales = gate_up_.scales.get();
    args.bias = shape_.bias ? bias_.get() : nullptr;
    args.activation = shape_.activation, args.limit = 3;
    args.y_stride = shape_.ffn;
    args.row_invariant = row_invariant;
    EXPECT_TRUE(cuda::grouped_linear(args, {.pdl = true}).ok());
    return y.read();
  }
  std::vector<float> float_inner() const {
    const DeviceArray<float> x(x_.values), weights(gate_up_.values), bias(float_bias_);
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
                             .limit = 3},
                            {})
                    .ok());
    return y.read();
  }
  std::vector<BFloat16> outer(const test::RoundedRows& x) const {
    const DeviceArray<BFloat16> y(num_pairs() * static_cast<size_t>(shape_.dim));
    cuda::GroupedArgs args = down_args(x.codes.get(), down_.codes.get(), y.get());
    args.x_scales = x.scales.get(), args.weight_scales = down_.scales.get();
    EXPECT_TRUE(cuda::grouped_linear(args, {.pdl = true}).ok());
    return y.read();
  }
  std::vector<float> float_outer(const test::RoundedRows& from) const {
    const DeviceArray<float> x(from.values), weights(down_.values);
    const DeviceArray<float> y(num_pairs() * static_cast<size_t>(shape_.dim));
    cuda::GroupedArgs args = down_args(x.get(), weights.get(), y.get());
    args.type = DType::kFloat32;
    EXPECT_TRUE(cuda::grouped_linear(args, {}).ok());
    return y.read();
  }
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

  const Shape shape_;
  int rows_ = 0;
  const test::RoundedRows x_, gate_up_, down_;
  const DeviceArray<BFloat16> bias_;
  const std::vector<float> float_bias_;
  const std::vector<int32_t> host_chosen_;
  const DeviceArray<int32_t> chosen_, slots_, pairs_, begins_, tiles_;
  const cuda::ExpertPlan plan_;
};

class CudaGroupedE4m3 : public test::OnDevice {
 protected:
  void SetUp() override {
    test::OnDevice::SetUp();
    if (IsSkipped()) return;
    const auto traits = cuda::device_traits();
    ASSERT_TRUE(traits);
    if (traits->compute_capability != 90)
      GTEST_SKIP() << "SKIPPED: GEMMs of e4m3 need code for Hopper";
  }
  void check(const Shape& s) {
    SCOPED_TRACE(fmt::format("{} rows, {} of {} experts, {} x {}", s.rows, s.top_k, s.experts,
                             s.dim, s.ffn));
    CodedLayer layer(rng_, s);
    layer.arrange(s.rows);
    const auto inner = layer.inner(false);
    EXPECT_LT(test::relative_error(test::to_floats(inner), layer.float_inner()), 0.004);
    const auto rounded = test::rounded_rows(DeviceArray<BFloat16>(inner),
                                            static_cast<int>(layer.num_pairs()), s.ffn);
    const auto outer = layer.outer(rounded);
    EXPECT_LT(test::relative_error(test::to_floats(outer), layer.float_outer(rounded)), 0.004);
    EXPECT_EQ(bits(layer.inner(false)), bits(inner));
    // row_invariant: a row's bits are those that it has in a batch of fewer rows.
    const auto invariant = layer.inner(true);
    EXPECT_LT(test::relative_error(test::to_floats(invariant), layer.float_inner()), 0.004);
    const auto all = layer.by_pair(invariant, s.ffn);
    layer.arrange((s.rows + 1) / 2);
    const auto some = layer.by_pair(layer.inner(true), s.ffn);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  }
};

TEST_F(CudaGroupedE4m3, ModelsAtAllNumbersOfRows) {
  for (const int rows : {1, 5, 33, 300, 1500}) {
    check({.rows = rows, .top_k = 4, .experts = 12, .dim = 2048, .ffn = 768});
    check({.rows = rows, .top_k = 3, .experts = 6, .dim = 2048, .ffn = 1408, .favourites = 4});
  }
}

TEST_F(CudaGroupedE4m3, OddSizes) {
  constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                         Activation::kClampedSwiglu};
  for (int round = 0; round < 25; ++round) {
    const auto pick = [&](int low, int high) { return static_cast<int>(rng_.between(low, high)); };
    const int experts = pick(1, 30);
    check({.rows = pick(1, 500),
           .top_k = pick(1, std::min(experts, 8)),
           .experts = experts,
           .dim = 16 * pick(1, 45),
           .ffn = 16 * pick(1, 45),
           .activation = kActivations[round % 3],
           .bias = round % 2 == 0,
           .favourites = round % 3});
  }
}

TEST_F(CudaGroupedE4m3, RefusesWhatTheKernelDoesNotTake) {
  CodedLayer layer(rng_, {.rows = 2, .top_k = 1, .experts = 2, .dim = 32, .ffn = 32});
  const DeviceArray<uint8_t> codes(4096);
  const DeviceArray<float> scales(4096);
  cuda::GroupedArgs args{.num_groups = 2,
                         .in_features = 32,
                         .out_features = 32,
                         .x = codes.get(),
                         .x_stride = 32,
                         .weights = codes.get(),
                         .weights_stride = 1024,
                         .weight_scales = scales.get(),
                         .y = codes.get(),
                         .y_stride = 32,
                         .rows = 2};
  EXPECT_EQ(cuda::grouped_linear(args, {}).code(), StatusCode::kInvalidArgument) << "no x_scales";
  args.x_scales = scales.get();
  EXPECT_EQ(cuda::grouped_linear(args, {}).code(), StatusCode::kUnimplemented) << "no plan";
}

TEST_F(CudaGrouped, RefusesAnActivationThatItCannotFuse) {
  const Layer layer(rng_, {.rows = 2, .top_k = 1, .experts = 2, .dim = 16, .ffn = 16});
  cuda::GroupedArgs args = layer.gate_up_args(nullptr, true);
  args.row_invariant = true;
  EXPECT_EQ(cuda::grouped_linear(args, {}).code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace espalier::kernels
