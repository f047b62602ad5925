// GEMMs of e4m3 and the rounding of rows against slow references.
#include <array>
#include <cmath>

#include "kernels/cuda/test_device.h"
#include "kernels/linear/cuda.h"
#include "kernels/linear/gemm_small_batch.h"
#include "kernels/linear/quantize_rows.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

float decode(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::nanf("");
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
  return bits & 0x80 ? -magnitude : magnitude;
}

// The nearest of all finite numbers, of two the one with the even mantissa.
uint8_t encode(float value) {
  static const std::vector<float> numbers = [] {
    std::vector<float> all;
    for (int bits = 0; bits < 0x7f; ++bits) all.push_back(decode(static_cast<uint8_t>(bits)));
    return all;
  }();
  const float magnitude = std::abs(value);
  auto code = static_cast<size_t>(std::ranges::lower_bound(numbers, magnitude) - numbers.begin());
  if (code == numbers.size()) --code;
  if (code > 0) {
    const float above = numbers[code] - magnitude, below = magnitude - numbers[code - 1];
    if (below < above || (below == above && code % 2 == 1)) --code;
  }
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

struct Rounded {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<float> values;  // of the codes, without scales

  const float* row(int64_t index, int64_t dim) const { return values.data() + index * dim; }
};

Rounded round_rows(const std::vector<float>& x, int rows, int dim, int stride) {
  Rounded out;
  for (int row = 0; row < rows; ++row) {
    const float* from = x.data() + int64_t{row} * stride;
    float largest = 0;
    for (int i = 0; i < dim; ++i) largest = std::max(largest, std::abs(from[i]));
    out.scales.push_back(largest == 0 ? 1.0f : largest / 448.0f);
    for (int i = 0; i < dim; ++i) {
      out.codes.push_back(encode(from[i] / out.scales.back()));
      out.values.push_back(decode(out.codes.back()));
    }
  }
  return out;
}

class CudaE4m3 : public test::OnDevice {
 protected:
  struct Case {
    int rows, in, out;
    bool bias = false, silu = false, residual = false, float_out = false, tune = false;
  };

  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (cuda::device_traits()->compute_capability < 90)
      GTEST_SKIP() << "SKIPPED: GEMMs of e4m3 need code for Hopper";
    auto created = cuda::Linear::create({});
    ASSERT_TRUE(created) << created.error().message();
    linear_ = std::move(*created);
  }

  // What the GEMM should give, and how far from it each element may be.
  struct Wanted {
    std::vector<double> y, bounds;
  };

  static Wanted wanted(const Case& c, const Rounded& x, const Rounded& w,
                       const std::vector<BFloat16>& bias, const std::vector<BFloat16>& residual,
                       int y_stride) {
    Wanted out;
    const auto inner = [&](int row, int output) {
      const float *a = x.row(row, c.in), *b = w.row(output, c.in);
      double sum = 0, magnitudes = 0;
      for (int i = 0; i < c.in; ++i) {
        const double term = double{a[i]} * b[i];
        sum += term;
        magnitudes += std::abs(term);
      }
      const double scale =
          double{x.scales[static_cast<size_t>(row)]} * w.scales[static_cast<size_t>(output)];
      sum *= scale;
      magnitudes *= scale;
      if (c.bias) sum += to_float(bias[static_cast<size_t>(output)]);
      return std::pair(sum, magnitudes * 0x1p-11);  // the sums keep about 14 bits
    };
    for (int row = 0; row < c.rows; ++row) {
      for (int i = 0; i < c.out; ++i) {
        auto [value, bound] = inner(row, i);
        if (c.silu) {
          const auto [up, up_bound] = inner(row, c.out + i);
          const double sigmoid = 1 / (1 + std::exp(-value));
          bound = (bound + std::abs(value) / 128) * 1.1 * std::abs(up) +
                  (up_bound + std::abs(up) / 128) * std::abs(value * sigmoid);
          value = value * sigmoid * up;
        }
        if (c.residual) value += to_float(residual[static_cast<size_t>(row * y_stride + i)]);
        out.y.push_back(value);
        out.bounds.push_back(bound + std::abs(value) / 128 + 1e-4);
      }
    }
    return out;
  }

  // Random rows and weights, as chosen and in each of `configs`.
  void check(const Case& c, bool pdl, const std::vector<cuda::SmallBatchConfig>& configs = {}) {
    SCOPED_TRACE(fmt::format("{} rows, {} -> {}, bias {}, silu {}, residual {}, float {}", c.rows,
                             c.in, c.out, c.bias, c.silu, c.residual, c.float_out));
    const int outs = c.silu ? 2 * c.out : c.out, x_stride = c.in + 16, y_stride = c.out + 8;
    const auto x = test::to_bfloat16s(test::random_floats(rng_, int64_t{c.rows} * x_stride));
    const auto w = test::random_floats(rng_, int64_t{outs} * c.in, 1 / std::sqrt(c.in));
    const auto bias = test::to_bfloat16s(test::random_floats(rng_, outs));
    const auto residual = test::to_bfloat16s(test::random_floats(rng_, int64_t{c.rows} * y_stride));
    const Rounded xs = round_rows(test::to_floats(x), c.rows, c.in, x_stride);
    const Rounded ws = round_rows(w, outs, c.in, c.in);
    const Wanted want = wanted(c, xs, ws, bias, residual, y_stride);
    const DeviceArray<BFloat16> dx(x), dbias(bias), dresidual(residual);
    const DeviceArray<uint8_t> dw(ws.codes), dx8(xs.codes);
    const DeviceArray<float> dscales(ws.scales), dx_scales(xs.scales);
    DeviceArray<float> dy(static_cast<size_t>(c.rows * y_stride));
    cuda::LinearArgs args{.out_type = c.float_out ? DType::kFloat32 : DType::kBFloat16,
                          .rows = c.rows,
                          .in_features = c.in,
                          .out_features = c.out,
                          .x = dx.get(),
                          .x_stride = x_stride,
                          .weights = dw.get(),
                          .weight_scales = dscales.get(),
                          .y = dy.get(),
                          .y_stride = y_stride,
                          .bias = c.bias ? dbias.get() : nullptr,
                          .silu_mul = c.silu,
                          .residual = c.residual ? dresidual.get() : nullptr};
    const auto compare = [&](const std::string& how) {
      const std::vector<float> raw = dy.read();
      int64_t wrong = 0;
      std::string first;
      for (int row = 0; row < c.rows; ++row) {
        for (int i = 0; i < c.out; ++i) {
          const auto at = static_cast<size_t>(row * y_stride + i);
          const auto index = static_cast<size_t>(row * c.out + i);
          const double got =
              c.float_out ? raw[at] : to_float(reinterpret_cast<const BFloat16*>(raw.data())[at]);
          if (std::abs(got - want.y[index]) <= want.bounds[index]) continue;  // false for NaN
          if (wrong++ == 0) {
            first = fmt::format("row {}, output {}: {}, want {} within {}", row, i, got,
                                want.y[index], want.bounds[index]);
          }
        }
      }
      EXPECT_EQ(wrong, 0) << how << ": " << first;
    };
    const size_t bytes = linear_->workspace_bytes({&args, 1}, c.rows);
    const DeviceArray<uint8_t> workspace(bytes);
    if (c.tune) {
      const Status tuned = linear_->tune({&args, 1}, workspace.get(), bytes, nullptr);
      ASSERT_TRUE(tuned.ok()) << tuned.message();
    }
    cudaMemset(dy.get(), 0xff, dy.size() * 4);
    const Status status = linear_->run(args, workspace.get(), bytes, {.pdl = pdl});
    ASSERT_TRUE(status.ok()) << status.message();
    compare("as chosen");
    args.x = dx8.get();
    args.x_stride = c.in;
    args.x_scales = dx_scales.get();
    for (const cuda::SmallBatchConfig& config : configs) {
      if (!cuda::gemm_small_batch_supports(args, config, *cuda::device_traits())) continue;
      cudaMemset(dy.get(), 0xff, dy.size() * 4);
      const Status ran = cuda::gemm_small_batch(args, config, *cuda::device_traits(), {.pdl = pdl});
      ASSERT_TRUE(ran.ok()) << ran.message();
      compare(fmt::format("groups {}, splits {}, half {}", config.groups, config.splits,
                          config.half_shared));
    }
  }

  std::unique_ptr<cuda::Linear> linear_;
};

TEST_F(CudaE4m3, RowsAreRoundedToTheNearest) {
  for (const int dim : {16, 4096, 5120, 14336, 28672}) {
    const int rows = 5, stride = dim + 8;
    auto values = test::random_floats(rng_, int64_t{rows} * stride);
    std::fill_n(values.begin() + stride, dim, 0.0f);
    values[static_cast<size_t>(2 * stride + 3)] = 1e6f;  // an outlier leaves the others few bits
    const auto x = test::to_bfloat16s(values);
    const Rounded want = round_rows(test::to_floats(x), rows, dim, stride);
    const DeviceArray<BFloat16> dx(x);
    DeviceArray<uint8_t> y(static_cast<size_t>(rows * dim));
    DeviceArray<float> scales(rows);
    const Status status = cuda::quantize_rows({.x = dx.get(),
                                               .x_stride = stride,
                                               .y = y.get(),
                                               .scales = scales.get(),
                                               .rows = rows,
                                               .dim = dim},
                                              {});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(scales.read(), want.scales) << dim;
    EXPECT_EQ(y.read(), want.codes) << dim;
  }
}

TEST_F(CudaE4m3, SmallBatchesAgreeWithTheReferenceInAllConfigs) {
  std::vector<cuda::SmallBatchConfig> configs;
  for (const bool half : {true, false})
    for (const int groups : {1, 2, 3, 4, 5, 8, 14, 16})
      for (const int splits : {1, 2})
        configs.push_back({.groups = groups, .splits = splits, .half_shared = half});
  int round = 0;
  for (const int rows : {1, 3, 16, 17, 33, 64, 65, 100, 128}) {
    const bool pdl = round++ % 2 == 1;
    check({.rows = rows, .in = 1104, .out = 400}, pdl, configs);
    check({.rows = rows, .in = 512, .out = 784, .residual = true}, !pdl, configs);
    check({.rows = rows, .in = 976, .out = 272, .bias = true, .silu = true}, pdl, configs);
    check({.rows = rows, .in = 2048, .out = 128, .float_out = true}, !pdl, configs);
  }
}

TEST_F(CudaE4m3, ManyRowsAgreeWithTheReference) {
  for (const int rows : {129, 300}) {
    for (const bool tune : {false, true}) {
      check({.rows = rows, .in = 512, .out = 384, .tune = tune}, false);
      check({.rows = rows, .in = 512, .out = 384, .bias = true, .tune = tune}, true);
      check({.rows = rows, .in = 512, .out = 384, .silu = true, .tune = tune}, false);
      check({.rows = rows, .in = 512, .out = 384, .residual = true, .tune = tune}, false);
      check({.rows = rows, .in = 512, .out = 384, .bias = true, .residual = true, .tune = tune},
            true);
    }
  }
  check({.rows = 8, .in = 512, .out = 384, .tune = true}, false);
}

// A number that is not finite is not lost in the rounding.
TEST_F(CudaE4m3, WhatIsNotFiniteStaysSo) {
  const int in = 512, out = 64;
  for (const float odd : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    auto values = test::random_floats(rng_, 2 * in);
    values[7] = odd;
    const DeviceArray<BFloat16> x(test::to_bfloat16s(values));
    const Rounded ws = round_rows(test::random_floats(rng_, int64_t{out} * in), out, in, in);
    const DeviceArray<uint8_t> w(ws.codes);
    const DeviceArray<float> scales(ws.scales);
    DeviceArray<BFloat16> y(2 * out);
    const cuda::LinearArgs args{.rows = 2,
                                .in_features = in,
                                .out_features = out,
                                .x = x.get(),
                                .x_stride = in,
                                .weights = w.get(),
                                .weight_scales = scales.get(),
                                .y = y.get(),
                                .y_stride = out};
    const size_t bytes = linear_->workspace_bytes({&args, 1}, 2);
    const DeviceArray<uint8_t> workspace(bytes);
    ASSERT_TRUE(linear_->run(args, workspace.get(), bytes, {}).ok());
    const auto got = test::to_floats(y.read());
    EXPECT_FALSE(std::isfinite(got[0]));
    EXPECT_TRUE(std::isfinite(got[static_cast<size_t>(out)])) << "the other row";
  }
}

}  // namespace
}  // namespace espalier::kernels
