// Weights of 4 bits: records made of numbers and of checkpoints' codes, and GEMMs with them,
// against slow references.
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/cuda/test_device.h"
#include "kernels/linear/cuda.h"
#include "kernels/linear/gemm_int4.h"
#include "kernels/linear/int4_weights.h"

namespace espalier::kernels {
namespace {

using cuda::Int4Format;
using cuda::Int4Order;
using test::DeviceArray;

// A matrix of random codes.
struct Codes {
  Int4Format format;
  int out, in;
  std::vector<uint8_t> codes, zeros;  // [out, in], [out, groups]
  std::vector<uint16_t> scales;       // [out, groups] float16
  std::vector<uint8_t> small_scales;  // of NVFP4, [out, groups] e4m3
  std::vector<float> row_scales;      // and [out]

  int groups() const { return (in + format.group - 1) / format.group; }
  float scale(int row, int input) const {
    return to_float(Float16{scales[static_cast<size_t>(row * groups() + input / format.group)]});
  }
  int zero(int row, int input) const {
    return format.zeros ? zeros[static_cast<size_t>(row * groups() + input / format.group)] : 8;
  }
  float nvfp4_weight(int row, int input) const {
    constexpr float kSizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const int code = codes[static_cast<size_t>(row * in + input)];
    const uint8_t bits = small_scales[static_cast<size_t>(row * groups() + input / 16)];
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    float scale = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    if ((bits & 0x7f) == 0x7f) scale = std::numeric_limits<float>::quiet_NaN();
    if ((bits & 0x80) != 0) scale = -scale;
    const float size = kSizes[code & 7] * scale * row_scales[static_cast<size_t>(row)];
    return code < 8 ? size : -size;
  }
  float weight(int row, int input) const {
    if (format.nvfp4()) return nvfp4_weight(row, input);
    const int code = codes[static_cast<size_t>(row * in + input)];
    return static_cast<float>(code - zero(row, input)) * scale(row, input);
  }

  Codes(Int4Format of, int out_features, int in_features, Rng& rng)
      : format(of), out(out_features), in(in_features) {
    for (int i = 0; i < out * in; ++i) codes.push_back(static_cast<uint8_t>(rng.below(16)));
    // Any number of e4m3, of either sign.
    for (int i = 0; format.nvfp4() && i < out * groups(); ++i)
      small_scales.push_back(static_cast<uint8_t>(rng.below(127) | rng.below(2) << 7));
    for (int i = 0; format.nvfp4() && i < out; ++i)
      row_scales.push_back(static_cast<float>(1024 + rng.below(1024)) * 0x1p-22f);
    for (int i = 0; i < out * groups(); ++i) {
      zeros.push_back(static_cast<uint8_t>(rng.below(17)));
      // 2^-8 to 2^-5 with any fraction and sign.
      scales.push_back(
          static_cast<uint16_t>((7 + rng.below(3)) << 10 | rng.below(1024) | rng.below(2) << 15));
    }
  }
};

// The codes as a checkpoint has them.
struct Stored {
  std::vector<uint8_t> bytes;
  int64_t line_bytes = 0;

  Stored(const Codes& w, Int4Order order) {
    const int lines = order == Int4Order::kColumns ? w.in / 8
                      : order == Int4Order::kAwq   ? w.in
                                                   : w.out;
    line_bytes = order == Int4Order::kRows      ? w.in / 2
                 : order == Int4Order::kColumns ? w.out * 4
                 : order == Int4Order::kAwq     ? w.out / 2
                                                : w.in / 32 * 18;
    bytes.resize(static_cast<size_t>(lines * line_bytes));
    const auto put = [&](int64_t line, int64_t nibble, uint8_t code) {
      bytes[static_cast<size_t>(line * line_bytes + nibble / 2)] |=
          static_cast<uint8_t>(code << nibble % 2 * 4);
    };
    for (int row = 0; row < w.out; ++row) {
      for (int i = 0; i < w.in; ++i) {
        const uint8_t code = w.codes[static_cast<size_t>(row * w.in + i)];
        constexpr int kSlots[8] = {0, 4, 1, 5, 2, 6, 3, 7};
        switch (order) {
          case Int4Order::kRows:
            put(row, i, code);
            break;
          case Int4Order::kColumns:
            put(i / 8, row * 8 + i % 8, code);
            break;
          case Int4Order::kAwq:
            put(i, row / 8 * 8 + kSlots[row % 8], code);
            break;
          case Int4Order::kQ4_0:
            put(row, i / 32 * 36 + 4 + i % 16 * 2 + i % 32 / 16, code);
            break;
        }
      }
      if (order != Int4Order::kQ4_0) continue;
      for (int block = 0; block < w.in / 32; ++block) {
        const uint16_t scale = w.scales[static_cast<size_t>(row * w.groups() + block)];
        std::memcpy(&bytes[static_cast<size_t>(row * line_bytes + block * 18)], &scale, 2);
      }
    }
  }
};

DeviceArray<uint8_t> records_of(const Codes& w, Int4Order order = Int4Order::kRows,
                                const int32_t* columns = nullptr) {
  const Stored stored(w, order);
  const DeviceArray<uint8_t> codes(stored.bytes), zeros(w.zeros);
  const DeviceArray<uint16_t> scales(w.scales);
  const DeviceArray<uint8_t> small_scales(w.small_scales);
  const DeviceArray<float> row_scales(w.row_scales);
  const void* of_groups = scales.get();
  if (w.format.nvfp4()) of_groups = small_scales.get();
  DeviceArray<uint8_t> records(static_cast<size_t>(cuda::int4_bytes(w.format, w.out, w.in)));
  const Status status = cuda::repack_int4({.order = order,
                                           .codes = codes.get(),
                                           .line_bytes = stored.line_bytes,
                                           .scales = of_groups,
                                           .row_scales = row_scales.get(),
                                           .zeros = zeros.get(),
                                           .columns = columns,
                                           .inputs = w.in,
                                           .to = {.format = w.format,
                                                  .records = records.get(),
                                                  .out_features = w.out,
                                                  .in_features = w.in,
                                                  .rows = w.out}},
                                          {});
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return records;
}

std::vector<float> widened(Int4Format format, const DeviceArray<uint8_t>& records, int out,
                           int in) {
  DeviceArray<BFloat16> y(static_cast<size_t>(out * in));
  const Status status = cuda::widen_int4({.format = format,
                                          .records = records.get(),
                                          .out_features = out,
                                          .in_features = in,
                                          .y = y.get()},
                                         {});
  EXPECT_TRUE(status.ok()) << status.message();
  return test::to_floats(y.read());
}

// Numbers rounded to the format and widened again: `values`, or `rounded` where they are no floats.
std::vector<float> rounded_to(Int4Format format, bool floats, const std::vector<float>& values,
                              const std::vector<BFloat16>& rounded, int out, int in, int stride) {
  const DeviceArray<float> dfloats(values);
  const DeviceArray<BFloat16> dbf16(rounded);
  DeviceArray<uint8_t> records(static_cast<size_t>(cuda::int4_bytes(format, out, in)));
  const void* x = floats ? static_cast<const void*>(dfloats.get()) : dbf16.get();
  const Status status = cuda::quantize_int4({.type = floats ? DType::kFloat32 : DType::kBFloat16,
                                             .x = x,
                                             .x_stride = stride,
                                             .to = {.format = format,
                                                    .records = records.get(),
                                                    .out_features = out,
                                                    .in_features = in,
                                                    .rows = out}},
                                            {});
  EXPECT_TRUE(status.ok()) << status.message();
  return widened(format, records, out, in);
}

class CudaInt4 : public test::OnDevice {
 protected:
  struct Case {
    int rows, in, out;
    Int4Format format{.group = 128};
    bool bias = false, silu = false, residual = false, float_out = false, tune = false;
    bool row_invariant = false;
    bool reorder = false, norm = false;  // inputs in another order, and normalised
  };

  // The rows as the GEMM reads them.
  static std::vector<float> read_rows(const Case& c, const std::vector<float>& x,
                                      const std::vector<BFloat16>& norm,
                                      const std::vector<int32_t>& columns, int stride) {
    std::vector<float> out = x;
    for (int row = 0; row < c.rows; ++row) {
      const float* from = x.data() + row * stride;
      double squares = 0;
      for (int i = 0; i < c.in; ++i) squares += double{from[i]} * from[i];
      const double scale = 1 / std::sqrt(squares / c.in + 1e-6);
      for (int i = 0; i < c.in; ++i) {
        const auto column = static_cast<size_t>(columns[static_cast<size_t>(i)]);
        const float value = from[column];
        out[static_cast<size_t>(row * stride + i)] =
            c.norm
                ? to_float(to_bfloat16(static_cast<float>(value * scale * to_float(norm[column]))))
                : value;
      }
    }
    return out;
  }

  // Random rows and weights, as chosen and in each of `configs`.
  void check(const Case& c, bool pdl, const std::vector<cuda::Int4GemmConfig>& configs = {}) {
    SCOPED_TRACE(fmt::format("{} rows, {} -> {}, group {}, zeros {}, bias {}, silu {}, residual {}",
                             c.rows, c.in, c.out, c.format.group, c.format.zeros, c.bias, c.silu,
                             c.residual));
    const int outs = c.silu ? 2 * c.out : c.out, x_stride = c.in + 16, y_stride = c.out + 8;
    const auto x = test::to_bfloat16s(test::random_floats(rng_, int64_t{c.rows} * x_stride));
    const Codes w(c.format, outs, c.in, rng_);
    const auto bias = test::to_bfloat16s(test::random_floats(rng_, outs));
    const auto residual = test::to_bfloat16s(test::random_floats(rng_, int64_t{c.rows} * y_stride));
    const auto norm = test::to_bfloat16s(test::random_floats(rng_, c.in));
    std::vector<int32_t> columns(static_cast<size_t>(c.in));
    std::iota(columns.begin(), columns.end(), 0);
    for (size_t i = columns.size() - 1; c.reorder && i > 0; --i)
      std::swap(columns[i], columns[rng_.below(i + 1)]);
    const DeviceArray<BFloat16> dx(x), dbias(bias), dresidual(residual), dnorm(norm);
    const DeviceArray<int32_t> dcolumns(columns);
    const DeviceArray<uint8_t> records = records_of(w);
    DeviceArray<float> dy(static_cast<size_t>(c.rows * y_stride));
    const cuda::LinearArgs args{.out_type = c.float_out ? DType::kFloat32 : DType::kBFloat16,
                                .rows = c.rows,
                                .in_features = c.in,
                                .out_features = c.out,
                                .x = dx.get(),
                                .x_stride = x_stride,
                                .weights = records.get(),
                                .int4 = c.format,
                                .y = dy.get(),
                                .y_stride = y_stride,
                                .bias = c.bias ? dbias.get() : nullptr,
                                .silu_mul = c.silu,
                                .residual = c.residual ? dresidual.get() : nullptr,
                                .norm_weight = c.norm ? dnorm.get() : nullptr,
                                .x_columns = c.reorder ? dcolumns.get() : nullptr};
    // More rows than the GEMM takes are multiplied by widened weights, which are bfloat16.
    const auto weight_of = [&](int row, int i) {
      const float exact = w.weight(row, i);
      return c.rows > cuda::kInt4GemmRows ? to_float(to_bfloat16(exact)) : exact;
    };
    std::vector<float> weights(static_cast<size_t>(outs * c.in));
    for (int row = 0; row < outs; ++row)
      for (int i = 0; i < c.in; ++i)
        weights[static_cast<size_t>(row * c.in + i)] = weight_of(row, i);
    const std::vector<float> xs = read_rows(c, test::to_floats(x), norm, columns, x_stride);
    // The sum, and how far from it rounded weights and sums in float32 may be.
    const auto inner = [&](int row, int output) {
      double sum = 0, magnitudes = 0;
      for (int i = 0; i < c.in; ++i) {
        const double term = double{xs[static_cast<size_t>(row * x_stride + i)]} *
                            weights[static_cast<size_t>(output * c.in + i)];
        sum += term;
        magnitudes += std::abs(term);
      }
      if (c.bias) sum += to_float(bias[static_cast<size_t>(output)]);
      return std::pair(sum, magnitudes * 0x1p-10);
    };
    std::vector<double> want, bounds;
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
        want.push_back(value);
        bounds.push_back(bound + std::abs(value) / 128 + 1e-4);
      }
    }
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
          if (std::abs(got - want[index]) <= bounds[index]) continue;  // false for NaN
          if (wrong++ == 0)
            first = fmt::format("row {}, output {}: {}, want {} within {}", row, i, got,
                                want[index], bounds[index]);
        }
      }
      EXPECT_EQ(wrong, 0) << how << ": " << first;
    };
    auto linear = cuda::Linear::create({});
    ASSERT_TRUE(linear) << linear.error().message();
    if (c.row_invariant) (*linear)->set_row_invariant();
    const size_t bytes = (*linear)->workspace_bytes({&args, 1}, c.rows);
    const DeviceArray<uint8_t> workspace(bytes);
    if (c.tune) {
      const Status tuned = (*linear)->tune({&args, 1}, workspace.get(), bytes, nullptr);
      ASSERT_TRUE(tuned.ok()) << tuned.message();
    }
    cudaMemset(dy.get(), 0xff, dy.size() * 4);
    const Status status = (*linear)->run(args, workspace.get(), bytes, {.pdl = pdl});
    ASSERT_TRUE(status.ok()) << status.message();
    compare("as chosen");
    for (const cuda::Int4GemmConfig& config : configs) {
      if (!cuda::gemm_int4_supports(args, config, *cuda::device_traits())) continue;
      cudaMemset(dy.get(), 0xff, dy.size() * 4);
      const Status ran = cuda::gemm_int4(args, config, *cuda::device_traits(), {.pdl = pdl});
      ASSERT_TRUE(ran.ok()) << ran.message();
      compare(fmt::format("groups {}, splits {}, half {}", config.groups, config.splits,
                          config.half_shared));
    }
  }
};

TEST_F(CudaInt4, RecordsHoldTheCheckpointsNumbers) {
  for (const auto order :
       {Int4Order::kRows, Int4Order::kColumns, Int4Order::kAwq, Int4Order::kQ4_0}) {
    for (const int group : {32, 128}) {
      for (const bool zeros : {false, true}) {
        if (order == Int4Order::kQ4_0 && (zeros || group != 32)) continue;
        for (const int in : {32, 128, 256, 416, 544}) {
          const Codes w({.group = group, .zeros = zeros}, 48, in, rng_);
          const auto got = widened(w.format, records_of(w, order), w.out, in);
          for (int row = 0; row < w.out; ++row)
            for (int i = 0; i < in; ++i)
              ASSERT_EQ(got[static_cast<size_t>(row * in + i)],
                        to_float(to_bfloat16(w.weight(row, i))))
                  << "order " << static_cast<int>(order) << ", group " << group << ", zeros "
                  << zeros << ", inputs " << in << ", row " << row << ", input " << i;
        }
      }
    }
  }
}

TEST_F(CudaInt4, RecordsOfNvfp4HoldTheCheckpointsNumbers) {
  for (const int in : {32, 64, 256, 416, 544}) {
    Codes w({.group = 16}, 48, in, rng_);
    w.small_scales[1] = 0x7f;  // no number
    const auto got = widened(w.format, records_of(w), w.out, in);
    for (int row = 0; row < w.out; ++row) {
      for (int i = 0; i < in; ++i) {
        const float want = to_float(to_bfloat16(w.weight(row, i)));
        const float value = got[static_cast<size_t>(row * in + i)];
        if (row == 0 && i / 16 == 1)
          ASSERT_TRUE(std::isnan(value)) << i;
        else
          ASSERT_EQ(value, want) << "inputs " << in << ", row " << row << ", input " << i;
      }
    }
  }
}

TEST_F(CudaInt4, NumbersAreRoundedToNvfp4) {
  for (const bool floats : {false, true}) {
    const int out = 48, in = 416, stride = in + 8;
    auto values = test::random_floats(rng_, int64_t{out} * stride, 0.1f);
    std::fill_n(values.begin() + stride, in, 0.0f);
    values[5] = 2.0f;  // a group far above its row's others
    const auto rounded = test::to_bfloat16s(values);
    if (!floats) values = test::to_floats(rounded);
    const auto got = rounded_to({.group = 16}, floats, values, rounded, out, in, stride);
    for (int row = 0; row < out; ++row) {
      for (int first = 0; first < in; first += 16) {
        float largest = 0;
        for (int i = first; i < first + 16; ++i)
          largest = std::max(largest, std::abs(values[static_cast<size_t>(row * stride + i)]));
        // Between 4 and 6 of a scale numbers are two apart; the scale is off by a sixteenth, and
        // what is beyond 6 of it becomes 6.
        const float bound = largest / 6 * 1.07f + largest / 128;
        double error = 0, size = 0;
        for (int i = first; i < first + 16; ++i) {
          const float value = values[static_cast<size_t>(row * stride + i)];
          const float off = got[static_cast<size_t>(row * in + i)] - value;
          ASSERT_LE(std::abs(off), bound) << "row " << row << ", input " << i;
          error += double{off} * off, size += double{value} * value;
        }
        EXPECT_LE(error, 0.04 * size) << "row " << row << ", inputs from " << first;
      }
    }
  }
}

TEST_F(CudaInt4, RecordsTakeInputsInAnotherOrder) {
  for (const auto order : {Int4Order::kRows, Int4Order::kColumns}) {
    const Codes w({.group = 32, .zeros = true}, 48, 416, rng_);
    std::vector<int32_t> columns(static_cast<size_t>(w.in));
    std::iota(columns.begin(), columns.end(), 0);
    for (size_t i = columns.size() - 1; i > 0; --i)
      std::swap(columns[i], columns[rng_.below(i + 1)]);
    // The file has input i of w at columns[i].
    Codes file = w;
    for (int row = 0; row < w.out; ++row)
      for (int i = 0; i < w.in; ++i)
        file.codes[static_cast<size_t>(row * w.in + columns[static_cast<size_t>(i)])] =
            w.codes[static_cast<size_t>(row * w.in + i)];
    const DeviceArray<int32_t> there(columns);
    EXPECT_EQ(widened(w.format, records_of(file, order, there.get()), w.out, w.in),
              widened(w.format, records_of(w, order), w.out, w.in));
  }
}

// At one row, a few, many (weights widened) and with the same bits at any number.
TEST_F(CudaInt4, InputsInAnotherOrder) {
  for (const int rows : {1, 7, 64, 300}) {
    for (const bool norm : {false, true}) {
      check({.rows = rows, .in = 512, .out = 96, .silu = rows == 7, .reorder = true, .norm = norm},
            rows == 1);
      check({.rows = rows,
             .in = 4352,
             .out = 48,
             .format = {.group = 32, .zeros = true},
             .residual = true,
             .row_invariant = rows == 7,
             .reorder = true,
             .norm = norm},
            false);
    }
  }
}

// A matrix that comes part by part, of rows and of inputs.
TEST_F(CudaInt4, PartsMakeTheSameRecords) {
  const Codes w({.group = 32, .zeros = true}, 64, 640, rng_);
  const DeviceArray<uint8_t> whole = records_of(w, Int4Order::kColumns);
  const Stored stored(w, Int4Order::kColumns);
  const DeviceArray<uint8_t> codes(stored.bytes);
  const DeviceArray<uint8_t> records(whole.size());
  for (const int first_row : {0, 24}) {
    const int rows = first_row == 0 ? 24 : 40;
    for (const int first_input : {0, 256}) {
      const int inputs = first_input == 0 ? 256 : 384, groups = inputs / 32;
      std::vector<uint16_t> scales;
      std::vector<uint8_t> zeros;
      for (int row = first_row; row < first_row + rows; ++row) {
        for (int i = 0; i < groups; ++i) {
          const auto at = static_cast<size_t>(row * w.groups() + first_input / 32 + i);
          scales.push_back(w.scales[at]);
          zeros.push_back(w.zeros[at]);
        }
      }
      const DeviceArray<uint16_t> dscales(scales);
      const DeviceArray<uint8_t> dzeros(zeros);
      const Status status = cuda::repack_int4(
          {.order = Int4Order::kColumns,
           .codes = codes.get() + first_input / 8 * stored.line_bytes + first_row * 4,
           .line_bytes = stored.line_bytes,
           .scales = dscales.get(),
           .zeros = dzeros.get(),
           .first_input = first_input,
           .inputs = inputs,
           .to = {.format = w.format,
                  .records = records.get(),
                  .out_features = w.out,
                  .in_features = w.in,
                  .first_row = first_row,
                  .rows = rows}},
          {});
      ASSERT_TRUE(status.ok()) << status.message();
      cudaDeviceSynchronize();
    }
  }
  EXPECT_EQ(widened(w.format, records, w.out, w.in), widened(w.format, whole, w.out, w.in));
}

TEST_F(CudaInt4, NumbersAreRoundedToTheNearestStep) {
  for (const int group : {32, 128}) {
    for (const bool floats : {false, true}) {
      const int out = 48, in = 416, stride = in + 8;
      auto values = test::random_floats(rng_, int64_t{out} * stride, 0.1f);
      std::fill_n(values.begin() + stride, in, 0.0f);
      const auto rounded = test::to_bfloat16s(values);
      if (!floats) values = test::to_floats(rounded);
      const auto got = rounded_to({.group = group}, floats, values, rounded, out, in, stride);
      for (int row = 0; row < out; ++row) {
        for (int first = 0; first < in; first += group) {
          const int end = std::min(in, first + group);
          float largest = 0;
          for (int i = first; i < end; ++i)
            if (std::abs(values[static_cast<size_t>(row * stride + i)]) > std::abs(largest))
              largest = values[static_cast<size_t>(row * stride + i)];
          const float step = std::abs(largest) / 8 * 1.005f;
          for (int i = first; i < end; ++i) {
            const float value = values[static_cast<size_t>(row * stride + i)];
            // Numbers of the other sign end one step earlier.
            const float bound = std::abs(value) > 7.4f * step ? 1.01f * step : 0.51f * step;
            ASSERT_LE(std::abs(got[static_cast<size_t>(row * in + i)] - value),
                      bound + std::abs(value) / 256)
                << "group " << group << ", row " << row << ", input " << i;
          }
        }
      }
    }
  }
}

TEST_F(CudaInt4, GemmAgreesWithTheReferenceInAllConfigs) {
  if (cuda::device_traits()->compute_capability < 90)
    GTEST_SKIP() << "SKIPPED: gemm_int4 needs code for Hopper";
  std::vector<cuda::Int4GemmConfig> configs;
  for (const bool half : {true, false})
    for (const int groups : {1, 2, 3, 4, 5, 8, 9, 14, 16})
      for (const int splits : {1, 2})
        configs.push_back({.groups = groups, .splits = splits, .half_shared = half});
  int round = 0;
  for (const int rows : {1, 3, 8, 9, 16, 17, 33, 64, 65, 100, 200, 256}) {
    const bool pdl = round++ % 2 == 1;
    check({.rows = rows, .in = 1088, .out = 400}, pdl, configs);
    check({.rows = rows, .in = 512, .out = 784, .format = {32, true}, .residual = true}, !pdl,
          configs);
    check({.rows = rows, .in = 960, .out = 272, .format = {128, true}, .bias = true, .silu = true},
          pdl, configs);
    check({.rows = rows, .in = 2048, .out = 128, .format = {32}, .float_out = true}, !pdl, configs);
    check({.rows = rows, .in = 64, .out = 32, .format = {32}}, pdl, configs);
    check({.rows = rows, .in = 1088, .out = 400, .format = {16}}, pdl, configs);
    check({.rows = rows, .in = 960, .out = 272, .format = {16}, .bias = true, .silu = true}, !pdl,
          configs);
    check({.rows = rows, .in = 2048, .out = 128, .format = {16}, .residual = true}, pdl, configs);
  }
}

TEST_F(CudaInt4, ManyRowsAgreeWithTheReference) {
  for (const bool tune : {false, true}) {
    for (const Int4Format format :
         {Int4Format{.group = 128}, Int4Format{.group = 32, .zeros = true},
          Int4Format{.group = 16}}) {
      check({.rows = 300, .in = 512, .out = 384, .format = format, .tune = tune}, false);
      check({.rows = 300, .in = 416, .out = 384, .format = format, .silu = true, .tune = tune},
            true);
      check({.rows = 300,
             .in = 512,
             .out = 384,
             .format = format,
             .bias = true,
             .residual = true,
             .tune = tune},
            true);
    }
  }
  check({.rows = 5, .in = 512, .out = 384, .residual = true, .tune = true, .row_invariant = true},
        false);
}

}  // namespace
}  // namespace espalier::kernels
