// Attention of encoders against sums in double precision, and rows that must not depend on others.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/attention/bidirectional.h"
#include "kernels/cuda/test_device.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

struct Sequences {
  int heads, dim, sequences, rows;
  int reach = 0;  // rows that a row sees on either side; 0: all
};

// [sequences * rows, 3, heads, dim], as a GEMM of q, k and v leaves it.
std::vector<float> attended(const Sequences& s, const std::vector<float>& qkv, float scale) {
  const size_t width = static_cast<size_t>(s.heads * s.dim), stride = 3 * width;
  const auto rows = static_cast<size_t>(s.rows), dim = static_cast<size_t>(s.dim);
  std::vector<float> out(static_cast<size_t>(s.sequences) * rows * width);
  std::vector<double> weights(rows);
  for (size_t sequence = 0; sequence < static_cast<size_t>(s.sequences); ++sequence)
    for (size_t head = 0; head < static_cast<size_t>(s.heads); ++head)
      for (size_t row = 0; row < rows; ++row) {
        const auto at = [&](size_t of_row, size_t part) {
          return qkv.data() + (sequence * rows + of_row) * stride + part * width + head * dim;
        };
        double most = -1e30, sum = 0;
        for (size_t key = 0; key < rows; ++key) {
          double dot = 0;
          for (size_t i = 0; i < dim; ++i) dot += double{at(row, 0)[i]} * at(key, 1)[i];
          weights[key] = dot * scale;
          const auto reach = static_cast<size_t>(s.reach);
          if (reach > 0 && (key + reach < row || key > row + reach)) weights[key] = -INFINITY;
          most = std::max(most, weights[key]);
        }
        for (double& weight : weights) sum += weight = std::exp(weight - most);
        float* to = out.data() + (sequence * rows + row) * width + head * dim;
        for (size_t i = 0; i < dim; ++i) {
          double value = 0;
          for (size_t key = 0; key < rows; ++key) value += weights[key] * at(key, 2)[i];
          to[i] = static_cast<float>(value / sum);
        }
      }
  return out;
}

class CudaBidirectional : public test::OnDevice {
 protected:
  template <typename T>
  std::vector<T> run(const Sequences& s, DType type, const std::vector<T>& qkv, float scale) {
    const int64_t width = int64_t{s.heads} * s.dim;
    const DeviceArray<T> in(qkv);
    const DeviceArray<T> out(static_cast<size_t>(s.sequences * s.rows * width));
    const Status status = cuda::bidirectional_attention({.type = type,
                                                         .num_heads = s.heads,
                                                         .head_dim = s.dim,
                                                         .sequences = s.sequences,
                                                         .rows = s.rows,
                                                         .q = in.get(),
                                                         .k = in.get() + width,
                                                         .v = in.get() + 2 * width,
                                                         .stride = 3 * width,
                                                         .out = out.get(),
                                                         .out_stride = width,
                                                         .scale = scale,
                                                         .reach = s.reach},
                                                        {});
    EXPECT_TRUE(status.ok()) << status.to_string();
    return out.read();
  }
  std::vector<float> draw(const Sequences& s) {
    return test::random_floats(rng_, int64_t{3} * s.heads * s.dim * s.sequences * s.rows, 1.5);
  }
};

constexpr Sequences kSequences[] = {
    {2, 12, 2, 40},  {2, 8, 3, 17},    {2, 16, 2, 16},  {3, 40, 2, 65},  {2, 64, 1, 1},
    {2, 64, 2, 64},  {4, 64, 3, 577},  {3, 72, 2, 129}, {2, 80, 2, 200}, {2, 96, 1, 131},
    {2, 112, 2, 90}, {2, 128, 3, 257}, {5, 64, 40, 33}};

TEST_F(CudaBidirectional, EqualsTheReference) {
  for (const Sequences& s : kSequences) {
    const float scale = 1 / std::sqrt(static_cast<float>(s.dim));
    const std::vector<float> floats = draw(s);
    const std::vector<float> exact = run<float>(s, DType::kFloat32, floats, scale);
    const double float_error = test::relative_error(exact, attended(s, floats, scale));
    EXPECT_LT(float_error, 1e-5) << s.heads << " " << s.dim << " " << s.rows;
    const std::vector<BFloat16> halves = test::to_bfloat16s(floats);
    const std::vector<float> want = attended(s, test::to_floats(halves), scale);
    const double error =
        test::relative_error(test::to_floats(run(s, DType::kBFloat16, halves, scale)), want);
    EXPECT_LT(error, 6e-3) << s.heads << " " << s.dim << " " << s.rows;
    printf("heads of %d, %d sequences of %d: errors %.2g, %.2g\n", s.dim, s.sequences, s.rows,
           float_error, error);
  }
}

// Rows see some on either side: within a block of keys, across several, and beyond the sequence.
TEST_F(CudaBidirectional, RowsHaveAReach) {
  for (const int dim : {12, 40, 64, 72, 80, 96, 128})
    for (const auto& [rows, reach] : {std::pair{40, 3},
                                      {129, 1},
                                      {300, 20},
                                      {577, 64},
                                      {577, 65},
                                      {200, 127},
                                      {33, 500},
                                      {1, 4}}) {
      const Sequences s{3, dim, 2, rows, reach};
      const std::vector<float> floats = draw(s);
      const std::vector<float> exact = run<float>(s, DType::kFloat32, floats, 0.2f);
      EXPECT_LT(test::relative_error(exact, attended(s, floats, 0.2f)), 1e-5)
          << dim << " " << rows << " " << reach;
      const std::vector<BFloat16> halves = test::to_bfloat16s(floats);
      const std::vector<float> want = attended(s, test::to_floats(halves), 0.2f);
      EXPECT_LT(test::relative_error(test::to_floats(run(s, DType::kBFloat16, halves, 0.2f)), want),
                6e-3)
          << dim << " " << rows << " " << reach;
    }
}

// Large scores move the base of the sums, block after block.
TEST_F(CudaBidirectional, LargeScores) {
  for (const int dim : {64, 72}) {
    const Sequences s{2, dim, 2, 600};
    std::vector<BFloat16> halves = test::to_bfloat16s(draw(s));
    const std::vector<float> want = attended(s, test::to_floats(halves), 2.0f);
    const double error =
        test::relative_error(test::to_floats(run(s, DType::kBFloat16, halves, 2.0f)), want);
    EXPECT_LT(error, 1e-2) << dim;
  }
}

// A sequence's bits are the same alone, whatever stands beside it, even what is not a number.
TEST_F(CudaBidirectional, SequencesDoNotMeet) {
  for (const int dim : {40, 64, 72, 128})
    for (const int rows : {33, 150}) {
      const Sequences all{2, dim, 3, rows}, one{2, dim, 1, rows};
      std::vector<BFloat16> halves = test::to_bfloat16s(draw(all));
      const auto size = static_cast<std::ptrdiff_t>(halves.size() / 3);
      const std::vector<BFloat16> middle(halves.begin() + size, halves.begin() + 2 * size);
      std::fill_n(halves.begin(), size, to_bfloat16(NAN));
      std::fill_n(halves.begin() + 2 * size, size, to_bfloat16(NAN));
      const std::vector<float> beside = test::to_floats(run(all, DType::kBFloat16, halves, 0.1f));
      const std::vector<float> alone = test::to_floats(run(one, DType::kBFloat16, middle, 0.1f));
      for (size_t i = 0; i < alone.size(); ++i)
        ASSERT_EQ(beside[alone.size() + i], alone[i]) << dim << " " << rows << " " << i;
    }
}

// Of sequences of several lengths each has the bits that it has alone: windows of few rows, and
// lengths on both sides of a tile's and a block's.
TEST_F(CudaBidirectional, SequencesHaveLengthsOfTheirOwn) {
  const std::vector<int32_t> short_ones = {1, 64, 16, 5, 48}, mixed = {70, 1, 128, 129, 64, 300};
  for (const int dim : {12, 64, 72, 80, 128})
    for (const std::vector<int32_t>& lengths : {short_ones, mixed}) {
      std::vector<int32_t> begins = {0};
      for (const int32_t length : lengths) begins.push_back(begins.back() + length);
      const Sequences all{2, dim, 1, begins.back()};
      const int64_t width = int64_t{all.heads} * dim;
      for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
        const std::vector<float> floats = draw(all);
        const auto check = [&](auto element) {
          using T = decltype(element);
          std::vector<T> values;
          if constexpr (std::is_same_v<T, float>)
            values = floats;
          else
            values = test::to_bfloat16s(floats);
          const DeviceArray<T> in(values);
          const DeviceArray<T> out(static_cast<size_t>(begins.back() * width));
          const DeviceArray<int32_t> device_begins(begins);
          const Status status = cuda::bidirectional_attention(
              {.type = type,
               .num_heads = all.heads,
               .head_dim = dim,
               .sequences = static_cast<int32_t>(lengths.size()),
               .rows = *std::max_element(lengths.begin(), lengths.end()),
               .begins = device_begins.get(),
               .q = in.get(),
               .k = in.get() + width,
               .v = in.get() + 2 * width,
               .stride = 3 * width,
               .out = out.get(),
               .out_stride = width,
               .scale = 0.2f},
              {});
          ASSERT_TRUE(status.ok()) << status.to_string();
          const std::vector<T> got = out.read();
          for (size_t i = 0; i < lengths.size(); ++i) {
            const Sequences one{all.heads, dim, 1, lengths[i]};
            const auto from = values.begin() + begins[i] * 3 * width;
            const std::vector<T> own(from, from + lengths[i] * 3 * width);
            const auto at = got.begin() + begins[i] * width;
            std::vector<float> made, halves;
            if constexpr (std::is_same_v<T, float>) {
              made.assign(at, at + lengths[i] * width);
              halves = own;
            } else {
              made = test::to_floats(std::vector<T>(at, at + lengths[i] * width));
              halves = test::to_floats(own);
            }
            const double error = test::relative_error(made, attended(one, halves, 0.2f));
            EXPECT_LT(error, type == DType::kFloat32 ? 1e-5 : 6e-3)
                << dim << ", sequence " << i << " of " << lengths[i];
          }
        };
        type == DType::kFloat32 ? check(float{}) : check(BFloat16{});
      }
    }
}

TEST_F(CudaBidirectional, RefusesWhatItDoesNotTake) {
  const DeviceArray<float> memory(64);
  cuda::BidirectionalArgs args{.type = DType::kFloat32,
                               .num_heads = 1,
                               .head_dim = 8,
                               .sequences = 1,
                               .rows = 1,
                               .q = memory.get(),
                               .k = memory.get() + 8,
                               .v = memory.get() + 16,
                               .stride = 24,
                               .out = memory.get() + 24,
                               .out_stride = 8};
  EXPECT_TRUE(cuda::bidirectional_attention(args, {}).ok());
  args.head_dim = 136;
  EXPECT_EQ(cuda::bidirectional_attention(args, {}).code(), StatusCode::kUnimplemented);
  args.head_dim = 8;
  args.stride = 20;
  EXPECT_EQ(cuda::bidirectional_attention(args, {}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier::kernels
