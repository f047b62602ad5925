// For the tests of experts in codes of 4 bits: a layer of random experts, its GEMMs with codes, and
// the same in float32 with the numbers that the codes stand for. Not thread-safe.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/activation/cuda.h"
#include "kernels/cuda/test_device.h"
#include "kernels/moe/cuda.h"

namespace espalier::kernels::test {

struct CodedLayerShape {
  int rows, top_k, experts, dim, ffn;
  Activation activation = Activation::kClampedSwiglu;
  bool bias = true;
  int favourites = 0;  // experts that most rows choose; 0: all alike
};

inline constexpr float kLayerLimit = 7;

// silu of the clamped gate.
inline double clamped_swiglu(double gate, double up) {
  gate = std::min<double>(gate, kLayerLimit);
  up = std::clamp<double>(up, -kLayerLimit, kLayerLimit);
  return gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
}

// MATRICES: made of (rng, experts, rows, in, gated), with
//   values   [experts, rows, in] floats; gated: all rows of gate, then all of up
//   records  on the device
//   use()    makes them the weights of a GEMM's arguments
template <typename MATRICES>
class CodedLayer {
 public:
  CodedLayer(Rng& rng, const CodedLayerShape& s)
      : shape_(s),
        x_(random_rows(rng, int64_t{s.rows} * s.dim)),
        gate_up_(rng, s.experts, 2 * s.ffn, s.dim, true),
        down_(rng, s.experts, s.dim, s.ffn, false),
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
    cuda::GroupedArgs args = up_args(x.get(), nullptr, y.get());
    gate_up_.use(args);
    args.bias = shape_.bias ? bias.get() : nullptr;
    args.activation = shape_.activation, args.limit = kLayerLimit;
    args.y_stride = shape_.ffn;
    args.row_invariant = row_invariant;
    EXPECT_TRUE(cuda::grouped_linear(args, {.pdl = true}).ok());
    return y.read();
  }
  std::vector<BFloat16> outer(const std::vector<BFloat16>& inner, bool row_invariant) const {
    const DeviceArray<BFloat16> x(inner), bias(down_bias_);
    const DeviceArray<BFloat16> y(num_pairs() * static_cast<size_t>(shape_.dim));
    cuda::GroupedArgs args = down_args(x.get(), nullptr, y.get());
    down_.use(args);
    args.bias = shape_.bias ? bias.get() : nullptr;
    args.row_invariant = row_invariant;
    EXPECT_TRUE(cuda::grouped_linear(args, {.pdl = true}).ok());
    return y.read();
  }
  std::vector<float> float_inner() const {
    const DeviceArray<float> x(to_floats(x_));
    const DeviceArray<float> bias(to_floats(gate_up_bias_));
    const DeviceArray<float> weights(gate_up_.values);
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
                             .limit = kLayerLimit},
                            {})
                    .ok());
    return y.read();
  }
  std::vector<float> float_outer(const std::vector<BFloat16>& inner) const {
    const DeviceArray<float> x(to_floats(inner)), weights(down_.values);
    const DeviceArray<float> bias(to_floats(down_bias_));
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
    const auto sum = [&](int row) {
      const int64_t at = expert * 2 * shape_.ffn + row;
      double total = to_float(gate_up_bias_[static_cast<size_t>(at)]);
      for (int k = 0; k < shape_.dim; ++k)
        total += gate_up_.values[static_cast<size_t>(at * shape_.dim + k)] *
                 double{to_float(x_[static_cast<size_t>(k)])};
      return total;
    };
    for (int i = 0; i < shape_.ffn; ++i) out.push_back(clamped_swiglu(sum(i), sum(shape_.ffn + i)));
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
    return to_bfloat16s(random_floats(rng, count, 1));
  }
  static std::vector<int32_t> chosen_experts(Rng& rng, const CodedLayerShape& s) {
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

  const CodedLayerShape shape_;
  int rows_ = 0;
  const std::vector<BFloat16> x_;
  const MATRICES gate_up_, down_;
  const std::vector<BFloat16> gate_up_bias_, down_bias_;
  const std::vector<int32_t> host_chosen_;
  const DeviceArray<int32_t> chosen_, slots_, pairs_, begins_, tiles_;
  const cuda::ExpertPlan plan_;
};

// A layer's two GEMMs against float32, again, and as parts of other batches. bound: of the relative
// error.
template <typename MATRICES>
void check_coded_layer(Rng& rng, const CodedLayerShape& s, double bound) {
  SCOPED_TRACE(
      fmt::format("{} rows, {} of {} experts, {} x {}", s.rows, s.top_k, s.experts, s.dim, s.ffn));
  CodedLayer<MATRICES> layer(rng, s);
  layer.arrange(s.rows);
  const auto inner = layer.inner(false);
  const double inner_error = relative_error(to_floats(inner), layer.float_inner());
  const auto outer = layer.outer(inner, false);
  const double outer_error = relative_error(to_floats(outer), layer.float_outer(inner));
  fmt::print("{} rows, {} of {} experts, {} x {}: errors {:.5f} and {:.5f}\n", s.rows, s.top_k,
             s.experts, s.dim, s.ffn, inner_error, outer_error);
  EXPECT_LT(inner_error, bound);
  EXPECT_LT(outer_error, bound);
  EXPECT_EQ(layer.by_pair(layer.inner(false), s.ffn), layer.by_pair(inner, s.ffn));
  // row_invariant: a row's bits are those that it has in a batch of fewer rows.
  const auto invariant = layer.inner(true);
  EXPECT_LT(relative_error(to_floats(invariant), layer.float_inner()), bound);
  const auto all = layer.by_pair(invariant, s.ffn);
  const auto all_outer = layer.by_pair(layer.outer(invariant, true), s.dim);
  layer.arrange((s.rows + 1) / 2);
  const auto half = layer.inner(true);
  const auto some = layer.by_pair(half, s.ffn);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  const auto some_outer = layer.by_pair(layer.outer(half, true), s.dim);
  EXPECT_TRUE(std::equal(some_outer.begin(), some_outer.end(), all_outer.begin()));
}

// The first row's first pair against slow loops on the CPU.
template <typename MATRICES>
void check_one_row(Rng& rng, const CodedLayerShape& shape, double bound) {
  CodedLayer<MATRICES> layer(rng, shape);
  layer.arrange(1);
  const std::vector<double> expected = layer.slow_inner();
  const std::vector<float> got = to_floats(layer.inner(false));
  const auto first = static_cast<size_t>(layer.slot_of_first_pair() * shape.ffn);
  double most = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    most = std::max(most, std::abs(got[first + i] - expected[i]) / (1 + std::abs(expected[i])));
  fmt::print("largest error {:.5f}\n", most);
  EXPECT_LT(most, bound);
}

}  // namespace espalier::kernels::test
