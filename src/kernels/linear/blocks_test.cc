// GEMM of quantised weights. That a block's numbers are those of its format is tested where
// checkpoints are read (models/quantized_weights_test.cc); here the packed numbers are the truth.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cpu/test_support.h"
#include "kernels/linear/op.h"

namespace espalier::kernels {
namespace {

using test::random_floats;

// Where the scale of a format's blocks stands (and dmin or m behind it), and its float16's
// exponents for which the numbers lie around one.
struct ScaleAt {
  BlockFormat format;
  size_t at;
  int count;
  int64_t least, most;
  bool any_sign;
};
constexpr ScaleAt kScalesAt[] = {
    {BlockFormat::kQ8_0, 0, 1, 7, 9, true},       {BlockFormat::kQ4_0, 0, 1, 7, 9, true},
    {BlockFormat::kQ4_1, 0, 2, 7, 9, true},       {BlockFormat::kQ5_0, 0, 1, 7, 9, true},
    {BlockFormat::kQ5_1, 0, 2, 7, 9, true},       {BlockFormat::kQ4K, 0, 2, 2, 4, false},
    {BlockFormat::kQ5K, 0, 2, 2, 4, false},       {BlockFormat::kQ6K, 208, 1, 2, 4, false},
    {BlockFormat::kQ2K, 80, 2, 7, 9, false},      {BlockFormat::kQ3K, 108, 1, 5, 7, true},
    {BlockFormat::kIq4Nl, 0, 1, 7, 9, true},      {BlockFormat::kIq4Xs, 0, 1, 2, 4, true},
    {BlockFormat::kMxfp4, 0, 0, 124, 130, false},  // a byte, the exponent itself
};

// Rows of blocks with any values.
std::vector<std::byte> random_blocks(Rng& rng, BlockFormat format, int64_t rows, int64_t in) {
  const BlockFormatInfo& info = block_format_info(format);
  const ScaleAt& scale = kScalesAt[static_cast<size_t>(format)];
  EXPECT_EQ(scale.format, format);
  const auto count = static_cast<size_t>(rows * in / info.elements);
  std::vector<std::byte> bytes(count * info.bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  for (size_t block = 0; block < count; ++block) {
    std::byte* at = bytes.data() + block * info.bytes + scale.at;
    const auto exponent = [&] { return rng.between(scale.least, scale.most); };
    if (scale.count == 0) *at = static_cast<std::byte>(exponent());
    for (int i = 0; i < scale.count; ++i) {
      const auto bits =
          static_cast<uint16_t>(static_cast<uint64_t>(exponent()) << 10 | rng.below(1024) |
                                (scale.any_sign ? rng.below(2) << 15 : 0));
      std::memcpy(at + 2 * i, &bits, 2);
    }
  }
  return bytes;
}

std::vector<float> numbers_of(CpuBackend& backend, const PackedMatrix& w) {
  std::vector<int32_t> ids(static_cast<size_t>(w.out_features()));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> numbers(ids.size() * static_cast<size_t>(w.in_features()));
  gather_packed_rows(backend, w, ids, numbers.data(), w.in_features());
  return numbers;
}

// The activations as 8 bits hold them, and half a step of each.
struct Rounded {
  std::vector<double> values, half_steps;
};
Rounded round_to_8_bits(const std::vector<float>& x, int64_t in) {
  Rounded out;
  for (int64_t row = 0; row < static_cast<int64_t>(x.size()) / in; ++row) {
    for (int64_t block = 0; block < in; block += 32) {
      const float* from = x.data() + row * in + block;
      const int64_t count = std::min<int64_t>(32, in - block);
      float most = 0;
      for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(from[i]));
      const float inverse = most > 0 ? 127.0f / most : 0, scale = most / 127.0f;
      for (int64_t i = 0; i < count; ++i) {
        out.values.push_back(static_cast<double>(std::nearbyint(from[i] * inverse)) * scale);
        out.half_steps.push_back(0.501 * scale);
      }
    }
  }
  return out;
}

class BlocksTest : public test::EachIsa {
 protected:
  PackedMatrix pack(CpuBackend& backend, const PackSpec& spec) {
    auto packed = PackedMatrix::pack(backend, spec);
    EXPECT_TRUE(packed) << packed.error().message();
    return std::move(*packed);
  }

  // Within what float32 sums of whole groups may be off by: each of the 2 n / 16 additions at most
  // 2^-24 of the sum of sizes, and a number's parts (scale times value, minimum) are at most 4
  // times the row's largest number. And within half a step of 8 bits of what multiplying gives of
  // what was given.
  void expect_gemm(CpuBackend& backend, const PackedMatrix& w, const std::vector<float>& x,
                   const std::vector<float>& start, const std::vector<float>& y) {
    const int64_t in = w.in_features(), out = w.out_features();
    const std::vector<float> numbers = numbers_of(backend, w);
    const Rounded rounded = round_to_8_bits(x, in);
    for (int64_t row = 0; row < static_cast<int64_t>(x.size()) / in; ++row) {
      for (int64_t o = 0; o < out; ++o) {
        double of_rounded = 0, of_given = 0, half_steps = 0, sizes = 0, most = 0;
        for (int64_t i = 0; i < in; ++i) {
          const double number = numbers[static_cast<size_t>(o * in + i)];
          const auto at = static_cast<size_t>(row * in + i);
          of_rounded += number * rounded.values[at];
          of_given += number * x[at];
          half_steps += std::abs(number) * rounded.half_steps[at];
          sizes += std::abs(rounded.values[at]);
          most = std::max(most, std::abs(number));
        }
        const auto at = static_cast<size_t>(row * out + o);
        const double additions = static_cast<double>(in) / 8 + 8;
        const double bound = additions * 0x1p-24 * (4 * sizes * most + std::abs(start[at])) + 1e-30;
        ASSERT_NEAR(y[at], of_rounded + start[at], bound) << "row " << row << " output " << o;
        ASSERT_NEAR(y[at], of_given + start[at], bound + half_steps) << row << " " << o;
      }
    }
  }
};

TEST_P(BlocksTest, AgreeWithTheirNumbers) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  struct Shape {
    int64_t rows, in, out;
  };
  for (const BlockFormatInfo& info : kBlockFormats) {
    for (const Shape& s : {Shape{1, info.elements, 1}, Shape{1, 512, 64}, Shape{3, 256, 17},
                           Shape{7, 768, 33}, Shape{18, 512, 40}, Shape{37, 1024, 31}}) {
      SCOPED_TRACE(testing::Message() << info.name << " " << s.rows << "x" << s.in << "x" << s.out);
      const auto bytes = random_blocks(rng_, info.format, s.out, s.in);
      const WeightRows block = {.data = bytes.data(), .rows = s.out, .format = info.format};
      const PackedMatrix w = pack(*backend, {.in_features = s.in, .blocks = {&block, 1}});
      ASSERT_TRUE(w.quantized());
      const std::vector<float> x = random_floats(rng_, s.rows * s.in);
      const std::vector<float> start = random_floats(rng_, s.rows * s.out);
      std::vector<float> y = start;
      linear(*backend, w,
             {.x = x.data(),
              .x_stride = s.in,
              .y = y.data(),
              .y_stride = s.out,
              .rows = s.rows,
              .accumulate = true});
      expect_gemm(*backend, w, x, start, y);
    }
  }
}

TEST_P(BlocksTest, ARowIsTheSameInAnyCallOnAnyNumberOfThreads) {
  const int64_t in = 768, out = 70, max_rows = 41;
  const std::vector<float> x = random_floats(rng_, in * max_rows);
  for (const BlockFormatInfo& info : kBlockFormats) {
    const auto bytes = random_blocks(rng_, info.format, out, in);
    const WeightRows block = {.data = bytes.data(), .rows = out, .format = info.format};
    std::vector<float> alone;
    for (int threads = 1; threads <= 3; ++threads) {
      WorkPool pool(threads);
      auto backend = backend_on(pool);
      const PackedMatrix w = pack(*backend, {.in_features = in, .blocks = {&block, 1}});
      const auto run = [&](int64_t first, int64_t rows) {
        std::vector<float> y(static_cast<size_t>(rows * out));
        linear(*backend, w,
               {.x = x.data() + first * in,
                .x_stride = in,
                .y = y.data(),
                .y_stride = out,
                .rows = rows});
        return y;
      };
      for (int64_t row = 0; threads == 1 && row < max_rows; ++row) {
        const std::vector<float> y = run(row, 1);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (int64_t rows = 1; rows <= max_rows; rows += threads == 1 ? 1 : 5) {
        const int64_t first = rng_.between(0, max_rows - rows);
        const std::vector<float> y = run(first, rows);
        ASSERT_EQ(std::memcmp(y.data(), alone.data() + first * out, y.size() * sizeof(float)), 0)
            << info.name << " " << rows << " rows from " << first << " on " << threads;
      }
    }
  }
}

// Exponents of MXFP4 reach below what float32 holds with all of its digits.
TEST_P(BlocksTest, ScalesBelowNormalNumbers) {
  WorkPool pool(1);
  auto backend = backend_on(pool);
  const int64_t in = 256, out = 40;
  for (const int64_t rows : {1, 9}) {
    auto bytes = random_blocks(rng_, BlockFormat::kMxfp4, out, in);
    const size_t block_bytes = block_format_info(BlockFormat::kMxfp4).bytes;
    for (size_t i = 0; i < bytes.size(); i += block_bytes) {
      bytes[i] = static_cast<std::byte>(rng_.below(4));
    }
    const WeightRows block = {.data = bytes.data(), .rows = out, .format = BlockFormat::kMxfp4};
    const PackedMatrix w = pack(*backend, {.in_features = in, .blocks = {&block, 1}});
    const std::vector<float> x = random_floats(rng_, rows * in, 0x1p120);
    std::vector<float> y(static_cast<size_t>(rows * out));
    linear(*backend, w,
           {.x = x.data(), .x_stride = in, .y = y.data(), .y_stride = out, .rows = rows});
    EXPECT_TRUE(std::ranges::any_of(y, [](float value) { return std::abs(value) > 0x1p-9f; }));
    expect_gemm(*backend, w, x, std::vector<float>(y.size()), y);
  }
}

// More rows than the tiles' scratch holds at once.
TEST_P(BlocksTest, ManyRowsAreAsGoodAsFew) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const int64_t rows = 930, in = 512, out = 40;
  const std::vector<float> x = random_floats(rng_, in * rows);
  const auto bytes = random_blocks(rng_, BlockFormat::kQ4K, out, in);
  const WeightRows block = {.data = bytes.data(), .rows = out, .format = BlockFormat::kQ4K};
  const PackedMatrix w = pack(*backend, {.in_features = in, .blocks = {&block, 1}});
  std::vector<float> all(static_cast<size_t>(rows * out)), one(static_cast<size_t>(out));
  linear(*backend, w,
         {.x = x.data(), .x_stride = in, .y = all.data(), .y_stride = out, .rows = rows});
  for (int64_t row = 0; row < rows; row += 31) {
    linear(*backend, w,
           {.x = x.data() + row * in, .x_stride = in, .y = one.data(), .y_stride = out, .rows = 1});
    ASSERT_EQ(std::memcmp(one.data(), all.data() + row * out, one.size() * sizeof(float)), 0)
        << row;
  }
}

TEST_P(BlocksTest, PartsOfSeveralFormatsInAnyOrderOfRows) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const int64_t in = 512, rows = 9;
  const auto q = random_blocks(rng_, BlockFormat::kQ4K, 50, in);
  const auto k = random_blocks(rng_, BlockFormat::kQ4K, 9, in);
  const auto v = random_blocks(rng_, BlockFormat::kQ6K, 21, in);
  std::vector<int64_t> order(50);
  for (int64_t i = 0; i < 50; ++i) order[static_cast<size_t>(i)] = 49 - i;
  const WeightRows straight = {.data = q.data(), .rows = 50, .format = BlockFormat::kQ4K};
  const WeightRows blocks[] = {
      {.data = q.data(), .rows = 50, .format = BlockFormat::kQ4K, .order = order},
      {.data = k.data(), .rows = 9, .format = BlockFormat::kQ4K},
      {.data = v.data(), .rows = 21, .format = BlockFormat::kQ6K}};
  const PackedMatrix w = pack(*backend, {.in_features = in, .blocks = blocks});
  ASSERT_EQ(w.parts().size(), 2u);
  ASSERT_EQ(w.out_features(), 80);
  const std::vector<float> numbers = numbers_of(*backend, w);
  const std::vector<float> of_q =
      numbers_of(*backend, pack(*backend, {.in_features = in, .blocks = {&straight, 1}}));
  ASSERT_TRUE(std::equal(of_q.begin() + 49 * in, of_q.end(), numbers.begin()));

  const std::vector<float> x = random_floats(rng_, rows * in), bias = random_floats(rng_, 80);
  std::vector<float> y(rows * 80), start;
  for (int64_t row = 0; row < rows; ++row) start.insert(start.end(), bias.begin(), bias.end());
  linear(*backend, w,
         {.x = x.data(),
          .x_stride = in,
          .y = y.data(),
          .y_stride = 80,
          .rows = rows,
          .bias = bias.data()});
  expect_gemm(*backend, w, x, start, y);
}

TEST_P(BlocksTest, GateAndUpInOneGemm) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const int64_t in = 256, ffn = 37;
  for (const int64_t rows : {1, 19}) {
    const std::vector<float> gate = random_floats(rng_, ffn * in, 0.1);
    const std::vector<float> up = random_floats(rng_, ffn * in, 0.1);
    const std::vector<float> x = random_floats(rng_, rows * in);
    const WeightRows blocks[] = {{gate.data(), DType::kFloat32, ffn},
                                 {up.data(), DType::kFloat32, ffn}};
    const PackedMatrix both = pack(
        *backend,
        {.in_features = in, .blocks = blocks, .gate_up = true, .quantize = BlockFormat::kQ8_0});
    ASSERT_EQ(both.out_features(), ffn);
    std::vector<float> y(static_cast<size_t>(rows * ffn)), g(y.size()), u(y.size());
    LinearArgs args = {.x = x.data(), .x_stride = in, .y = y.data(), .y_stride = ffn, .rows = rows};
    linear_silu_mul(*backend, both, args);
    for (int i = 0; i < 2; ++i) {
      args.y = i == 0 ? g.data() : u.data();
      linear(*backend,
             pack(*backend,
                  {.in_features = in, .blocks = {&blocks[i], 1}, .quantize = BlockFormat::kQ8_0}),
             args);
    }
    for (size_t i = 0; i < y.size(); ++i) {
      const double expected = g[i] / (1 + std::exp(-static_cast<double>(g[i]))) * u[i];
      ASSERT_NEAR(y[i], expected, 16 * 0x1p-24 * (std::abs(expected) + 1e-3)) << i;
    }
  }
}

// Half a step of each format: of Q8_0 the 127th of a block's largest; Q6_K's and Q4_K's steps are a
// 32nd and a 15th of what a group spans, times what two levels of scales lose.
TEST_P(BlocksTest, NumbersAreRoundedToFormats) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const int64_t in = 330, out = 37;
  std::vector<float> numbers = random_floats(rng_, in * out, 0.02);
  std::fill_n(numbers.begin(), 64, 0.0f);
  const WeightRows rows = {numbers.data(), DType::kFloat32, out};
  struct Bound {
    BlockFormat format;
    double root_mean_square;  // of the error, in deviations
  };
  for (const auto& [format, bound] :
       {Bound{BlockFormat::kQ8_0, 0.007}, Bound{BlockFormat::kQ6K, 0.022},
        Bound{BlockFormat::kQ4K, 0.085}}) {
    const PackedMatrix w =
        pack(*backend, {.in_features = in, .blocks = {&rows, 1}, .quantize = format});
    const std::vector<float> packed = numbers_of(*backend, w);
    double error = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
      error += std::pow(packed[i] - static_cast<double>(numbers[i]), 2);
    }
    EXPECT_LT(std::sqrt(error / static_cast<double>(numbers.size())), bound * 0.02)
        << block_format_info(format).name;
    for (size_t i = 0; i < 64; ++i) ASSERT_EQ(packed[i], 0) << i;
    const std::vector<float> x = random_floats(rng_, 3 * in), start(3 * out, 0.0f);
    std::vector<float> y(3 * out);
    linear(*backend, w, {.x = x.data(), .x_stride = in, .y = y.data(), .y_stride = out, .rows = 3});
    expect_gemm(*backend, w, x, start, y);
  }
}

TEST_P(BlocksTest, ANanOrInfinityInOneRowStaysInIt) {
  WorkPool pool(1);
  auto backend = backend_on(pool);
  const int64_t in = 256, out = 32, rows = 20;
  const auto bytes = random_blocks(rng_, BlockFormat::kQ8_0, out, in);
  const WeightRows block = {.data = bytes.data(), .rows = out, .format = BlockFormat::kQ8_0};
  const PackedMatrix w = pack(*backend, {.in_features = in, .blocks = {&block, 1}});
  for (const float spoilt : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> x = random_floats(rng_, in * rows);
    x[7 * in + 3] = spoilt;
    std::vector<float> y(static_cast<size_t>(rows * out));
    linear(*backend, w,
           {.x = x.data(), .x_stride = in, .y = y.data(), .y_stride = out, .rows = rows});
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(std::isnan(y[i]), i / out == 7) << i;
  }
}

// Sums of whole numbers are exact, so all that have the same vectors give the same bits.
TEST(BlocksAcrossIsasTest, TilesAndDotInstructionsChangeNoBit) {
  Rng rng(7);
  const int64_t in = 512, out = 48, rows = 21;
  const std::vector<float> x = random_floats(rng, rows * in);
  for (const BlockFormatInfo& info : kBlockFormats) {
    const auto bytes = random_blocks(rng, info.format, out, in);
    const WeightRows block = {.data = bytes.data(), .rows = out, .format = info.format};
    std::vector<float> first[2];
    for (const CpuIsa isa : supported_cpu_isas()) {
      if (isa == CpuIsa::kPlain || isa == CpuIsa::kAvx2) continue;
      WorkPool pool(1);
      auto backend = test::make_backend(pool, isa);
      auto w = PackedMatrix::pack(*backend, {.in_features = in, .blocks = {&block, 1}});
      ASSERT_TRUE(w);
      std::vector<float> y(static_cast<size_t>(rows * out));
      linear(*backend, *w,
             {.x = x.data(), .x_stride = in, .y = y.data(), .y_stride = out, .rows = rows});
      std::vector<float>& expected = first[isa == CpuIsa::kNeon || isa == CpuIsa::kNeonDot];
      if (expected.empty()) expected = y;
      ASSERT_EQ(y, expected) << info.name << " " << cpu_isa_name(isa);
    }
  }
}

TEST(BlocksPackTest, RefusesWhatDoesNotFit) {
  WorkPool pool(1);
  auto backend = CpuBackend::create(pool);
  ASSERT_TRUE(backend);
  const std::vector<std::byte> bytes(4096);
  const float numbers[512] = {};
  const auto refused = [&](const PackSpec& spec) { return !PackedMatrix::pack(**backend, spec); };
  const WeightRows q8 = {.data = bytes.data(), .rows = 2, .format = BlockFormat::kQ8_0};
  const WeightRows q4 = {.data = bytes.data(), .rows = 2, .format = BlockFormat::kQ4K};
  const WeightRows plain = {numbers, DType::kFloat32, 2};
  const WeightRows mixed[] = {q8, plain}, gate_up[] = {q8, q4};
  const int64_t one[] = {0};
  const WeightRows short_order = {
      .data = bytes.data(), .rows = 2, .format = BlockFormat::kQ8_0, .order = one};
  EXPECT_FALSE(refused({.in_features = 256, .blocks = {&q8, 1}}));
  EXPECT_TRUE(refused({.in_features = 40, .blocks = {&q8, 1}}));
  EXPECT_TRUE(refused({.in_features = 128, .blocks = {&q4, 1}}));
  EXPECT_TRUE(refused({.in_features = 256, .blocks = mixed}));
  EXPECT_TRUE(refused({.in_features = 256, .blocks = gate_up, .gate_up = true}));
  EXPECT_TRUE(refused({.in_features = 256, .blocks = {&short_order, 1}}));
  EXPECT_TRUE(refused({.in_features = 256, .blocks = {&plain, 1}, .quantize = BlockFormat::kQ5K}));
}

ESP_EACH_ISA(BlocksTest);

}  // namespace
}  // namespace espalier::kernels
