// GEMMs on the GPU against the slow reference: our kernels and cuBLASLt's, with all epilogues.
#include "kernels/linear/cuda.h"

#include <filesystem>
#include <fstream>

#include "kernels/cuda/test_device.h"
#include "kernels/linear/gemm_small_batch.h"
#include "kernels/linear/op.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

class CudaLinear : public test::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto created = cuda::Linear::create({});
    ASSERT_TRUE(created) << created.error().message();
    linear_ = std::move(*created);
  }

  struct Case {
    int rows, in, out;
    bool bias = false, silu = false, residual = false, norm = false, float_out = false;
    bool tune = false;
  };

  // In bfloat16, from random inputs; compares with sums in double. With `configs` it runs
  // gemm_small_batch in each configuration that supports the case.
  void check(const Case& c, bool pdl, const std::vector<cuda::SmallBatchConfig>& configs = {}) {
    SCOPED_TRACE(fmt::format("{} rows, {} -> {}, bias {}, silu {}, residual {}, norm {}, float {}",
                             c.rows, c.in, c.out, c.bias, c.silu, c.residual, c.norm, c.float_out));
    const int outs = c.silu ? 2 * c.out : c.out, y_stride = c.out + 8, x_stride = c.in + 16;
    const auto bf16s = [&](int64_t count, double deviation = 1.0) {
      return test::to_bfloat16s(test::random_floats(rng_, count, deviation));
    };
    const auto x = bf16s(int64_t{c.rows} * x_stride), norm = bf16s(c.in), bias = bf16s(outs);
    const auto w = bf16s(int64_t{outs} * c.in, 1 / std::sqrt(c.in));
    const auto residual = bf16s(int64_t{c.rows} * y_stride);
    const DeviceArray<BFloat16> dx(x), dw(w), dbias(bias), dnorm(norm), dresidual(residual);
    DeviceArray<float> dy(static_cast<size_t>(c.rows * y_stride));
    cuda::LinearArgs args{.out_type = c.float_out ? DType::kFloat32 : DType::kBFloat16,
                          .rows = c.rows,
                          .in_features = c.in,
                          .out_features = c.out,
                          .x = dx.get(),
                          .x_stride = x_stride,
                          .weights = dw.get(),
                          .y = dy.get(),
                          .y_stride = y_stride,
                          .bias = c.bias ? dbias.get() : nullptr,
                          .silu_mul = c.silu,
                          .residual = c.residual ? dresidual.get() : nullptr,
                          .norm_weight = c.norm ? dnorm.get() : nullptr,
                          .norm_epsilon = 1e-5f};
    const size_t bytes = linear_->workspace_bytes({&args, 1}, c.rows);
    const DeviceArray<uint8_t> workspace(bytes);
    if (c.tune) {
      ASSERT_TRUE(linear_->tune({&args, 1}, workspace.get(), bytes, nullptr).ok());
    }
    std::vector<float> raw;
    if (configs.empty()) {
      const Status status = linear_->run(args, workspace.get(), bytes, {.pdl = pdl});
      ASSERT_TRUE(status.ok()) << status.message();
      raw = dy.read();
    }

    std::vector<float> in = test::to_floats(x);
    for (int row = 0; c.norm && row < c.rows; ++row) {
      float* values = in.data() + row * x_stride;
      double sum = 0;
      for (int i = 0; i < c.in; ++i) sum += double{values[i]} * values[i];
      const double scale = 1 / std::sqrt(sum / c.in + 1e-5);
      for (int i = 0; i < c.in; ++i)
        values[i] = to_float(to_bfloat16(
            static_cast<float>(values[i] * scale * to_float(norm[static_cast<size_t>(i)]))));
    }
    std::vector<float> matmul(static_cast<size_t>(c.rows * outs));
    const auto bias_floats = test::to_floats(bias);
    reference::linear({.data = w.data(), .rows = outs}, c.in, false,
                      {.x = in.data(),
                       .x_stride = x_stride,
                       .y = matmul.data(),
                       .y_stride = outs,
                       .rows = c.rows,
                       .bias = c.bias ? bias_floats.data() : nullptr});
    // Each value has a bound of its own, from the roundings to bfloat16 on its config: that of y,
    // with silu those of gate and up (through the slopes of the matmul), with a norm one entry of x
    // that falls to the other side of a tie. Sums in float32 come on top: a chain of in / 16 steps
    // on the tensor cores, each of which cuts off up to 2^-23 of the sum so far.
    constexpr double kRounding = 1.0 / 256;        // at most, of the value
    std::vector<std::pair<double, double>> wants;  // and how far from it
    for (int row = 0; row < c.rows; ++row)
      for (int i = 0; i < c.out; ++i) {
        const auto at = static_cast<size_t>(row * y_stride + i);
        double want = matmul[static_cast<size_t>(row * outs + i)], slope = 1, bound = 0;
        if (c.silu) {
          const double gate = want, up = matmul[static_cast<size_t>(row * outs + c.out + i)];
          const double sigmoid = 1 / (1 + std::exp(-gate));
          slope = std::abs(up) * std::abs(sigmoid * (1 + gate * (1 - sigmoid))) +
                  std::abs(gate * sigmoid);
          want = gate * sigmoid * up;
          bound += kRounding * 1.01 *
                   (std::abs(gate * up * sigmoid * (1 + gate * (1 - sigmoid))) + std::abs(want));
        }
        if (c.residual) want += to_float(residual[at]);
        if (!c.float_out) bound += kRounding * 1.01 * (std::abs(want) + bound);
        // Entries of x times w are about 1 / sqrt(in) times a few; so is a tie's other side of one.
        if (c.norm) bound += slope * kRounding * 16 / std::sqrt(c.in);
        bound += slope * (3e-5 + c.in / 16.0 * 0x1.0p-23) * (1 + std::abs(want));
        wants.emplace_back(want, bound);
      }
    const auto compare = [&](const std::string& config) {
      int64_t wrong = 0;
      std::string first, last;
      for (int row = 0; row < c.rows; ++row)
        for (int i = 0; i < c.out; ++i) {
          const auto at = static_cast<size_t>(row * y_stride + i);
          const double got =
              c.float_out ? raw[at] : to_float(reinterpret_cast<const BFloat16*>(raw.data())[at]);
          const auto& [want, bound] = wants[static_cast<size_t>(row * c.out + i)];
          if (std::abs(got - want) <= bound) continue;  // false for NaN
          last = fmt::format("row {}, output {}: {}, want {} within {}", row, i, got, want, bound);
          if (wrong++ == 0) first = last;
        }
      EXPECT_EQ(wrong, 0) << config << "\nfirst: " << first << "\nlast: " << last;
    };
    if (configs.empty()) compare("as chosen");
    for (const cuda::SmallBatchConfig& config : configs) {
      if (!cuda::gemm_small_batch_supports(args, config, *cuda::device_traits())) continue;
      cudaMemset(dy.get(), 0xff, dy.size() * 4);
      for (int times = 0; times < 2; ++times) {  // the second right behind the first
        const Status status =
            cuda::gemm_small_batch(args, config, *cuda::device_traits(), {.pdl = pdl});
        ASSERT_TRUE(status.ok()) << status.message();
      }
      raw = dy.read();
      compare(fmt::format("groups {}, splits {}, half {}", config.groups, config.splits,
                          config.half_shared));
    }
  }

  std::unique_ptr<cuda::Linear> linear_;
};

TEST_F(CudaLinear, GemvAgreesWithTheReference) {
  const std::pair<int, int> shapes[] = {{8, 8},      {40, 24},     {256, 16},    {896, 1152},
                                        {2048, 512}, {4096, 1000}, {14336, 264}, {16384, 40}};
  int round = 0;
  for (const auto& [in, out] : shapes)
    for (const int rows : {1, 2, 3, 5, 8, 9, 16}) {
      Case c{.rows = rows, .in = in, .out = out};
      switch ((round + round / 7) % 7) {  // each number of rows meets each epilogue
        case 1:
          c.bias = true;
          break;
        case 2:
          c.silu = true;
          break;
        case 3:
          c.residual = true;
          break;
        case 4:
          c.norm = true;
          break;
        case 5:
          c.bias = c.residual = c.norm = true;
          break;
        case 6:
          c.silu = c.norm = true;
          break;
        default:
          c.float_out = true;
      }
      check(c, round++ % 2 == 1);
    }
}

TEST_F(CudaLinear, ManyRowsAgreeWithTheReference) {
  int round = 0;
  for (const int rows : {17, 33, 100, 257}) {
    check({.rows = rows, .in = 512, .out = 384}, false);
    check({.rows = rows, .in = 512, .out = 384, .bias = true, .tune = true}, false);
    check({.rows = rows, .in = 512, .out = 384, .silu = true}, true);
    check({.rows = rows, .in = 512, .out = 384, .residual = true, .norm = true}, round++ % 2 == 1);
    check({.rows = rows, .in = 512, .out = 384, .float_out = true, .tune = true}, false);
    check({.rows = rows, .in = 512, .out = 384, .silu = true, .norm = true}, true);
  }
  check({.rows = 8, .in = 512, .out = 384, .tune = true}, false);
}

TEST_F(CudaLinear, SmallBatchesAgreeWithTheReferenceInAllConfigs) {
  std::vector<cuda::SmallBatchConfig> configs;
  for (const bool half : {true, false})
    for (const int groups : {1, 2, 3, 4, 5, 8, 14, 16})
      for (const int splits : {1, 2})
        configs.push_back({.groups = groups, .splits = splits, .half_shared = half});
  int round = 0;
  for (const int rows : {1, 3, 7, 16, 17, 31, 32, 33, 50, 63, 64}) {
    const bool pdl = round++ % 2 == 1;
    check({.rows = rows, .in = 1096, .out = 400}, pdl, configs);
    check({.rows = rows, .in = 512, .out = 784, .residual = true}, !pdl, configs);
    check({.rows = rows, .in = 968, .out = 264, .bias = true, .silu = true}, pdl, configs);
    check({.rows = rows, .in = 64, .out = 16, .bias = true, .residual = true}, !pdl, configs);
    check({.rows = rows, .in = 2048, .out = 128, .float_out = true}, pdl, configs);
  }
  check({.rows = 16, .in = 14336, .out = 256, .residual = true}, true, configs);
  check({.rows = 64, .in = 4096, .out = 512, .silu = true}, true, configs);
}

// The same bits at all numbers of rows for which the instruction has the same columns, and beside
// other rows.
TEST_F(CudaLinear, ABatchsRowDoesNotDependOnThoseBesideIt) {
  if (cuda::device_traits()->compute_capability < 90)
    GTEST_SKIP() << "SKIPPED: the kernel for batches needs code for Hopper";
  const int in = 2048, out = 512;
  const DeviceArray<BFloat16> x(test::to_bfloat16s(test::random_floats(rng_, 64 * in)));
  const DeviceArray<BFloat16> w(
      test::to_bfloat16s(test::random_floats(rng_, int64_t{out} * in, 0.02)));
  for (const int splits : {1, 2}) {
    std::vector<BFloat16> all;
    for (const int rows : {64, 50, 33, 32, 17, 16, 5, 1}) {
      DeviceArray<BFloat16> y(static_cast<size_t>(rows * out));
      const cuda::LinearArgs args{.rows = rows,
                                  .in_features = in,
                                  .out_features = out,
                                  .x = x.get(),
                                  .x_stride = in,
                                  .weights = w.get(),
                                  .y = y.get(),
                                  .y_stride = out};
      const cuda::SmallBatchConfig config{.splits = splits};
      ASSERT_TRUE(cuda::gemm_small_batch_supports(args, config, *cuda::device_traits()));
      ASSERT_TRUE(cuda::gemm_small_batch(args, config, *cuda::device_traits(), {}).ok());
      const auto got = y.read();
      if (all.empty()) all = got;
      EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin())) << rows << ", " << splits;
    }
  }
}

// Each GEMM reads what the one before it wrote: with PDL they give what they give one by one.
TEST_F(CudaLinear, BatchesWithPdlWaitForTheirInputs) {
  if (cuda::device_traits()->compute_capability < 90)
    GTEST_SKIP() << "SKIPPED: the kernel for batches needs code for Hopper";
  constexpr int kRows = 24, kWide = 2048, kGemms = 12;
  const DeviceArray<BFloat16> x(test::to_bfloat16s(test::random_floats(rng_, kRows * kWide)));
  const DeviceArray<BFloat16> w(
      test::to_bfloat16s(test::random_floats(rng_, int64_t{kWide} * kWide, 0.022)));
  const auto traits = *cuda::device_traits();
  std::vector<BFloat16> want;
  for (const bool pdl : {false, true, true, true}) {
    DeviceArray<BFloat16> y(size_t{kGemms} * kRows * kWide);
    cudaMemset(y.get(), 0xff, y.size() * 2);
    for (int i = 0; i < kGemms; ++i) {
      const cuda::LinearArgs args{.rows = kRows,
                                  .in_features = kWide,
                                  .out_features = kWide,
                                  .x = i == 0 ? x.get() : y.get() + (i - 1) * kRows * kWide,
                                  .x_stride = kWide,
                                  .weights = w.get(),
                                  .y = y.get() + i * kRows * kWide,
                                  .y_stride = kWide,
                                  .residual = i < 2 ? nullptr : y.get() + (i - 2) * kRows * kWide};
      const cuda::SmallBatchConfig config{.groups = i % 3 == 0   ? 4
                                                    : i % 3 == 1 ? 1
                                                                 : 10,
                                          .splits = i % 2 + 1};
      ASSERT_TRUE(cuda::gemm_small_batch_supports(args, config, traits));
      ASSERT_TRUE(cuda::gemm_small_batch(args, config, traits, {.pdl = pdl}).ok());
    }
    const auto got = y.read();
    if (want.empty()) want = got;
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << pdl;
  }
}

TEST_F(CudaLinear, ARowDoesNotDependOnThoseBesideIt) {
  if (cuda::device_traits()->compute_capability < 90)
    GTEST_SKIP() << "SKIPPED: our own GEMMs need code for Hopper; the library's promise it only "
                    "where set_row_invariant() asks for it";
  const int in = 1536, out = 512;
  const auto x = test::to_bfloat16s(test::random_floats(rng_, 16 * in));
  const DeviceArray<BFloat16> dx(x);
  const DeviceArray<BFloat16> dw(
      test::to_bfloat16s(test::random_floats(rng_, int64_t{out} * in, 0.1)));
  std::vector<BFloat16> alone;
  for (const int rows : {1, cuda::kSmallRows}) {
    DeviceArray<BFloat16> dy(static_cast<size_t>(rows * out));
    ASSERT_TRUE(linear_
                    ->run({.rows = rows,
                           .in_features = in,
                           .out_features = out,
                           .x = dx.get(),
                           .x_stride = in,
                           .weights = dw.get(),
                           .y = dy.get(),
                           .y_stride = out},
                          nullptr, 0, {})
                    .ok());
    auto y = dy.read();
    y.resize(static_cast<size_t>(out));
    if (rows == 1) alone = y;
    EXPECT_EQ(y, alone) << rows;
  }
}

// Row by row the same bits at all numbers of rows, with and without tuning.
TEST_F(CudaLinear, RowInvariantGemms) {
  struct Way {
    int in, out;
    bool silu = false, residual = false, bias = false, float_out = false;
  };
  constexpr int kMost = 300;
  for (const Way& config :
       {Way{1536, 512}, Way{4096, 1024, false, true}, Way{1024, 2048, true},
        Way{896, 1152, false, false, true}, Way{2048, 4000, false, false, false, true}}) {
    const int outs = config.silu ? 2 * config.out : config.out;
    const auto array = [&](int64_t count, double deviation) {
      return test::to_bfloat16s(test::random_floats(rng_, count, deviation));
    };
    const DeviceArray<BFloat16> x(array(int64_t{kMost} * config.in, 1));
    const DeviceArray<BFloat16> w(array(int64_t{outs} * config.in, 1 / std::sqrt(config.in)));
    const DeviceArray<BFloat16> residual(array(int64_t{kMost} * config.out, 1)),
        bias(array(outs, 1));
    const DeviceArray<float> y(static_cast<size_t>(kMost * config.out));
    const auto args = [&](int rows) {
      return cuda::LinearArgs{.out_type = config.float_out ? DType::kFloat32 : DType::kBFloat16,
                              .rows = rows,
                              .in_features = config.in,
                              .out_features = config.out,
                              .x = x.get(),
                              .x_stride = config.in,
                              .weights = w.get(),
                              .y = y.get(),
                              .y_stride = config.out,
                              .bias = config.bias ? bias.get() : nullptr,
                              .silu_mul = config.silu,
                              .residual = config.residual ? residual.get() : nullptr};
    };
    std::vector<cuda::LinearArgs> tuned;
    for (const int rows : {1, 8, 16, 24, 64, 128, kMost}) tuned.push_back(args(rows));
    std::vector<uint8_t> want;
    for (const bool tune : {false, true}) {
      auto created = cuda::Linear::create({});
      ASSERT_TRUE(created);
      cuda::Linear& linear = **created;
      linear.set_row_invariant();
      const size_t bytes = linear.workspace_bytes(tuned, kMost);
      const DeviceArray<uint8_t> workspace(bytes);
      if (tune) {
        const Status status = linear.tune(tuned, workspace.get(), bytes, nullptr);
        ASSERT_TRUE(status.ok()) << status.message();
      }
      for (const int rows : {kMost, 1, 2, 3, 7, 8, 9, 16, 17, 23, 33, 64, 65, 100, 129, 200, 257}) {
        cudaMemset(y.get(), 0xff, y.size() * 4);
        const Status status = linear.run(args(rows), workspace.get(), bytes, {});
        ASSERT_TRUE(status.ok()) << status.message();
        const auto got = y.read();
        const auto* raw = reinterpret_cast<const uint8_t*>(got.data());
        const size_t size = static_cast<size_t>(rows * config.out) * (config.float_out ? 4 : 2);
        if (want.empty()) want.assign(raw, raw + size);
        EXPECT_TRUE(std::equal(raw, raw + size, want.begin()))
            << rows << " rows of " << config.in << " to " << config.out << ", tuned " << tune;
      }
    }
  }
}

TEST_F(CudaLinear, Float32) {
  for (const int rows : {1, 16, 50}) {
    const int in = 256, out = 128;
    const auto x = test::random_floats(rng_, int64_t{rows} * in);
    const auto w = test::random_floats(rng_, int64_t{out} * in, 0.1);
    const DeviceArray<float> dx(x), dw(w);
    DeviceArray<float> dy(static_cast<size_t>(rows * out));
    const cuda::LinearArgs args{.type = DType::kFloat32,
                                .out_type = DType::kFloat32,
                                .rows = rows,
                                .in_features = in,
                                .out_features = out,
                                .x = dx.get(),
                                .x_stride = in,
                                .weights = dw.get(),
                                .y = dy.get(),
                                .y_stride = out};
    const size_t bytes = linear_->workspace_bytes({&args, 1}, rows);
    const DeviceArray<uint8_t> workspace(bytes);
    ASSERT_TRUE(linear_->run(args, workspace.get(), bytes, {}).ok());
    std::vector<float> want(dy.size());
    reference::linear(
        {.data = w.data(), .type = DType::kFloat32, .rows = out}, in, false,
        {.x = x.data(), .x_stride = in, .y = want.data(), .y_stride = out, .rows = rows});
    EXPECT_LT(test::relative_error(dy.read(), want), 1e-5) << rows;
  }
}

TEST_F(CudaLinear, TunedKernelsSurviveARestart) {
  const auto folder = std::filesystem::temp_directory_path() /
                      fmt::format("espalier-linear-{:016x}", std::random_device{}());
  auto first = cuda::Linear::create({.cache_folder = folder});
  ASSERT_TRUE(first);
  auto beside = cuda::Linear::create({.cache_folder = folder});
  ASSERT_TRUE(beside);
  const DeviceArray<BFloat16> x(test::to_bfloat16s(test::random_floats(rng_, 64 * 256)));
  const DeviceArray<BFloat16> w(test::to_bfloat16s(test::random_floats(rng_, 128 * 256)));
  const DeviceArray<BFloat16> y(64 * 128);
  const cuda::LinearArgs args{.rows = 64,
                              .in_features = 256,
                              .out_features = 128,
                              .x = x.get(),
                              .x_stride = 256,
                              .weights = w.get(),
                              .y = y.get(),
                              .y_stride = 128};
  const size_t bytes = (*first)->workspace_bytes({&args, 1}, 64);
  const DeviceArray<uint8_t> workspace(bytes);
  ASSERT_TRUE((*first)->tune({&args, 1}, workspace.get(), bytes, nullptr).ok());
  std::string before, after;
  const auto text = [&](std::string& to) {
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() != ".txt") continue;
      std::ifstream in(file.path());
      to.assign(std::istreambuf_iterator<char>(in), {});
    }
  };
  text(before);
  EXPECT_FALSE(before.empty());
  auto second = cuda::Linear::create({.cache_folder = folder});
  ASSERT_TRUE(second);
  ASSERT_TRUE((*second)->tune({&args, 1}, workspace.get(), bytes, nullptr).ok());
  ASSERT_TRUE((*second)->run(args, workspace.get(), bytes, {}).ok());
  text(after);
  EXPECT_EQ(before, after);
  // A process that started before the file existed and measured too takes the file's entries all
  // the same.
  ASSERT_TRUE((*beside)->tune({&args, 1}, workspace.get(), bytes, nullptr).ok());
  text(after);
  EXPECT_EQ(before, after);
  const auto bits = [&](cuda::Linear& linear) {
    EXPECT_TRUE(linear.run(args, workspace.get(), bytes, {}).ok());
    std::vector<uint16_t> out;
    for (const BFloat16 value : y.read()) out.push_back(value.bits);
    return out;
  };
  EXPECT_EQ(bits(**beside), bits(**first));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace espalier::kernels
