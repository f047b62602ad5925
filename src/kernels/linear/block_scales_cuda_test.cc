// GEMMs of e4m3 with scales of blocks, dense and of experts, and the rounding of groups of a row,
// against slow references.
#include <cmath>
#include <tuple>
#include <utility>

#include "kernels/cuda/test_device.h"
#include "kernels/linear/cuda.h"
#include "kernels/linear/gemm_small_batch.h"
#include "kernels/linear/quantize_rows.h"
#include "kernels/moe/cuda.h"

namespace espalier::kernels {
namespace {

using cuda::kScaleBlock;
using test::DeviceArray;

float decode(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
  return bits & 0x80 ? -magnitude : magnitude;
}

// Codes with scales that differ widely between neighbours, so that a wrong one shows, and the
// numbers that they stand for.
struct Coded {
  std::vector<uint8_t> codes;
  std::vector<float> scales, values;
};

float random_scale(Rng& rng) { return std::ldexp(1.0f, static_cast<int>(rng.between(-6, 0))); }

// count matrices [out, in], each with scales as cuBLASLt reads them.
Coded random_weights(Rng& rng, int count, int out, int in) {
  const auto stride = cuda::block_scale_stride(in), rows = cuda::scale_blocks(out);
  Coded w;
  for (int64_t i = 0; i < count * rows * stride; ++i) w.scales.push_back(random_scale(rng));
  for (int64_t i = 0; i < int64_t{count} * out * in; ++i) {
    w.codes.push_back(static_cast<uint8_t>(rng.between(0, 1) * 0x80 + rng.between(0, 0x3f)));
    const int64_t row = i / in, column = i % in;
    const int64_t of_row = row / out * rows + row % out / kScaleBlock;
    w.values.push_back(decode(w.codes.back()) *
                       w.scales[static_cast<size_t>(of_row * stride + column / kScaleBlock)]);
  }
  return w;
}

// Rows [rows, in] whose groups have scales `stride` apart.
Coded random_rows(Rng& rng, int rows, int in, int64_t stride) {
  Coded x;
  x.scales.resize(static_cast<size_t>(cuda::scale_blocks(in) * stride));
  for (float& scale : x.scales) scale = random_scale(rng);
  for (int64_t i = 0; i < int64_t{rows} * in; ++i) {
    x.codes.push_back(static_cast<uint8_t>(rng.between(0, 1) * 0x80 + rng.between(0, 0x3f)));
    const auto at = static_cast<size_t>(i % in / kScaleBlock * stride + i / in);
    x.values.push_back(decode(x.codes.back()) * x.scales[at]);
  }
  return x;
}

struct Sum {
  double value = 0, magnitudes = 0;
};
Sum inner(const float* a, const float* b, int count) {
  Sum out;
  for (int i = 0; i < count; ++i) {
    const double term = double{a[i]} * b[i];
    out.value += term;
    out.magnitudes += std::abs(term);
  }
  return out;
}

// Sums keep about 14 bits on the tensor cores, results 8.
double bound(const Sum& sum) { return sum.magnitudes * 0x1p-12 + std::abs(sum.value) / 200 + 1e-4; }
double silu(double x) { return x / (1 + std::exp(-x)); }
// silu(gate) * up, and how far from it a result may be.
std::pair<double, double> gated(const Sum& gate, const Sum& up) {
  const double want = silu(gate.value) * up.value;
  return {want, bound(gate) * 1.1 * std::abs(up.value) +
                    bound(up) * (std::abs(silu(gate.value)) + bound(gate)) + 1e-3 +
                    std::abs(want) / 100};
}

// Counts and describes what is too far from what it should be.
class Compared {
 public:
  void add(int row, int output, double got, double want, double within) {
    worst_ = std::max(worst_, std::abs(got - want) / within);
    if (std::abs(got - want) <= within) return;  // false for NaN
    if (wrong_++ == 0)
      first_ =
          fmt::format("row {}, output {}: {}, want {} within {}", row, output, got, want, within);
  }
  void expect_none(const std::string& how) const {
    EXPECT_EQ(wrong_, 0) << how << ": " << first_;
    fmt::print("{}: {} wrong, worst {:.3f} of the bound\n", how, wrong_, worst_);
  }

 private:
  int64_t wrong_ = 0;
  double worst_ = 0;
  std::string first_;
};

class CudaBlockScales : public test::OnDevice {
 protected:
  struct Case {
    int rows, in, out;
    bool bias = false, silu = false, residual = false, float_out = false, tune = false;
    bool invariant = false;
  };

  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (cuda::device_traits()->compute_capability < 90)
      GTEST_SKIP() << "SKIPPED: GEMMs of e4m3 need code for Hopper";
  }

  static std::unique_ptr<cuda::Linear> linear(bool invariant) {
    auto created = cuda::Linear::create({});
    EXPECT_TRUE(created) << created.error().message();
    if (invariant) (*created)->set_row_invariant();
    return std::move(*created);
  }

  // Rows that are rounded on their way, in the GEMM that is chosen.
  void check(const Case& c, const std::vector<cuda::SmallBatchConfig>& configs = {}) {
    const std::string name = fmt::format(
        "{} rows, {} -> {}{}{}{}{}{}{}", c.rows, c.in, c.out, c.bias ? ", bias" : "",
        c.silu ? ", silu" : "", c.residual ? ", residual" : "", c.float_out ? ", float" : "",
        c.tune ? ", tuned" : "", c.invariant ? ", invariant" : "");
    SCOPED_TRACE(name);
    const int outs = c.silu ? 2 * c.out : c.out, y_stride = c.out + 8;
    const int64_t own_stride = cuda::group_scale_stride(c.rows);
    const Coded w = random_weights(rng_, 1, outs, c.in);
    const Coded xs = random_rows(rng_, c.rows, c.in, own_stride);
    const auto x = test::to_bfloat16s(test::random_floats(rng_, int64_t{c.rows} * c.in));
    const auto bias = test::to_bfloat16s(test::random_floats(rng_, outs));
    const auto residual = test::to_bfloat16s(test::random_floats(rng_, int64_t{c.rows} * y_stride));
    const DeviceArray<BFloat16> dx(x), dbias(bias), dresidual(residual);
    const DeviceArray<uint8_t> dw(w.codes), dxs(xs.codes);
    const DeviceArray<float> dscales(w.scales), dx_scales(xs.scales);
    DeviceArray<float> dy(static_cast<size_t>(c.rows * y_stride));
    cuda::LinearArgs args{.out_type = c.float_out ? DType::kFloat32 : DType::kBFloat16,
                          .rows = c.rows,
                          .in_features = c.in,
                          .out_features = c.out,
                          .x = dx.get(),
                          .x_stride = c.in,
                          .weights = dw.get(),
                          .weight_scales = dscales.get(),
                          .block_scales = true,
                          .y = dy.get(),
                          .y_stride = y_stride,
                          .bias = c.bias ? dbias.get() : nullptr,
                          .silu_mul = c.silu,
                          .residual = c.residual ? dresidual.get() : nullptr};
    // What each output should be, and how far from it it may be, of these rows.
    const auto wanted = [&](const std::vector<float>& rows) {
      std::vector<std::pair<double, double>> out;
      for (int row = 0; row < c.rows; ++row) {
        for (int i = 0; i < c.out; ++i) {
          const float* from = rows.data() + int64_t{row} * c.in;
          const auto sum_of = [&](int output) {
            Sum sum = inner(from, w.values.data() + int64_t{output} * c.in, c.in);
            if (c.bias) sum.value += to_float(bias[static_cast<size_t>(output)]);
            return sum;
          };
          const Sum sum = sum_of(i);
          auto [want, within] = std::pair(sum.value, bound(sum));
          if (c.silu) std::tie(want, within) = gated(sum, sum_of(c.out + i));
          if (c.residual) {
            want += to_float(residual[static_cast<size_t>(row * y_stride + i)]);
            within += std::abs(want) / 200;
          }
          out.emplace_back(want, within);
        }
      }
      return out;
    };
    const auto compare = [&](const std::vector<std::pair<double, double>>& want,
                             const std::string& how) {
      const std::vector<float> raw = dy.read();
      Compared compared;
      for (int row = 0; row < c.rows; ++row) {
        for (int i = 0; i < c.out; ++i) {
          const auto at = static_cast<size_t>(row * y_stride + i);
          const double got =
              c.float_out ? raw[at] : to_float(reinterpret_cast<const BFloat16*>(raw.data())[at]);
          const auto& [value, within] = want[static_cast<size_t>(row * c.out + i)];
          compared.add(row, i, got, value, within);
        }
      }
      compared.expect_none(name + how);
    };
    const auto gemm = linear(c.invariant);
    const size_t bytes = gemm->workspace_bytes({&args, 1}, c.rows);
    const DeviceArray<uint8_t> workspace(bytes);
    if (c.tune) {
      const Status tuned = gemm->tune({&args, 1}, workspace.get(), bytes, nullptr);
      ASSERT_TRUE(tuned.ok()) << tuned.message();
    }
    cudaMemset(dy.get(), 0xff, dy.size() * 4);
    const Status status = gemm->run(args, workspace.get(), bytes, {.pdl = c.rows % 2 == 1});
    ASSERT_TRUE(status.ok()) << status.message();
    compare(wanted(rounded_values(dx, c.rows, c.in)), "");
    if (configs.empty()) return;
    const auto want = wanted(xs.values);
    args.x = dxs.get();
    args.x_scales = dx_scales.get();
    args.x_scale_stride = own_stride;
    for (const cuda::SmallBatchConfig& config : configs) {
      if (!cuda::gemm_small_batch_supports(args, config, *cuda::device_traits())) continue;
      cudaMemset(dy.get(), 0xff, dy.size() * 4);
      const Status ran = cuda::gemm_small_batch(args, config, *cuda::device_traits(), {});
      ASSERT_TRUE(ran.ok()) << ran.message();
      compare(want, fmt::format(", groups {}, splits {}, half {}", config.groups, config.splits,
                                config.half_shared));
    }
  }

  // What quantize_rows() makes of the rows, as numbers; it has a test of its own.
  static std::vector<float> rounded_values(const DeviceArray<BFloat16>& x, int rows, int in) {
    DeviceArray<uint8_t> y(static_cast<size_t>(rows * in));
    DeviceArray<float> scales(static_cast<size_t>(cuda::scale_blocks(in) * rows));
    EXPECT_TRUE(cuda::quantize_rows({.x = x.get(),
                                     .x_stride = in,
                                     .y = y.get(),
                                     .scales = scales.get(),
                                     .group_stride = rows,
                                     .rows = rows,
                                     .dim = in},
                                    {})
                    .ok());
    const auto codes = y.read();
    const auto of = scales.read();
    std::vector<float> out;
    for (size_t i = 0; i < codes.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / in, column = static_cast<int64_t>(i) % in;
      out.push_back(decode(codes[i]) * of[static_cast<size_t>(column / kScaleBlock * rows + row)]);
    }
    return out;
  }
};

TEST_F(CudaBlockScales, GroupsOfARowAreRoundedToTheNearest) {
  for (const int dim : {16, 128, 2064, 4096, 14336}) {
    const int rows = 5;
    const int64_t stride = cuda::group_scale_stride(rows);
    auto values = test::random_floats(rng_, int64_t{rows} * dim);
    std::fill_n(values.begin(), std::min(dim, 128), 0.0f);
    values[static_cast<size_t>(dim) + 3] = 1e6f;  // takes no bits of the other groups
    const auto x = test::to_bfloat16s(values);
    const auto floats = test::to_floats(x);
    const DeviceArray<BFloat16> dx(x);
    DeviceArray<uint8_t> y(static_cast<size_t>(rows * dim));
    DeviceArray<float> scales(static_cast<size_t>(cuda::scale_blocks(dim) * stride));
    ASSERT_TRUE(cuda::quantize_rows({.x = dx.get(),
                                     .x_stride = dim,
                                     .y = y.get(),
                                     .scales = scales.get(),
                                     .group_stride = stride,
                                     .rows = rows,
                                     .dim = dim},
                                    {})
                    .ok());
    const auto got = scales.read();
    const auto codes = y.read();
    for (int row = 0; row < rows; ++row) {
      for (int64_t group = 0; group < cuda::scale_blocks(dim); ++group) {
        const auto first = static_cast<size_t>(int64_t{row} * dim + group * kScaleBlock);
        const auto count =
            static_cast<size_t>(std::min<int64_t>(kScaleBlock, dim - group * kScaleBlock));
        float largest = 0;
        for (size_t i = first; i < first + count; ++i)
          largest = std::max(largest, std::abs(floats[i]));
        const float scale = got[static_cast<size_t>(group * stride + row)];
        EXPECT_EQ(scale, largest == 0 ? 1.0f : largest / 448.0f)
            << dim << " " << row << " " << group;
        for (size_t i = first; i < first + count; ++i) {
          const float want = floats[i] / scale, error = std::abs(decode(codes[i]) - want);
          ASSERT_LE(error, std::max(std::abs(want) / 16, 0x1p-10f))
              << dim << " " << row << " " << i;
        }
      }
    }
  }
}

TEST_F(CudaBlockScales, SmallBatchesAgreeWithTheReferenceInAllConfigs) {
  std::vector<cuda::SmallBatchConfig> configs;
  for (const bool half : {true, false})
    for (const int groups : {1, 3, 4, 5, 8, 16})
      for (const int splits : {1, 2})
        configs.push_back({.groups = groups, .splits = splits, .half_shared = half});
  for (const int rows : {1, 3, 16, 17, 64, 65, 128}) {
    check({.rows = rows, .in = 1104, .out = 400}, configs);
    check({.rows = rows, .in = 512, .out = 656, .residual = true}, configs);
    check({.rows = rows, .in = 896, .out = 256, .bias = true, .silu = true}, configs);
    check({.rows = rows, .in = 2048, .out = 128, .float_out = true}, configs);
  }
}

TEST_F(CudaBlockScales, ManyRowsAgreeWithTheReference) {
  for (const int rows : {256, 300, 129, 131, 134}) {
    for (const bool tune : {false, true}) {
      check({.rows = rows, .in = 512, .out = 384, .tune = tune});
      check({.rows = rows, .in = 640, .out = 384, .silu = true, .tune = tune});
      check({.rows = rows, .in = 512, .out = 400, .residual = true, .tune = tune});
      check({.rows = rows, .in = 512, .out = 384, .bias = true, .tune = tune});
      check({.rows = rows, .in = 400, .out = 256, .tune = tune});
    }
  }
}

TEST_F(CudaBlockScales, RowInvariantGemmsAgreeWithTheReference) {
  for (const int rows : {1, 2, 7, 16, 100, 300})
    check({.rows = rows, .in = 512, .out = 384, .residual = rows % 2 == 0, .invariant = true});
}

// A row's bits are those that it has among any others.
TEST_F(CudaBlockScales, RowInvariantGemmsHaveTheSameBits) {
  const int rows = 300, in = 1152;
  for (const int out : {128, 1040}) {
    const Coded w = random_weights(rng_, 1, out, in);
    const DeviceArray<BFloat16> x(
        test::to_bfloat16s(test::random_floats(rng_, int64_t{rows} * in)));
    const DeviceArray<uint8_t> dw(w.codes);
    const DeviceArray<float> dscales(w.scales);
    DeviceArray<BFloat16> y(static_cast<size_t>(rows * out));
    const auto gemm = linear(true);
    std::vector<uint16_t> all;
    for (const int count : {rows, 150, 129, 128, 65, 31, 16, 3, 1}) {
      const cuda::LinearArgs args{.rows = count,
                                  .in_features = in,
                                  .out_features = out,
                                  .x = x.get(),
                                  .x_stride = in,
                                  .weights = dw.get(),
                                  .weight_scales = dscales.get(),
                                  .block_scales = true,
                                  .y = y.get(),
                                  .y_stride = out};
      const size_t bytes = gemm->workspace_bytes({&args, 1}, rows);
      const DeviceArray<uint8_t> workspace(bytes);
      cudaMemset(y.get(), 0xff, y.size() * 2);
      const Status status = gemm->run(args, workspace.get(), bytes, {});
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<uint16_t> got;
      for (const BFloat16 value : y.read()) got.push_back(value.bits);
      got.resize(static_cast<size_t>(count * out));
      if (all.empty()) all = got;
      EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin())) << count << " " << out;
    }
  }
}

// Experts of both kernels: gathered rows with an activation, and rows in the order of slots.
class CudaBlockExperts : public CudaBlockScales {
 protected:
  struct Shape {
    int rows, top_k, experts, in, out;  // out: gated of one half
    bool gated, invariant = false;
  };

  void check_experts(const Shape& s) {
    const std::string name =
        fmt::format("{} rows, {} of {} experts, {} -> {}{}{}", s.rows, s.top_k, s.experts, s.in,
                    s.out, s.gated ? ", gated" : "", s.invariant ? ", invariant" : "");
    SCOPED_TRACE(name);
    const int pairs = s.rows * s.top_k, outs = s.gated ? 2 * s.out : s.out;
    std::vector<int32_t> chosen;
    for (int row = 0; row < s.rows; ++row) {
      const auto first = static_cast<int>(rng_.between(0, s.experts - 1));
      for (int i = 0; i < s.top_k; ++i) chosen.push_back((first + i * i) % s.experts);
    }
    const auto count = static_cast<size_t>(pairs);
    const DeviceArray<int32_t> dchosen(chosen), slots(count), order(count);
    const DeviceArray<int32_t> begins(static_cast<size_t>(s.experts) + 1);
    const DeviceArray<int32_t> tiles(static_cast<size_t>(s.experts) + 1);
    const cuda::ExpertPlan plan{slots.get(), order.get(), begins.get(), tiles.get()};
    ASSERT_TRUE(
        cuda::arrange(
            {.experts = dchosen.get(), .num_pairs = pairs, .num_experts = s.experts, .plan = plan},
            {})
            .ok());
    const int x_rows = s.gated ? s.rows : pairs;
    const int64_t stride = cuda::group_scale_stride(x_rows);
    const Coded w = random_weights(rng_, s.experts, outs, s.in);
    const Coded x = random_rows(rng_, x_rows, s.in, stride);
    const DeviceArray<uint8_t> dw(w.codes), dx(x.codes);
    const DeviceArray<float> dscales(w.scales), dx_scales(x.scales);
    DeviceArray<BFloat16> y(count * static_cast<size_t>(s.out));
    cudaMemset(y.get(), 0xff, y.size() * 2);
    cuda::GroupedArgs args{.num_groups = s.experts,
                           .in_features = s.in,
                           .out_features = outs,
                           .x = dx.get(),
                           .x_stride = s.in,
                           .weights = dw.get(),
                           .weights_stride = int64_t{outs} * s.in,
                           .x_scales = dx_scales.get(),
                           .weight_scales = dscales.get(),
                           .block_scales = true,
                           .x_scale_stride = stride,
                           .y = y.get(),
                           .y_stride = s.out,
                           .row_invariant = s.invariant,
                           .plan = &plan,
                           .num_pairs = pairs,
                           .pairs_per_row = s.gated ? s.top_k : 0};
    if (s.gated) args.activation = Activation::kSilu;
    const Status status = cuda::grouped_linear(args, {.pdl = true});
    ASSERT_TRUE(status.ok()) << status.message();
    const auto got = test::to_floats(y.read());
    const auto at = slots.read();
    Compared compared;
    for (int pair = 0; pair < pairs; ++pair) {
      const int slot = at[static_cast<size_t>(pair)];
      const float* row = x.values.data() + int64_t{s.gated ? pair / s.top_k : slot} * s.in;
      const int64_t expert = chosen[static_cast<size_t>(pair)];
      for (int i = pair % 3; i < s.out; i += 3) {
        const auto sum_of = [&](int output) {
          return inner(row, w.values.data() + (expert * outs + output) * s.in, s.in);
        };
        const Sum sum = sum_of(i);
        const auto [want, within] =
            s.gated ? gated(sum, sum_of(s.out + i)) : std::pair(sum.value, bound(sum));
        compared.add(pair, i, got[static_cast<size_t>(slot * s.out + i)], want, within);
      }
    }
    compared.expect_none(name);
  }
};

TEST_F(CudaBlockExperts, AgreeWithTheReference) {
  for (const int rows : {1, 5, 33, 150, 700}) {
    check_experts({.rows = rows, .top_k = 3, .experts = 7, .in = 512, .out = 256, .gated = true});
    check_experts({.rows = rows, .top_k = 3, .experts = 7, .in = 384, .out = 512, .gated = false});
    check_experts({.rows = rows, .top_k = 2, .experts = 5, .in = 400, .out = 400, .gated = false});
    check_experts({.rows = rows, .top_k = 2, .experts = 3, .in = 656, .out = 128, .gated = true});
    check_experts({.rows = rows,
                   .top_k = 2,
                   .experts = 3,
                   .in = 256,
                   .out = 384,
                   .gated = rows % 2 == 1,
                   .invariant = true});
  }
}

TEST_F(CudaBlockExperts, GateAndUpThatShareABlockAreRefused) {
  const DeviceArray<uint8_t> codes(1 << 16);
  const DeviceArray<float> scales(1024);
  const cuda::ExpertPlan plan{};
  const cuda::GroupedArgs args{.num_groups = 1,
                               .in_features = 128,
                               .out_features = 128,
                               .x = codes.get(),
                               .x_stride = 128,
                               .weights = codes.get(),
                               .weights_stride = 128 * 128,
                               .x_scales = scales.get(),
                               .weight_scales = scales.get(),
                               .block_scales = true,
                               .x_scale_stride = 4,
                               .y = codes.get(),
                               .y_stride = 64,
                               .activation = Activation::kSilu,
                               .plan = &plan,
                               .num_pairs = 1,
                               .pairs_per_row = 1};
  EXPECT_EQ(cuda::grouped_linear(args, {}).code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace espalier::kernels
