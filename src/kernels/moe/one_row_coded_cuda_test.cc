// A layer of experts in 4-bit codes for one row (small_batch_moe()), against loops in double with
// the numbers that the codes stand for.
#include <cmath>
#include <type_traits>

#include "kernels/moe/cuda_small_batch.h"
#include "kernels/moe/int4_test_experts.h"
#include "kernels/moe/mxfp4_test_experts.h"
#include "kernels/moe/test_values.h"
#include "kernels/router/op.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;
using test::Int4Experts;
using test::Int4SmallExperts;
using test::Mxfp4Experts;
using test::Values;

struct OneRowCase {
  int dim, ffn, experts, top_k;
  Activation activation = Activation::kSilu;
  bool norm = true, residual = true;
  int first_local = 0, num_local = 0;  // 0: all
  bool bias = false;
};

// MATRICES: Int4Experts, Int4SmallExperts or Mxfp4Experts.
template <typename MATRICES>
class OneRow {
 public:
  OneRow(Rng& rng, const OneRowCase& of)
      : of_(of),
        x_(Values::random(rng, DType::kBFloat16, of.dim)),
        norm_(Values::random(rng, DType::kBFloat16, of.dim)),
        residual_(Values::random(rng, DType::kBFloat16, of.dim)),
        gate_up_(rng, of.experts, 2 * of.ffn, of.dim, true),
        down_(rng, of.experts, of.dim, of.ffn, false),
        gate_up_bias_(Values::random(rng, DType::kBFloat16, int64_t{of.experts} * 2 * of.ffn)),
        down_bias_(Values::random(rng, DType::kBFloat16, int64_t{of.experts} * of.dim)),
        router_(test::random_floats(rng, int64_t{of.experts} * of.dim, 2 / std::sqrt(of.dim))) {}

  cuda::SmallBatchMoeArgs args() const {
    constexpr bool kInt4 = !std::is_same_v<MATRICES, Mxfp4Experts>;
    constexpr bool kSmall = std::is_same_v<MATRICES, Int4SmallExperts>;
    return {.rows = 1,
            .dim = of_.dim,
            .x = x_.device.get(),
            .norm_weight = of_.norm ? norm_.device.get() : nullptr,
            .router = spec(),
            .first_local = of_.first_local,
            .num_local = of_.num_local,
            .router_weights = d_router_.get(),
            .ffn = of_.ffn,
            .activation = of_.activation,
            .limit = kLimit,
            .gate_up = gate_up_.records.get() + of_.first_local * gate_up_.shape.size_bytes(),
            .gate_up_bias = bias_of(gate_up_bias_, 2 * of_.ffn),
            .down = down_.records.get() + of_.first_local * down_.shape.size_bytes(),
            .down_bias = bias_of(down_bias_, of_.dim),
            .int4 = kInt4,
            .mxfp4 = !kInt4,
            .int4_group = kSmall ? 32 : 128,
            .gate_up_stride = gate_up_.shape.size_bytes(),
            .down_stride = down_.shape.size_bytes(),
            .residual = of_.residual ? residual_.device.get() : nullptr,
            .y = y_.get(),
            .scale = kScale,
            .normed = normed_.get(),
            .scores = scores_.get(),
            .inner = inner_.get()};
  }

  // What the layer gives for the scores that the device has.
  std::vector<float> expected() const {
    const std::vector<float> scores = scores_.read();
    std::vector<int32_t> chosen(static_cast<size_t>(of_.top_k));
    std::vector<float> weights(chosen.size());
    route(
        spec(),
        {.logits = scores.data(), .rows = 1, .experts = chosen.data(), .weights = weights.data()});
    const std::vector<float> x = of_.norm ? test::read(normed_, DType::kBFloat16) : x_.host;
    std::vector<double> sums(static_cast<size_t>(of_.dim));
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (!is_here(chosen[i])) continue;
      const std::vector<float> inner = inner_of(x, chosen[i]);
      for (int row = 0; row < of_.dim; ++row)
        sums[static_cast<size_t>(row)] +=
            weights[i] * (dot(down_.values, int64_t{chosen[i]} * of_.dim + row, inner) +
                          bias_at(down_bias_, int64_t{chosen[i]} * of_.dim + row));
    }
    std::vector<float> out;
    for (size_t i = 0; i < sums.size(); ++i)
      out.push_back(static_cast<float>((of_.residual ? residual_.host[i] : 0) + kScale * sums[i]));
    return out;
  }
  std::vector<float> normed() const { return test::read(normed_, DType::kBFloat16); }
  std::vector<float> expected_normed() const {
    double squares = 0;
    for (const float value : x_.host) squares += double{value} * value;
    const double scale = 1 / std::sqrt(squares / of_.dim + 1e-6);
    std::vector<float> out;
    for (size_t i = 0; i < x_.host.size(); ++i)
      out.push_back(static_cast<float>(x_.host[i] * scale * norm_.host[i]));
    return out;
  }
  std::vector<float> result() const { return test::read(y_, DType::kBFloat16); }

 private:
  static constexpr float kScale = 0.75f, kLimit = 2;

  RouterSpec spec() const {
    return {.num_experts = of_.experts, .top_k = of_.top_k, .normalise = true};
  }
  bool is_here(int expert) const {
    return of_.num_local == 0 ||
           (expert >= of_.first_local && expert < of_.first_local + of_.num_local);
  }
  // Of the experts that are here.
  const void* bias_of(const Values& biases, int rows) const {
    if (!of_.bias) return nullptr;
    return biases.device.get() + int64_t{of_.first_local} * rows * 2;
  }
  double bias_at(const Values& biases, int64_t row) const {
    return of_.bias ? biases.host[static_cast<size_t>(row)] : 0;
  }
  static double dot(const std::vector<float>& matrix, int64_t row, const std::vector<float>& x) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i)
      sum += double{matrix[static_cast<size_t>(row) * x.size() + i]} * x[i];
    return sum;
  }
  std::vector<float> inner_of(const std::vector<float>& x, int expert) const {
    std::vector<float> out;
    for (int i = 0; i < of_.ffn; ++i) {
      const int64_t row = int64_t{expert} * 2 * of_.ffn + i;
      double gate = dot(gate_up_.values, row, x) + bias_at(gate_up_bias_, row);
      double up = dot(gate_up_.values, row + of_.ffn, x) + bias_at(gate_up_bias_, row + of_.ffn);
      if (of_.activation == Activation::kClampedSwiglu) {
        gate = std::min<double>(gate, kLimit), up = std::clamp<double>(up, -kLimit, kLimit);
        out.push_back(static_cast<float>(gate / (1 + std::exp(-1.702 * gate)) * (up + 1)));
      } else {
        out.push_back(static_cast<float>(gate / (1 + std::exp(-gate)) * up));
      }
    }
    return test::to_floats(test::to_bfloat16s(out));
  }

  const OneRowCase of_;
  const Values x_, norm_, residual_;
  const MATRICES gate_up_, down_;
  const Values gate_up_bias_, down_bias_;
  const std::vector<float> router_;
  const DeviceArray<float> d_router_{router_}, scores_{static_cast<size_t>(of_.experts)};
  const size_t dim_ = static_cast<size_t>(of_.dim);
  const DeviceArray<uint8_t> y_{dim_ * 2}, normed_{dim_ * 2};
  const DeviceArray<uint8_t> inner_{static_cast<size_t>(of_.top_k * of_.ffn) * 2};
};

class CudaOneRowCoded : public test::OnDevice {
 protected:
  void SetUp() override {
    test::OnDevice::SetUp();
    if (IsSkipped()) return;
    const auto traits = cuda::device_traits();
    ASSERT_TRUE(traits);
    if (traits->compute_capability != 90)
      GTEST_SKIP() << "SKIPPED: experts in 4 bits need code for Hopper";
  }
  // As one operation, then twenty behind each other with PDL, which give the same bits.
  template <typename MATRICES>
  void check(const OneRowCase& of) {
    SCOPED_TRACE(fmt::format("{} of {} experts, {} x {}", of.top_k, of.experts, of.dim, of.ffn));
    const OneRow<MATRICES> layer(rng_, of);
    const auto takes = cuda::small_batch_moe_supports(layer.args());
    ASSERT_TRUE(takes && *takes);
    ASSERT_TRUE(cuda::small_batch_moe(layer.args(), {}).ok());
    const std::vector<float> once = layer.result();
    if (of.norm) {
      EXPECT_LT(test::relative_error(layer.normed(), layer.expected_normed()), 0.003);
    }
    EXPECT_LT(test::relative_error(once, layer.expected()), 0.004);
    for (int i = 0; i < 20; ++i)
      ASSERT_TRUE(cuda::small_batch_moe(layer.args(), {.pdl = true}).ok());
    EXPECT_EQ(layer.result(), once);
  }
  // inputs: of a record, whose multiples sizes are.
  template <typename MATRICES>
  void check_odd_sizes(int inputs) {
    for (int round = 0; round < 24; ++round) {
      const auto pick = [&](int low, int high) {
        return static_cast<int>(rng_.between(low, high));
      };
      const int experts = pick(1, 24);
      check<MATRICES>(
          {.dim = inputs * pick(1, 12),
           .ffn = inputs * pick(1, 8),
           .experts = experts,
           .top_k = pick(1, std::min(experts, 12)),
           .activation = round % 2 == 0 ? Activation::kSilu : Activation::kClampedSwiglu,
           .norm = round % 3 != 0,
           .residual = round % 4 != 0,
           .bias = round % 5 < 2});
    }
  }
};

TEST_F(CudaOneRowCoded, TheShapeOfQwen3) {
  check<Int4Experts>({.dim = 2048, .ffn = 768, .experts = 16, .top_k = 8});
}

TEST_F(CudaOneRowCoded, TheShapeOfGptOss) {
  check<Mxfp4Experts>({.dim = 2880,
                       .ffn = 2880,
                       .experts = 6,
                       .top_k = 4,
                       .activation = Activation::kClampedSwiglu,
                       .bias = true});
}

TEST_F(CudaOneRowCoded, OddSizesOfInt4) { check_odd_sizes<Int4Experts>(128); }
TEST_F(CudaOneRowCoded, OddSizesOfSmallGroups) { check_odd_sizes<Int4SmallExperts>(64); }
TEST_F(CudaOneRowCoded, OddSizesOfMxfp4) { check_odd_sizes<Mxfp4Experts>(64); }

// More tasks than all blocks have warps, and experts of other ranks.
TEST_F(CudaOneRowCoded, ManyTasksAndRangesOfExperts) {
  check<Int4Experts>({.dim = 256, .ffn = 2048, .experts = 10, .top_k = 10});
  check<Int4Experts>({.dim = 4096, .ffn = 256, .experts = 6, .top_k = 4});
  check<Mxfp4Experts>({.dim = 320, .ffn = 2240, .experts = 12, .top_k = 12, .bias = true});
  check<Mxfp4Experts>({.dim = 5120, .ffn = 192, .experts = 6, .top_k = 4});
  for (const int first : {0, 3}) {
    const OneRowCase of{.dim = 384,
                        .ffn = 256,
                        .experts = 9,
                        .top_k = 5,
                        .first_local = first,
                        .num_local = 4,
                        .bias = true};
    check<Int4Experts>(of);
    check<Mxfp4Experts>(of);
  }
  check<Int4Experts>(
      {.dim = 384, .ffn = 256, .experts = 9, .top_k = 1, .first_local = 8, .num_local = 1});
}

TEST_F(CudaOneRowCoded, TakesOneRowOfWholeRecords) {
  const OneRow<Int4Experts> layer(rng_, {.dim = 256, .ffn = 128, .experts = 4, .top_k = 2});
  const auto takes = [&](auto change) {
    cuda::SmallBatchMoeArgs args = layer.args();
    change(args);
    const auto result = cuda::small_batch_moe_supports(args);
    EXPECT_TRUE(result);
    return result && *result;
  };
  using Args = cuda::SmallBatchMoeArgs;
  EXPECT_TRUE(takes([](Args&) {}));
  EXPECT_FALSE(takes([](Args& a) { a.rows = 2; }));
  EXPECT_FALSE(takes([](Args& a) { a.ffn = 192; }));
  EXPECT_FALSE(takes([](Args& a) { a.dim = 192; }));
  EXPECT_FALSE(takes([](Args& a) { a.mxfp4 = true; }));
  EXPECT_FALSE(takes([](Args& a) { a.gate_up_stride += 8; }));
  const auto takes_mxfp4 = [&](int dim) {
    const OneRow<Mxfp4Experts> of(rng_, {.dim = dim, .ffn = 192, .experts = 4, .top_k = 2});
    const auto result = cuda::small_batch_moe_supports(of.args());
    return result && *result;
  };
  EXPECT_TRUE(takes_mxfp4(192));
  EXPECT_FALSE(takes_mxfp4(160));
}

}  // namespace
}  // namespace espalier::kernels
