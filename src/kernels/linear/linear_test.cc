#include <cmath>
#include <cstring>

#include "kernels/cpu/test_support.h"
#include "kernels/linear/op.h"

namespace espalier::kernels {
namespace {

using test::random_floats;
using test::to_bfloat16s;

struct Shape {
  int64_t rows, in, out;
};

// A GEMM with everything that can differ, its reference, and what float32 sums may be off by.
class LinearTest : public test::EachIsa {
 protected:
  // y, the reference and the bound of one GEMM are compared element by element. The bound of a
  // sum of n terms accumulated in float32 in any order is n 2^-24 / (1 - n 2^-24) times the sum
  // of their sizes (Higham 2002, 3.1); bias and residual are two more terms.
  void expect_close(const std::vector<float>& y, const std::vector<float>& expected,
                    const std::vector<float>& sizes, int64_t terms) {
    const double unit = static_cast<double>(terms + 3) * 0x1.0p-24;
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected[i], 1.01 * unit * sizes[i] + 1e-30) << "element " << i;
    }
  }

  // The sum of the sizes of all terms of each output.
  static std::vector<float> term_sizes(const std::vector<float>& x, const std::vector<float>& w,
                                       const std::vector<float>& bias,
                                       const std::vector<float>& residual, const Shape& s) {
    std::vector<float> sizes(static_cast<size_t>(s.rows * s.out));
    for (int64_t row = 0; row < s.rows; ++row) {
      for (int64_t out = 0; out < s.out; ++out) {
        double sum = std::abs(bias[static_cast<size_t>(out)]) +
                     std::abs(residual[static_cast<size_t>(row * s.out + out)]);
        for (int64_t in = 0; in < s.in; ++in) {
          sum += std::abs(static_cast<double>(x[static_cast<size_t>(row * s.in + in)]) *
                          w[static_cast<size_t>(out * s.in + in)]);
        }
        sizes[static_cast<size_t>(row * s.out + out)] = static_cast<float>(1.02 * sum);
      }
    }
    return sizes;
  }
};

PackedMatrix must_pack(CpuBackend& backend, const PackSpec& spec) {
  auto packed = PackedMatrix::pack(backend, spec);
  EXPECT_TRUE(packed) << packed.error().message();
  return std::move(*packed);
}

TEST_P(LinearTest, AgreesWithTheReference) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const Shape shapes[] = {{1, 1, 1},    {1, 64, 32},  {3, 33, 17},    {5, 100, 31},  {16, 96, 64},
                          {17, 31, 40}, {33, 544, 8}, {70, 130, 129}, {40, 1100, 33}};
  for (const Shape& s : shapes) {
    for (const bool bf16 : {false, true}) {
      for (const bool extras : {false, true}) {
        SCOPED_TRACE(testing::Message() << s.rows << "x" << s.in << "x" << s.out << " bf16 " << bf16
                                        << " extras " << extras);
        const std::vector<float> x = random_floats(rng_, s.rows * s.in);
        const std::vector<float> weights = random_floats(rng_, s.out * s.in, 0.1);
        const std::vector<BFloat16> halves = to_bfloat16s(weights);
        std::vector<float> bias(static_cast<size_t>(s.out));
        std::vector<float> y(static_cast<size_t>(s.rows * s.out));
        if (extras) {
          bias = random_floats(rng_, s.out);
          y = random_floats(rng_, s.rows * s.out);
        }
        const std::vector<float> sizes = term_sizes(x, weights, bias, y, s);
        WeightRows block = {weights.data(), DType::kFloat32, s.out, 0};
        if (bf16) block = {halves.data(), DType::kBFloat16, s.out, 0};
        const DType type = bf16 ? DType::kBFloat16 : DType::kFloat32;
        const PackedMatrix packed = must_pack(*backend, {s.in, type, {&block, 1}});

        std::vector<float> expected = y;
        LinearArgs args = {.x = x.data(),
                           .x_stride = s.in,
                           .y = y.data(),
                           .y_stride = s.out,
                           .rows = s.rows,
                           .bias = extras ? bias.data() : nullptr,
                           .accumulate = extras};
        linear(*backend, packed, args);
        args.y = expected.data();
        reference::linear(block, s.in, bf16, args);
        expect_close(y, expected, sizes, s.in);
      }
    }
  }
}

// The requirement that greedy output stands on.
TEST_P(LinearTest, ARowIsTheSameInAnyCallOnAnyNumberOfThreads) {
  for (const bool bf16 : {false, true}) {
    for (const int64_t in : {96, 1120}) {
      const int64_t out = 70, max_rows = 70;
      const std::vector<float> weights = random_floats(rng_, in * out, 0.3);
      const std::vector<float> x = random_floats(rng_, in * max_rows);
      const WeightRows block = {weights.data(), DType::kFloat32, out, 0};
      std::vector<float> alone;  // each row in a call of its own, on one thread
      for (int threads = 1; threads <= 4; ++threads) {
        WorkPool pool(threads);
        auto backend = backend_on(pool);
        const PackedMatrix packed =
            must_pack(*backend, {in, bf16 ? DType::kBFloat16 : DType::kFloat32, {&block, 1}});
        const auto run = [&](int64_t first, int64_t rows) {
          std::vector<float> y(static_cast<size_t>(rows * out));
          linear(*backend, packed,
                 {.x = x.data() + first * in,
                  .x_stride = in,
                  .y = y.data(),
                  .y_stride = out,
                  .rows = rows});
          return y;
        };
        if (threads == 1) {
          for (int64_t row = 0; row < max_rows; ++row) {
            const std::vector<float> y = run(row, 1);
            alone.insert(alone.end(), y.begin(), y.end());
          }
        }
        for (int64_t rows = 1; rows <= max_rows; rows += threads == 1 ? 1 : 3) {
          const int64_t first = rng_.between(0, max_rows - rows);
          const std::vector<float> y = run(first, rows);
          ASSERT_EQ(std::memcmp(y.data(), alone.data() + first * out, y.size() * sizeof(float)), 0)
              << rows << " rows from " << first << " on " << threads << " threads, bf16 " << bf16;
        }
      }
    }
  }
}

// More rows than the tiles' scratch holds at once, a unit that is not full, several slices of
// inputs.
TEST_P(LinearTest, ManyRowsAreAsGoodAsFew) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const int64_t rows = 1100, in = 1056, out = 40;
  const std::vector<float> weights = random_floats(rng_, in * out, 0.3);
  const std::vector<float> x = random_floats(rng_, in * rows);
  const WeightRows block = {weights.data(), DType::kFloat32, out, 0};
  const PackedMatrix packed = must_pack(*backend, {in, DType::kBFloat16, {&block, 1}});
  std::vector<float> all(static_cast<size_t>(rows * out));
  linear(*backend, packed,
         {.x = x.data(), .x_stride = in, .y = all.data(), .y_stride = out, .rows = rows});
  std::vector<float> one(static_cast<size_t>(out));
  for (int64_t row = 0; row < rows; row += 37) {
    linear(*backend, packed,
           {.x = x.data() + row * in, .x_stride = in, .y = one.data(), .y_stride = out, .rows = 1});
    ASSERT_EQ(std::memcmp(one.data(), all.data() + row * out, one.size() * sizeof(float)), 0)
        << row;
  }
}

TEST_P(LinearTest, BlocksAreStackedAndStridesKept) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const int64_t in = 40, stride = 45, rows = 5;
  const std::vector<float> a = random_floats(rng_, 24 * stride), b = random_floats(rng_, 9 * in);
  const std::vector<BFloat16> b_half = to_bfloat16s(b);
  const WeightRows blocks[] = {{a.data(), DType::kFloat32, 24, stride},
                               {b_half.data(), DType::kBFloat16, 9, 0}};
  const PackedMatrix packed = must_pack(*backend, {in, DType::kBFloat16, blocks});
  ASSERT_EQ(packed.out_features(), 33);
  const int64_t x_stride = 50, y_stride = 60;
  const std::vector<float> x = random_floats(rng_, rows * x_stride);
  std::vector<float> y(static_cast<size_t>(rows * y_stride), 7.0f);
  linear(*backend, packed,
         {.x = x.data(), .x_stride = x_stride, .y = y.data(), .y_stride = y_stride, .rows = rows});
  std::vector<float> expected(static_cast<size_t>(rows * y_stride), 7.0f);
  LinearArgs args = {.x = x.data(),
                     .x_stride = x_stride,
                     .y = expected.data(),
                     .y_stride = y_stride,
                     .rows = rows};
  reference::linear(blocks[0], in, true, args);
  args.y = expected.data() + 24;
  reference::linear(blocks[1], in, true, args);
  // Sums of 40 multiplied pairs of standard normals: sizes under 300.
  for (size_t i = 0; i < y.size(); ++i) {
    if (static_cast<int64_t>(i) % y_stride >= 33) {
      ASSERT_EQ(y[i], 7.0f) << "wrote beyond a row at " << i;
    } else {
      ASSERT_NEAR(y[i], expected[i], 43 * 0x1.0p-24 * 300) << i;
    }
  }
}

TEST_P(LinearTest, GateAndUpInOneGemm) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  for (const int64_t ffn : {16, 37, 80}) {
    for (const bool bf16 : {false, true}) {
      const int64_t in = 64, rows = 19;
      const std::vector<float> gate = random_floats(rng_, ffn * in, 0.2);
      const std::vector<float> up = random_floats(rng_, ffn * in, 0.2);
      const std::vector<float> x = random_floats(rng_, rows * in);
      const WeightRows blocks[] = {{gate.data(), DType::kFloat32, ffn, 0},
                                   {up.data(), DType::kFloat32, ffn, 0}};
      const PackedMatrix packed = must_pack(
          *backend, {in, bf16 ? DType::kBFloat16 : DType::kFloat32, blocks, /*gate_up=*/true});
      ASSERT_EQ(packed.out_features(), ffn);
      std::vector<float> y(static_cast<size_t>(rows * ffn)), g(y.size()), u(y.size());
      LinearArgs args = {
          .x = x.data(), .x_stride = in, .y = y.data(), .y_stride = ffn, .rows = rows};
      linear_silu_mul(*backend, packed, args);
      args.y = g.data();
      reference::linear(blocks[0], in, bf16, args);
      args.y = u.data();
      reference::linear(blocks[1], in, bf16, args);
      for (size_t i = 0; i < y.size(); ++i) {
        const double expected = g[i] / (1 + std::exp(-static_cast<double>(g[i]))) * u[i];
        // The sums' bound, with sum of sizes under 64 * 0.2 * 1 * 2; silu's slope is under 1.1.
        const double sum_error = 67 * 0x1.0p-24 * 26;
        ASSERT_NEAR(y[i], expected,
                    1.1 * sum_error * (std::abs(g[i]) + std::abs(u[i]) + 1) +
                        8 * 0x1.0p-24 * std::abs(expected))
            << i;
      }
    }
  }
}

TEST_P(LinearTest, GatheredRowsAreThePackedOnes) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const int64_t in = 70, out = 100;
  const std::vector<float> weights = random_floats(rng_, in * out);
  const WeightRows block = {weights.data(), DType::kFloat32, out, 0};
  const std::vector<int32_t> ids = {0, 99, 31, 32, 31, 64, 5, 6, 7};
  for (const bool bf16 : {false, true}) {
    const PackedMatrix packed =
        must_pack(*backend, {in, bf16 ? DType::kBFloat16 : DType::kFloat32, {&block, 1}});
    std::vector<float> rows(ids.size() * 80, -1.0f);
    gather_packed_rows(*backend, packed, ids, rows.data(), 80);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int64_t j = 0; j < in; ++j) {
        const float value = weights[static_cast<size_t>(ids[i] * in + j)];
        ASSERT_EQ(rows[i * 80 + static_cast<size_t>(j)],
                  bf16 ? to_float(to_bfloat16(value)) : value);
      }
      ASSERT_EQ(rows[i * 80 + 70], -1.0f);
    }
  }
}

TEST_P(LinearTest, Float16WeightsAreRead) {
  WorkPool pool(1);
  auto backend = backend_on(pool);
  const std::vector<Float16> weights = {{0x3c00}, {0xc000}, {0x3800}, {0x4200}};  // 1 -2 0.5 3
  const WeightRows block = {weights.data(), DType::kFloat16, 2, 0};
  const PackedMatrix packed = must_pack(*backend, {2, DType::kBFloat16, {&block, 1}});
  const float x[] = {4, 1};
  float y[2];
  linear(*backend, packed, {.x = x, .x_stride = 2, .y = y, .y_stride = 2, .rows = 1});
  EXPECT_EQ(y[0], 2);
  EXPECT_EQ(y[1], 5);
}

TEST_P(LinearTest, ANanInOneRowStaysInIt) {
  WorkPool pool(1);
  auto backend = backend_on(pool);
  const int64_t in = 64, out = 32, rows = 20;
  const std::vector<float> weights = random_floats(rng_, in * out);
  std::vector<float> x = random_floats(rng_, in * rows);
  x[7 * in + 3] = std::nanf("");
  const WeightRows block = {weights.data(), DType::kFloat32, out, 0};
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const PackedMatrix packed = must_pack(*backend, {in, type, {&block, 1}});
    std::vector<float> y(static_cast<size_t>(rows * out));
    linear(*backend, packed,
           {.x = x.data(), .x_stride = in, .y = y.data(), .y_stride = out, .rows = rows});
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(std::isnan(y[i]), i / out == 7) << i;
  }
}

TEST(PackTest, RefusesShapesThatDoNotFit) {
  WorkPool pool(1);
  auto backend = CpuBackend::create(pool);
  ASSERT_TRUE(backend);
  const float data[64] = {};
  const WeightRows good = {data, DType::kFloat32, 4, 0};
  const WeightRows blocks[] = {good, {data, DType::kFloat32, 2, 0}};
  const WeightRows none = {nullptr, DType::kFloat32, 4, 0};
  const WeightRows narrow = {data, DType::kFloat32, 4, 7};
  EXPECT_FALSE(PackedMatrix::pack(**backend, {0, DType::kFloat32, {&good, 1}}));
  EXPECT_FALSE(PackedMatrix::pack(**backend, {8, DType::kFloat32, {}}));
  EXPECT_FALSE(PackedMatrix::pack(**backend, {8, DType::kFloat32, {&none, 1}}));
  EXPECT_FALSE(PackedMatrix::pack(**backend, {8, DType::kFloat32, {&narrow, 1}}));
  EXPECT_FALSE(PackedMatrix::pack(**backend, {8, DType::kFloat16, {&good, 1}}));
  EXPECT_FALSE(PackedMatrix::pack(**backend, {8, DType::kFloat32, blocks, true}));
  EXPECT_TRUE(PackedMatrix::pack(**backend, {8, DType::kFloat32, {&good, 1}}));
}

ESP_EACH_ISA(LinearTest);

}  // namespace
}  // namespace espalier::kernels
