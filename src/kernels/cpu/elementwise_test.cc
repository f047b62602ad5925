// The light operations: norm, activation, embedding, rope, kv_append, and the logits' reductions.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/activation/op.h"
#include "kernels/cpu/test_support.h"
#include "kernels/embedding/op.h"
#include "kernels/kv_append/op.h"
#include "kernels/logits/op.h"
#include "kernels/norm/op.h"
#include "kernels/rope/op.h"

namespace espalier::kernels {
namespace {

using test::random_floats;

constexpr double kUnit = 0x1.0p-24;  // half a unit in the last place of 1
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class ElementwiseTest : public test::EachIsa {
 protected:
  ElementwiseTest() : pool_(2), backend_(backend_on(pool_)) {}
  WorkPool pool_;
  std::unique_ptr<CpuBackend> backend_;
};

TEST_P(ElementwiseTest, ScaleColumns) {
  for (const auto [rows, dim] : {std::array<int64_t, 2>{1, 5}, {700, 77}}) {
    const int64_t stride = dim + 3;
    std::vector<float> x = random_floats(rng_, rows * stride);
    const std::vector<float> weight = random_floats(rng_, dim), before = x;
    scale_columns(*backend_, {.x = x.data(),
                              .x_stride = stride,
                              .y = x.data(),
                              .y_stride = stride,
                              .rows = rows,
                              .dim = dim,
                              .weight = weight.data()});
    for (int64_t i = 0; i < rows * stride; ++i) {
      const float scale = i % stride < dim ? weight[static_cast<size_t>(i % stride)] : 1.0f;
      ASSERT_EQ(x[static_cast<size_t>(i)], before[static_cast<size_t>(i)] * scale) << i;
    }
  }
}

TEST_P(ElementwiseTest, MeanParts) {
  for (const auto [rows, parts, dim] : {std::array<int64_t, 3>{1, 1, 5}, {60, 16, 77}}) {
    const int64_t stride = parts * dim + 3;
    const std::vector<float> x = random_floats(rng_, rows * stride);
    std::vector<float> y(static_cast<size_t>(rows * dim));
    mean_parts(*backend_, {.x = x.data(),
                           .x_stride = stride,
                           .y = y.data(),
                           .y_stride = dim,
                           .rows = rows,
                           .parts = parts,
                           .dim = dim});
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < dim; ++i) {
        double sum = 0, size = 0;
        for (int64_t part = 0; part < parts; ++part) {
          const double value = x[static_cast<size_t>(row * stride + part * dim + i)];
          sum += value;
          size += std::abs(value);
        }
        ASSERT_NEAR(y[static_cast<size_t>(row * dim + i)], sum / static_cast<double>(parts),
                    2 * kUnit * size + kUnit);
      }
    }
  }
}

TEST_P(ElementwiseTest, RmsNorm) {
  for (const auto [rows, groups, dim] :
       {std::array<int64_t, 3>{1, 1, 2048}, {3, 1, 77}, {50, 4, 64}, {40, 1, 1023}, {2, 3, 5}}) {
    const int64_t stride = groups * dim + 3;
    std::vector<float> x = random_floats(rng_, rows * stride);
    const std::vector<float> weight = random_floats(rng_, dim);
    std::vector<float> y(x.size(), 9.0f), expected(x.size(), 9.0f);
    RmsNormArgs args = {.x = x.data(),
                        .x_stride = stride,
                        .y = y.data(),
                        .y_stride = stride,
                        .rows = rows,
                        .groups = groups,
                        .dim = dim,
                        .weight = weight.data(),
                        .epsilon = 1e-3f};
    rms_norm(*backend_, args);
    args.y = expected.data();
    reference::rms_norm(args);
    // The sum of dim squares is off by dim units at most, its root by half of that.
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected[i],
                  (static_cast<double>(dim) / 2 + 6) * kUnit * std::abs(expected[i]))
          << i;
    }
    args.y = x.data();  // in place
    rms_norm(*backend_, args);
    for (size_t i = 0; i < y.size(); ++i) {
      if (expected[i] != 9.0f) {
        ASSERT_EQ(x[i], y[i]) << i;
      }
    }
  }
}

TEST_P(ElementwiseTest, LayerNorm) {
  for (const auto [rows, dim] :
       {std::array<int64_t, 2>{1, 2048}, {3, 77}, {50, 64}, {40, 1023}, {2, 5}}) {
    const int64_t stride = dim + 3;
    std::vector<float> x = random_floats(rng_, rows * stride);
    for (float& value : x) value += 2;  // a mean that must go
    const std::vector<float> weight = random_floats(rng_, dim), bias = random_floats(rng_, dim);
    std::vector<float> y(x.size(), 9.0f), expected(x.size(), 9.0f);
    LayerNormArgs args = {.x = x.data(),
                          .x_stride = stride,
                          .y = y.data(),
                          .y_stride = stride,
                          .rows = rows,
                          .dim = dim,
                          .weight = weight.data(),
                          .bias = bias.data(),
                          .epsilon = 1e-3f};
    layer_norm(*backend_, args);
    args.y = expected.data();
    reference::layer_norm(args);
    // The mean is off by dim units of the values' size at most, and so is the deviation.
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected[i], (static_cast<double>(dim) + 16) * kUnit * 16) << i;
    }
    args.y = x.data();  // in place
    layer_norm(*backend_, args);
    for (size_t i = 0; i < y.size(); ++i) {
      if (expected[i] != 9.0f) {
        ASSERT_EQ(x[i], y[i]) << i;
      }
    }
  }
}

TEST_P(ElementwiseTest, GeluAndClampedSwiglu) {
  const int64_t rows = 33, dim = 1001;
  std::vector<float> gate = random_floats(rng_, rows * dim, 4),
                     up = random_floats(rng_, rows * dim, 4);
  const float edges[] = {-200, -20, -9, -0.0f, 0, 7, 9, 20, 200};
  std::copy(std::begin(edges), std::end(edges), gate.begin());
  std::copy(std::begin(edges), std::end(edges), up.begin());
  for (const Activation activation : {Activation::kGeluTanh, Activation::kClampedSwiglu}) {
    std::vector<float> y(gate.size()), expected(gate.size());
    GatedArgs args = {.activation = activation,
                      .limit = 7,
                      .gate = gate.data(),
                      .gate_stride = dim,
                      .up = up.data(),
                      .up_stride = dim,
                      .y = y.data(),
                      .y_stride = dim,
                      .rows = rows,
                      .dim = dim};
    for (const bool with_up : {true, false}) {
      if (!with_up && activation == Activation::kClampedSwiglu) continue;
      args.up = with_up ? up.data() : nullptr;
      args.y = y.data();
      gated(*backend_, args);
      args.y = expected.data();
      reference::gated(args);
      for (size_t i = 0; i < y.size(); ++i) {
        // The exponent, at most 3 v^3, is off by a few units of itself; what it takes part in is
        // below |v| e^-|exponent|.
        ASSERT_NEAR(y[i], expected[i], 64 * kUnit * (1 + std::abs(expected[i])))
            << gate[i] << " " << up[i];
      }
    }
  }
}

TEST_P(ElementwiseTest, AddScaledAndSoftcap) {
  for (const int64_t count : {1, 15, 4097, 40000}) {
    const std::vector<float> x = random_floats(rng_, count), before = random_floats(rng_, count, 9);
    std::vector<float> y = before;
    add_scaled(*backend_, y.data(), x.data(), 0.3f, count);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], before[i] + 0.3 * x[i], 4 * kUnit * (1 + std::abs(before[i])));
    }
    y = before;
    softcap(*backend_, y.data(), 5, count);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], 5 * std::tanh(before[i] / 5.0), 5 * 16 * kUnit);
    }
  }
}

TEST_P(ElementwiseTest, SiluMul) {
  const int64_t rows = 33, dim = 1001;
  std::vector<float> gate = random_floats(rng_, rows * dim, 4),
                     up = random_floats(rng_, rows * dim);
  // Where exp overflows, underflows and is exact.
  const float edges[] = {-200, -100, -88.8f, -87.5f, -0.0f, 0, 87.5f, 88.8f, 100, 200};
  std::copy(std::begin(edges), std::end(edges), gate.begin());
  std::vector<float> y(gate.size()), expected(gate.size());
  GatedArgs args = {.gate = gate.data(),
                    .gate_stride = dim,
                    .up = up.data(),
                    .up_stride = dim,
                    .y = y.data(),
                    .y_stride = dim,
                    .rows = rows,
                    .dim = dim};
  gated(*backend_, args);
  args.y = expected.data();
  reference::gated(args);
  for (size_t i = 0; i < y.size(); ++i) {
    // exp to 4 units, and four roundings; below -87 float32's exp(-v) is at its end.
    ASSERT_NEAR(y[i], expected[i],
                16 * kUnit * std::abs(expected[i]) + 1e-35 + (gate[i] < -87 ? 1e-30 : 0))
        << gate[i];
  }
  gate[0] = std::nanf("");
  args.y = gate.data();
  gated(*backend_, args);
  EXPECT_TRUE(std::isnan(gate[0]));
}

TEST_P(ElementwiseTest, AddAndScale) {
  for (const int64_t count : {1, 15, 4097, 40000}) {
    const std::vector<float> x = random_floats(rng_, count), before = random_floats(rng_, count);
    std::vector<float> y = before;
    add(*backend_, y.data(), x.data(), count);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], before[i] + x[i]);
    scale(*backend_, y.data(), 0.7f, count);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], (before[i] + x[i]) * 0.7f);
  }
}

TEST_P(ElementwiseTest, GatherRows) {
  for (const int64_t dim : {1, 37, 512}) {
    const std::vector<float> table = random_floats(rng_, 50 * dim);
    const std::vector<BFloat16> halves = test::to_bfloat16s(table);
    std::vector<int32_t> ids(90);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng_.below(50));
    for (const bool bf16 : {false, true}) {
      std::vector<float> out(ids.size() * static_cast<size_t>(dim + 1), 3.0f);
      gather_rows(*backend_,
                  {.table = bf16 ? static_cast<const void*>(halves.data()) : table.data(),
                   .type = bf16 ? DType::kBFloat16 : DType::kFloat32,
                   .dim = dim,
                   .ids = ids,
                   .out = out.data(),
                   .out_stride = dim + 1});
      for (size_t i = 0; i < ids.size(); ++i) {
        for (int64_t j = 0; j <= dim; ++j) {
          const auto at = static_cast<size_t>(ids[i] * dim + j);
          const float expected = j == dim ? 3.0f : bf16 ? to_float(halves[at]) : table[at];
          ASSERT_EQ(out[i * static_cast<size_t>(dim + 1) + static_cast<size_t>(j)], expected);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, MixRows) {
  for (const int64_t dim : {1, 37, 700}) {
    const std::vector<float> table = random_floats(rng_, 20 * dim);
    const std::vector<BFloat16> halves = test::to_bfloat16s(table);
    std::vector<MixedRow> rows = {MixedRow::of(7)};
    for (int i = 0; i < 40; ++i) {
      MixedRow& row = rows.emplace_back();
      for (int32_t& corner : row.corners) corner = static_cast<int32_t>(rng_.below(20));
      row.across = static_cast<float>(rng_.below(5)) / 5;
      row.down = static_cast<float>(rng_.below(5)) / 5;
    }
    for (const bool bf16 : {false, true}) {
      const auto stride = static_cast<size_t>(dim + 1);
      std::vector<float> out(rows.size() * stride, 3.0f);
      mix_rows(*backend_, {.table = bf16 ? static_cast<const void*>(halves.data()) : table.data(),
                           .type = bf16 ? DType::kBFloat16 : DType::kFloat32,
                           .dim = dim,
                           .rows = rows,
                           .out = out.data(),
                           .out_stride = dim + 1});
      for (size_t i = 0; i < out.size(); ++i) {
        const MixedRow& row = rows[i / stride];
        const auto column = static_cast<int64_t>(i % stride);
        const auto corner = [&](int at) {
          const auto element = static_cast<size_t>(row.corners[at] * dim + column);
          return double{bf16 ? to_float(halves[element]) : table[element]};
        };
        if (column == dim) {
          ASSERT_EQ(out[i], 3.0f);
          continue;
        }
        const double upper = corner(0) + row.across * (corner(1) - corner(0));
        const double lower = corner(2) + row.across * (corner(3) - corner(2));
        ASSERT_NEAR(out[i], upper + row.down * (lower - upper), 1e-5);
        if (i >= stride) continue;
        ASSERT_EQ(double{out[i]}, corner(0));
      }
    }
  }
}

TEST_P(ElementwiseTest, Rope) {
  for (const auto [heads, head_dim, rotary] :
       {std::array<int64_t, 3>{3, 64, 64}, {2, 80, 32}, {1, 22, 22}, {40, 64, 64}}) {
    for (const bool interleaved : {false, true}) {
      const int64_t tokens = 21, stride = heads * head_dim + 5, half = rotary / 2;
      const std::vector<float> x = random_floats(rng_, tokens * stride);
      std::vector<float> cos, sin;
      for (int64_t p = 0; p < 100; ++p) {
        for (int64_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * i / rotary);
          cos.push_back(static_cast<float>(std::cos(angle)));
          sin.push_back(static_cast<float>(std::sin(angle)));
        }
      }
      std::vector<int32_t> positions;
      for (int64_t i = 0; i < tokens; ++i)
        positions.push_back(static_cast<int32_t>(rng_.below(100)));
      std::vector<float> actual = x, expected = x;
      RopeArgs args = {.x = actual.data(),
                       .x_stride = stride,
                       .heads = heads,
                       .head_dim = head_dim,
                       .positions = positions,
                       .cos = cos.data(),
                       .sin = sin.data(),
                       .rotary_dim = rotary,
                       .interleaved = interleaved};
      rope(*backend_, args);
      args.x = expected.data();
      reference::rope(args);
      // Two multiplications and a sum of numbers under 6.
      for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 3 * 12 * kUnit);
      EXPECT_NE(std::memcmp(actual.data(), x.data(), x.size() * sizeof(float)), 0);
    }
  }
}

TEST_P(ElementwiseTest, KvAppendWritesEachTokenToItsPageAndNothingElse) {
  const int32_t heads = 3, dim = 20, tokens = 60;
  for (const int32_t page_size : {1, 4}) {
    for (const KvType type : {KvType::kFloat32, KvType::kBFloat16}) {
      const size_t size = type == KvType::kFloat32 ? 4 : 2;
      const int64_t token_stride = heads * dim + 6, page_stride = page_size * token_stride + 2;
      const int32_t num_pages = 100;
      std::vector<std::byte> k(static_cast<size_t>(num_pages * page_stride) * size,
                               std::byte{0x11});
      std::vector<std::byte> v = k, expected_k = k, expected_v = k;
      KvView view;
      view.page_size = page_size;
      view.layers = {{},
                     {.type = type,
                      .k = k.data(),
                      .v = v.data(),
                      .num_pages = num_pages,
                      .num_kv_heads = heads,
                      .head_dim = dim,
                      .page_stride = page_stride,
                      .token_stride = token_stride,
                      .head_stride = dim + 2}};
      std::vector<PageId> pages(num_pages);
      std::iota(pages.begin(), pages.end(), 0);
      for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[rng_.below(i)]);
      // One entry of a token, one of many.
      std::vector<BatchEntry> entries(2);
      entries[0].prefix_len = 9;
      entries[0].num_query_tokens = 1;
      entries[0].num_pages = 10 / page_size + 1;
      entries[1].prefix_len = 2;
      entries[1].num_query_tokens = tokens - 1;
      entries[1].query_begin = 1;
      entries[1].page_begin = entries[0].num_pages;
      entries[1].num_pages = (tokens + 1) / page_size + 1;
      const std::vector<float> keys = random_floats(rng_, tokens * heads * dim);
      const std::vector<float> values = random_floats(rng_, tokens * heads * dim);
      kv_append(*backend_, {.k = keys.data(),
                            .k_stride = heads * dim,
                            .v = values.data(),
                            .v_stride = heads * dim,
                            .entries = entries,
                            .page_tables = pages,
                            .kv = &view,
                            .layer = 1});
      for (int32_t token = 0; token < tokens; ++token) {
        const BatchEntry& entry = entries[token == 0 ? 0 : 1];
        const int32_t position = entry.prefix_len + token - entry.query_begin;
        const PageId page = pages[static_cast<size_t>(entry.page_begin + position / page_size)];
        for (int32_t i = 0; i < heads * dim; ++i) {
          const auto at =
              static_cast<size_t>(page * page_stride + position % page_size * token_stride +
                                  i / dim * view.layer(1).head_stride + i % dim);
          const auto from = static_cast<size_t>(token * heads * dim + i);
          if (type == KvType::kFloat32) {
            std::memcpy(&expected_k[at * 4], &keys[from], 4);
            std::memcpy(&expected_v[at * 4], &values[from], 4);
          } else {
            const BFloat16 key = to_bfloat16(keys[from]), value = to_bfloat16(values[from]);
            std::memcpy(&expected_k[at * 2], &key, 2);
            std::memcpy(&expected_v[at * 2], &value, 2);
          }
        }
      }
      EXPECT_TRUE(k == expected_k);
      EXPECT_TRUE(v == expected_v);
    }
  }
}

TEST_P(ElementwiseTest, Bfloat16RoundsAsTheScalarDoes) {
  // Through kv_append, whose rounding is the table's: random bits, so all exponents and NaN, and
  // every fourth an exact tie.
  const int32_t dim = 4099;
  std::vector<float> x(dim);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto bits = static_cast<uint32_t>(rng_());
    x[i] = std::bit_cast<float>(i % 4 == 0 ? (bits & 0xffff0000u) | 0x8000u : bits);
  }
  x[0] = std::nanf("");
  x[1] = std::bit_cast<float>(0x7f800001u);
  std::vector<uint16_t> k(dim), v(dim);
  KvView view;
  view.layers = {
      {.k = k.data(), .v = v.data(), .num_pages = 1, .num_kv_heads = 1, .head_dim = dim}};
  view.layers[0].set_dense_strides(view.page_size);
  std::vector<BatchEntry> entries(1);
  entries[0].num_query_tokens = entries[0].num_pages = 1;
  const PageId page = 0;
  kv_append(*backend_, {.k = x.data(),
                        .k_stride = dim,
                        .v = x.data(),
                        .v_stride = dim,
                        .entries = entries,
                        .page_tables = {&page, 1},
                        .kv = &view,
                        .layer = 0});
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(k[i], to_bfloat16(x[i]).bits) << std::bit_cast<uint32_t>(x[i]);
  }
}

TEST_P(ElementwiseTest, TopOneIsTheFirstOfTheLargest) {
  const auto argmax = [](const CpuBackend& backend, std::span<const float> logits) {
    int32_t best = -1;
    return top_k(backend, logits, 1, &best) == 1 ? best : -1;
  };
  for (int round = 0; round < 200; ++round) {
    const auto count = rng_.between(1, 300);
    std::vector<float> x(static_cast<size_t>(count));
    for (float& value : x) value = static_cast<float>(rng_.between(-3, 3));
    const auto expected = std::max_element(x.begin(), x.end()) - x.begin();
    ASSERT_EQ(argmax(*backend_, x), expected);
  }
  EXPECT_EQ(argmax(*backend_, std::vector<float>(70, -kInfinity)), -1);
  EXPECT_EQ(argmax(*backend_, std::vector<float>(70, std::nanf(""))), -1);
  EXPECT_EQ(argmax(*backend_, std::vector<float>{std::nanf(""), 1, 2, 2}), 2);
  EXPECT_EQ(argmax(*backend_, std::vector<float>{-kInfinity, -3e38f}), 1);
  EXPECT_EQ(argmax(*backend_, std::vector<float>{}), -1);
  EXPECT_EQ(argmax(*backend_, std::vector<float>{0.0f, -0.0f}), 0);
}

TEST_P(ElementwiseTest, LogSumExp) {
  for (const int64_t count : {1, 7, 1000, 128256}) {
    for (const double deviation : {0.1, 10.0}) {
      const std::vector<float> x = random_floats(rng_, count, deviation);
      const double expected = reference::log_sum_exp(x);
      // exp to 4 units and sums of 64 an entry: 80 units of the sum, and the result's own rounding.
      EXPECT_NEAR(log_sum_exp(*backend_, x), expected, 80 * kUnit + 2 * kUnit * std::abs(expected));
    }
  }
  EXPECT_EQ(log_sum_exp(*backend_, std::vector<float>(9, -kInfinity)), -kInfinity);
  EXPECT_FLOAT_EQ(log_sum_exp(*backend_, std::vector<float>{-kInfinity, 2.0f}), 2.0f);
  EXPECT_TRUE(std::isnan(log_sum_exp(*backend_, std::vector<float>{1, std::nanf(""), 2})));
  EXPECT_FLOAT_EQ(log_sum_exp(*backend_, std::vector<float>{3e38f, 0}), 3e38f);
}

TEST_P(ElementwiseTest, TopK) {
  for (int round = 0; round < 100; ++round) {
    const auto count = rng_.between(1, 400);
    const auto k = static_cast<int32_t>(rng_.between(1, 50));
    std::vector<float> x(static_cast<size_t>(count));
    for (float& value : x) {
      value = rng_.below(5) == 0 ? -kInfinity : static_cast<float>(rng_.between(-40, 40));
    }
    std::vector<int32_t> expected;
    for (int32_t i = 0; i < count; ++i) {
      if (x[static_cast<size_t>(i)] > -kInfinity) expected.push_back(i);
    }
    std::stable_sort(expected.begin(), expected.end(), [&](int32_t a, int32_t b) {
      return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)];
    });
    if (expected.size() > static_cast<size_t>(k)) expected.resize(static_cast<size_t>(k));
    std::vector<int32_t> actual(static_cast<size_t>(std::min<int64_t>(k, count)));
    actual.resize(static_cast<size_t>(top_k(*backend_, x, k, actual.data())));
    ASSERT_EQ(actual, expected);
  }
  int32_t none = 0;
  EXPECT_EQ(top_k(*backend_, std::vector<float>{1, 2}, 0, &none), 0);
}

ESP_EACH_ISA(ElementwiseTest);

TEST(CpuIsaTest, AnUnknownNameListsTheKnown) {
  const auto isa = resolve_cpu_isa("sse9");
  ASSERT_FALSE(isa);
  EXPECT_EQ(isa.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(isa.error().message().find("plain"), std::string::npos);
  EXPECT_NE(isa.error().message().find("sse9"), std::string::npos);
}

TEST(CpuIsaTest, TheNameBeatsTheEnvironmentAndTheEnvironmentTheSystem) {
  ASSERT_EQ(setenv("ESPALIER_CPU_ISA", "plain", 1), 0);
  EXPECT_EQ(resolve_cpu_isa("").value(), CpuIsa::kPlain);
  const CpuIsa best = supported_cpu_isas().back();
  EXPECT_EQ(resolve_cpu_isa(cpu_isa_name(best)).value(), best);
  ASSERT_EQ(unsetenv("ESPALIER_CPU_ISA"), 0);
  EXPECT_EQ(resolve_cpu_isa("").value(), best);
}

}  // namespace
}  // namespace espalier::kernels
