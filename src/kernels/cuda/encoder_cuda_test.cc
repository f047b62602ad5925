// What encoders of pictures have between their GEMMs, against formulas in double precision.
#include <cmath>
#include <cstring>

#include "kernels/activation/cuda.h"
#include "kernels/activation/gelu.h"
#include "kernels/cuda/test_device.h"
#include "kernels/embedding/cuda.h"
#include "kernels/norm/cuda.h"
#include "kernels/rope/cuda.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

// Elements of one type: the host's are rounded to it.
template <typename T>
std::vector<T> elements(const std::vector<float>& floats) {
  if constexpr (std::is_same_v<T, float>) {
    return floats;
  } else {
    return test::to_bfloat16s(floats);
  }
}
template <typename T>
float value(T element) {
  if constexpr (std::is_same_v<T, float>) {
    return element;
  } else {
    return espalier::to_float(element);
  }
}

class CudaEncoderKernels : public test::OnDevice {
 protected:
  template <typename T>
  static constexpr DType kType = std::is_same_v<T, float> ? DType::kFloat32 : DType::kBFloat16;
  // One rounding to the type, and float32's own.
  template <typename T>
  static constexpr double kTolerance = std::is_same_v<T, float> ? 1e-5 : 0.006;

  template <typename T>
  void check_gelu(Gelu kind, int32_t dim, bool in_place) {
    const auto rows = static_cast<int32_t>(rng_.between(1, 40));
    const std::vector<T> x = elements<T>(test::random_floats(rng_, int64_t{rows} * dim, 3.0));
    const DeviceArray<T> in(x), other(x.size());
    const DeviceArray<T>& out = in_place ? in : other;
    const Status status = cuda::gelu({.type = kType<T>,
                                      .kind = kind,
                                      .x = in.get(),
                                      .x_stride = dim,
                                      .y = out.get(),
                                      .y_stride = dim,
                                      .rows = rows,
                                      .dim = dim},
                                     {});
    ASSERT_TRUE(status.ok()) << status.to_string();
    const std::vector<T> got = out.read();
    for (size_t i = 0; i < got.size(); ++i) {
      const double v = value(x[i]);
      const double want = kind == Gelu::kErf ? v / 2 * (1 + std::erf(v / std::sqrt(2.0)))
                                             : v / (1 + std::exp(-1.702 * v));
      ASSERT_NEAR(value(got[i]), want, kTolerance<T> * std::max(1.0, std::abs(want))) << v;
    }
  }

  // Behind its gate, as GeGLU has it.
  template <typename T>
  void check_gated_gelu(int32_t dim) {
    const int32_t rows = 21;
    const std::vector<T> x = elements<T>(test::random_floats(rng_, int64_t{rows} * dim * 2, 2.0));
    const DeviceArray<T> in(x);
    const Status status = cuda::gelu({.type = kType<T>,
                                      .x = in.get(),
                                      .x_stride = 2 * dim,
                                      .up = in.get() + dim,
                                      .up_stride = 2 * dim,
                                      .y = in.get(),
                                      .y_stride = 2 * dim,
                                      .rows = rows,
                                      .dim = dim},
                                     {});
    ASSERT_TRUE(status.ok()) << status.to_string();
    const std::vector<T> got = in.read();
    for (int32_t i = 0; i < rows * dim; ++i) {
      const auto at = static_cast<size_t>(i / dim * 2 * dim + i % dim);
      const double v = value(x[at]), up = value(x[at + static_cast<size_t>(dim)]);
      const double want = v / 2 * (1 + std::erf(v / std::sqrt(2.0))) * up;
      ASSERT_NEAR(value(got[at]), want, kTolerance<T> * std::max(1.0, std::abs(want))) << v;
    }
  }

  template <typename T>
  void check_pooled(int32_t dim, bool largest) {
    const std::vector<int32_t> begins = {0, 1, 8, 300, 301};
    const std::vector<T> x = elements<T>(test::random_floats(rng_, int64_t{301} * dim, 1.0));
    const DeviceArray<T> in(x);
    const DeviceArray<int32_t> of(begins);
    const DeviceArray<float> out(static_cast<size_t>(4 * dim));
    const Status status = cuda::pool_rows({.type = kType<T>,
                                           .x = in.get(),
                                           .x_stride = dim,
                                           .begins = of.get(),
                                           .texts = 4,
                                           .dim = dim,
                                           .largest = largest,
                                           .y = out.get()},
                                          {});
    ASSERT_TRUE(status.ok()) << status.to_string();
    const std::vector<float> got = out.read();
    for (size_t text = 0; text < 4; ++text)
      for (size_t i = 0; i < static_cast<size_t>(dim); ++i) {
        double sum = 0, most = -1e30;
        for (int32_t row = begins[text]; row < begins[text + 1]; ++row) {
          const double v = value(x[static_cast<size_t>(row * dim) + i]);
          sum += v;
          most = std::max(most, v);
        }
        const double want = largest ? most : sum / (begins[text + 1] - begins[text]);
        ASSERT_NEAR(got[text * static_cast<size_t>(dim) + i], want, 1e-5) << text << " " << i;
      }
  }

  template <typename T>
  void check_patches(bool class_row, int32_t features) {
    const auto pictures = static_cast<int32_t>(rng_.between(1, 4));
    const int32_t patches = 5, rows = patches + (class_row ? 1 : 0);
    const int32_t columns = (features + 7) / 8 * 8;
    const std::vector<float> x = test::random_floats(rng_, int64_t{pictures} * patches * features);
    const DeviceArray<float> in(x);
    const DeviceArray<T> out(static_cast<size_t>(pictures * rows * columns));
    const Status status = cuda::place_patches({.type = kType<T>,
                                               .patches = in.get(),
                                               .pictures = pictures,
                                               .patches_each = patches,
                                               .features = features,
                                               .class_row = class_row,
                                               .out = out.get(),
                                               .columns = columns},
                                              {});
    ASSERT_TRUE(status.ok()) << status.to_string();
    const std::vector<T> got = out.read();
    for (int32_t i = 0; i < static_cast<int32_t>(got.size()); ++i) {
      const int32_t column = i % columns, row = i / columns % rows - (class_row ? 1 : 0);
      const auto at = static_cast<size_t>((i / columns / rows * patches + row) * features + column);
      const float want = row < 0 || column >= features ? 0.0f : x[at];
      ASSERT_NEAR(value(got[static_cast<size_t>(i)]), want, kTolerance<T> * std::abs(want)) << i;
    }
  }

  // Pairs turn by the place's component of their section.
  template <typename T>
  void check_rope(int32_t heads, int32_t dim) {
    const auto rows = static_cast<int32_t>(rng_.between(1, 30));
    const int32_t half = dim / 2, stride = 3 * heads * dim;
    const int32_t ends[2] = {half / 4, half / 2 + 1};
    std::vector<T> x = elements<T>(test::random_floats(rng_, int64_t{rows} * stride, 1.0));
    std::vector<int32_t> places;
    for (int32_t i = 0; i < 3 * rows; ++i)
      places.push_back(static_cast<int32_t>(rng_.between(0, 90)));
    const std::vector<float> frequencies = test::random_floats(rng_, half, 0.5);
    const DeviceArray<T> in(x);
    const DeviceArray<int32_t> device_places(places);
    const DeviceArray<float> device_frequencies(frequencies);
    const Status status = cuda::placed_rope({.type = kType<T>,
                                             .x = in.get(),
                                             .x_stride = stride,
                                             .rows = rows,
                                             .heads = heads,
                                             .head_dim = dim,
                                             .rotary_dim = dim,
                                             .places = device_places.get(),
                                             .section_ends = {ends[0], ends[1]},
                                             .frequencies = device_frequencies.get()},
                                            {});
    ASSERT_TRUE(status.ok()) << status.to_string();
    const std::vector<T> got = in.read();
    for (int32_t i = 0; i < static_cast<int32_t>(got.size()); ++i) {
      const int32_t row = i / stride, column = i % stride, at = column % dim, pair = at % half;
      const auto here = static_cast<size_t>(i);
      if (column >= heads * dim) {  // what is behind the heads stays
        ASSERT_EQ(value(got[here]), value(x[here]));
        continue;
      }
      const int component = (pair >= ends[0]) + (pair >= ends[1]);
      const float angle = static_cast<float>(places[static_cast<size_t>(3 * row + component)]) *
                          frequencies[static_cast<size_t>(pair)];
      const double c = std::cos(double{angle}), s = std::sin(double{angle});
      const double other =
          value(x[at < half ? here + static_cast<size_t>(half) : here - static_cast<size_t>(half)]);
      const double want = value(x[here]) * c + (at < half ? -other : other) * s;
      ASSERT_NEAR(value(got[here]), want, kTolerance<T> * std::max(1.0, std::abs(want))) << i;
    }
  }

  template <typename T>
  void check_mixed(int32_t dim) {
    constexpr int32_t kFrom = 12;
    const std::vector<T> x = elements<T>(test::random_floats(rng_, int64_t{kFrom} * dim, 1.0));
    const std::vector<T> apart = elements<T>(test::random_floats(rng_, dim, 1.0));
    std::vector<MixedRow> rows = {MixedRow::of(3), MixedRow{}, MixedRow::of(0)};
    for (int i = 0; i < 20; ++i) {
      MixedRow& row = rows.emplace_back();
      for (int32_t& corner : row.corners) corner = static_cast<int32_t>(rng_.below(kFrom));
      row.across = static_cast<float>(rng_.below(5)) / 5;
      row.down = static_cast<float>(rng_.below(5)) / 5;
    }
    const DeviceArray<T> in(x), device_apart(apart);
    const DeviceArray<MixedRow> device_rows(rows);
    const DeviceArray<T> out(rows.size() * static_cast<size_t>(dim));
    const Status status = cuda::mix_rows({.type = kType<T>,
                                          .x = in.get(),
                                          .apart = device_apart.get(),
                                          .rows = device_rows.get(),
                                          .count = static_cast<int32_t>(rows.size()),
                                          .dim = dim,
                                          .out = out.get()},
                                         {});
    ASSERT_TRUE(status.ok()) << status.to_string();
    const std::vector<T> got = out.read();
    for (size_t i = 0; i < got.size(); ++i) {
      const MixedRow& row = rows[i / static_cast<size_t>(dim)];
      const size_t column = i % static_cast<size_t>(dim);
      const auto corner = [&](int at) {
        return double{value(row.corners[0] < 0
                                ? apart[column]
                                : x[static_cast<size_t>(row.corners[at] * dim) + column])};
      };
      const double upper = corner(0) + row.across * (corner(1) - corner(0));
      const double lower = corner(2) + row.across * (corner(3) - corner(2));
      const double want = upper + row.down * (lower - upper);
      ASSERT_NEAR(value(got[i]), want, kTolerance<T> * std::max(1.0, std::abs(want))) << i;
      if (row.across == 0 && row.down == 0) {
        ASSERT_EQ(double{value(got[i])}, corner(0)) << i;
      }
    }
  }
};

TEST_F(CudaEncoderKernels, GatedGelusAndPooledRows) {
  for (const int32_t dim : {8, 13, 64, 1152}) {
    check_gated_gelu<float>(dim);
    check_gated_gelu<BFloat16>(dim);
    for (const bool largest : {false, true}) {
      check_pooled<float>(dim, largest);
      check_pooled<BFloat16>(dim, largest);
    }
  }
}

// A layer scale in place, the mean of parts, and rows that are gathered from any row on.
template <typename T>
std::vector<T> of_floats(Rng& rng, int64_t count) {
  return elements<T>(test::random_floats(rng, count, 1.0));
}

TEST_F(CudaEncoderKernels, ScalesMeansAndMergedRows) {
  const auto check = [&]<typename T>(T, int32_t dim) {
    const int32_t parts = 4, rows = 9;
    const std::vector<T> x = of_floats<T>(rng_, int64_t{rows} * parts * dim);
    const std::vector<T> weight = of_floats<T>(rng_, dim);
    const DeviceArray<T> in(x), scale(weight), mean(static_cast<size_t>(rows * dim));
    const Status averaged = cuda::mean_parts({.type = kType<T>,
                                              .x = in.get(),
                                              .x_stride = parts * dim,
                                              .y = mean.get(),
                                              .y_stride = dim,
                                              .rows = rows,
                                              .parts = parts,
                                              .dim = dim},
                                             {});
    ASSERT_TRUE(averaged.ok()) << averaged.to_string();
    const std::vector<T> means = mean.read();
    for (int32_t i = 0; i < rows * dim; ++i) {
      double sum = 0;
      for (int32_t part = 0; part < parts; ++part)
        sum += value(x[static_cast<size_t>((i / dim * parts + part) * dim + i % dim)]);
      ASSERT_NEAR(value(means[static_cast<size_t>(i)]), sum / parts, kTolerance<T>) << i;
    }
    const std::vector<int32_t> first = {1, 5, 32, 0};
    const DeviceArray<int32_t> ids(first);
    const DeviceArray<T> merged(first.size() * static_cast<size_t>(parts * dim));
    const Status gathered = cuda::gather_rows({.type = kType<T>,
                                               .table = in.get(),
                                               .num_rows = rows * parts - parts + 1,
                                               .table_stride = dim,
                                               .dim = parts * dim,
                                               .ids = ids.get(),
                                               .out = merged.get(),
                                               .out_stride = parts * dim,
                                               .tokens = static_cast<int32_t>(first.size())},
                                              {});
    ASSERT_TRUE(gathered.ok()) << gathered.to_string();
    const std::vector<T> got = merged.read();
    for (size_t i = 0; i < got.size(); ++i) {
      const auto width = static_cast<size_t>(parts * dim);
      const size_t from = static_cast<size_t>(first[i / width] * dim) + i % width;
      ASSERT_EQ(value(got[i]), value(x[from])) << i;
    }
    const Status scaled = cuda::scale_columns({.type = kType<T>,
                                               .x = in.get(),
                                               .x_stride = dim,
                                               .weight = scale.get(),
                                               .y = in.get(),
                                               .y_stride = dim,
                                               .rows = rows * parts,
                                               .dim = dim},
                                              {});
    ASSERT_TRUE(scaled.ok()) << scaled.to_string();
    const std::vector<T> after = in.read();
    for (size_t i = 0; i < after.size(); ++i) {
      const double want = double{value(x[i])} * double{value(weight[i % static_cast<size_t>(dim)])};
      ASSERT_NEAR(value(after[i]), want, kTolerance<T> * std::max(1.0, std::abs(want))) << i;
    }
  };
  for (const int32_t dim : {8, 24, 1152}) {
    check(float{}, dim);
    check(BFloat16{}, dim);
  }
}

TEST_F(CudaEncoderKernels, RopeByPlaces) {
  for (const int32_t dim : {12, 64, 80, 128})
    for (const int32_t heads : {1, 7, 32}) {
      check_rope<float>(heads, dim);
      check_rope<BFloat16>(heads, dim);
    }
  EXPECT_EQ(cuda::placed_rope({.rows = 1, .heads = 1, .head_dim = 8, .rotary_dim = 16}, {}).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(CudaEncoderKernels, MixedRows) {
  for (const int32_t dim : {8, 32, 4096}) {
    check_mixed<float>(dim);
    check_mixed<BFloat16>(dim);
  }
  EXPECT_EQ(cuda::mix_rows({.count = 1, .dim = 12}, {}).code(), StatusCode::kInvalidArgument);
}

TEST_F(CudaEncoderKernels, Gelu) {
  for (const Gelu kind : {Gelu::kErf, Gelu::kQuick})
    for (const int32_t dim : {8, 30, 4096, 4304})
      for (const bool in_place : {false, true}) {
        check_gelu<float>(kind, dim, in_place);
        check_gelu<BFloat16>(kind, dim, in_place);
      }
}

TEST_F(CudaEncoderKernels, Patches) {
  for (const bool class_row : {false, true})
    for (const int32_t features : {8, 27, 588}) {
      check_patches<float>(class_row, features);
      check_patches<BFloat16>(class_row, features);
    }
}

}  // namespace
}  // namespace espalier::kernels
