// For the tests of experts in codes of 4 bits: a layer of random experts, its GEMMs with codes, and
// the same in float32 with the numbers that the codes stand for. Not thread-safe.
#pragma once

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

  // Of the experts [first, first + count); none: of all.
  void arrange(int rows, int first = 0, int count = 0) {
    rows_ = rows, first_ = first, count_ = count > 0 ? count : shape_.experts;
    EXPECT_TRUE(cuda::arrange({.experts = chosen_.get(),
                               .num_pairs = rows * shape_.top_k,
                               .num_experts = shape_.experts,
                               .first_local = first_,
                               .num_local = count_,
                               .plan = plan_},
                              {})
                    .ok());
  }
  size_t num_pairs() const { return static_cast<size_t>(rows_ * shape_.top_k); }

  std::vector<BFloat16> inner(bool row_invariant) const {
    const DeviceArray<BFloat16> x(x_), bias(gate_up_bias_);
    const DeviceArray<BFloat16> y(num_pairs() * static_cast<size_t>(shape_.ffn));
    cuda::GroupedArgs args = up_args(x.get(), nullptr, y.get());
    use(gate_up_, bias.get(), args);
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
    use(down_, bias.get(), args);
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
  // Rows in the order of slots become rows in the order of pairs, of those that are here.
  std::vector<uint16_t> by_pair(const std::vector<BFloat16>& of_slots, int columns) const {
    const std::vector<int32_t> slots = slots_.read();
    std::vector<uint16_t> out;
    for (size_t pair = 0; pair < num_pairs(); ++pair)
      for (int i = 0; i < columns && slots[pair] != cuda::kNoSlot; ++i)
        out.push_back(of_slots[static_cast<size_t>(slots[pair] * columns + i)].bits);
    return out;
  }
  // The rows of `all`, those of all pairs, whose experts are here.
  std::vector<uint16_t> here(const std::vector<uint16_t>& all, int columns) const {
    std::vector<uint16_t> out;
    for (size_t pair = 0; pair < num_pairs(); ++pair) {
      if (host_chosen_[pair] < first_ || host_chosen_[pair] >= first_ + count_) continue;
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(pair) * columns;
      out.insert(out.end(), from, from + columns);
    }
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
  // The matrices and biases of the experts that are here.
  void use(const MATRICES& matrices, const BFloat16* bias, cuda::GroupedArgs& args) const {
    matrices.use(args);
    args.weights = static_cast<const uint8_t*>(args.weights) + first_ * args.weights_stride;
    if (shape_.bias) args.bias = bias + int64_t{first_} * args.out_features;
  }
  cuda::GroupedArgs up_args(const void* x, const void* weights, void* y) const {
    return {.num_groups = count_,
            .num_experts = shape_.experts,
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
    return {.num_groups = count_,
            .num_experts = shape_.experts,
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
  int rows_ = 0, first_ = 0, count_ = 0;
  const std::vector<BFloat16> x_;
  const MATRICES gate_up_, down_;
  const std::vector<BFloat16> gate_up_bias_, down_bias_;
  const std::vector<int32_t> host_chosen_;
  const DeviceArray<int32_t> chosen_, slots_, pairs_, begins_, tiles_;
  const cuda::ExpertPlan plan_;
};

}  // namespace espalier::kernels::test
