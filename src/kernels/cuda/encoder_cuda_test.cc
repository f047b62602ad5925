// What encoders of pictures have between their GEMMs, against formulas in double precision.
#include <cmath>
#include <cstring>

#include "kernels/activation/cuda.h"
#include "kernels/activation/gelu.h"
#include "kernels/cuda/test_device.h"
#include "kernels/embedding/cuda.h"

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
};

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
