#include "kernels/lora/op.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/test_support.h"

namespace espalier::kernels {
namespace {

using test::random_floats;

class LoraTest : public test::EachIsa {
 protected:
  LoraTest() : pool_(2), backend_(backend_on(pool_)) {}
  LoraFactors factors(int64_t rank, int64_t in, int64_t out, DType type) {
    auto packed = LoraFactors::pack(random_floats(rng_, rank * in), random_floats(rng_, rank * out),
                                    rank, 0.5f, type);
    EXPECT_TRUE(packed) << packed.error().message();
    return *std::move(packed);
  }
  WorkPool pool_;
  std::unique_ptr<CpuBackend> backend_;
};

TEST_P(LoraTest, AddsTheFactorsOfEachSegment) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto [in, out] :
         {std::array<int64_t, 2>{64, 48}, {77, 1029}, {2048, 2500}, {5, 3}}) {
      const LoraFactors one = factors(16, in, out, type), two = factors(9, in, out, type);
      const int64_t x_stride = in + 3, y_stride = 2 * out + 5, rows = 9;
      const std::vector<float> x = random_floats(rng_, rows * x_stride);
      std::vector<float> y = random_floats(rng_, rows * y_stride), expected = y;
      // Rows 0 and 8 have no adapter; `one` adds to columns of two matrices.
      const LoraSegment segments[] = {{&one, 1, 2, 0}, {&one, 1, 2, out + 1}, {&two, 3, 5, 1}};
      LoraArgs args = {x.data(), x_stride, y.data(), y_stride, segments};
      lora(*backend_, args);
      args.y = expected.data();
      reference::lora(args);
      // A sum of `in` terms of deviation 1, times b, over the ranks.
      const double tolerance = 16 * 0x1.0p-24 * std::sqrt(static_cast<double>(in)) * 16 * 8;
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_NEAR(y[i], expected[i], tolerance * std::max(1.0f, std::abs(expected[i]))) << i;
    }
  }
}

// The same row has the same bits alone and among others, with one thread and with several.
TEST_P(LoraTest, ARowDependsOnNothingBesideIt) {
  const int64_t in = 333, out = 2111, rows = 40;
  const LoraFactors f = factors(33, in, out, DType::kBFloat16);
  const LoraFactors other = factors(8, in, out, DType::kBFloat16);
  const std::vector<float> x = random_floats(rng_, rows * in);
  const std::vector<float> before = random_floats(rng_, rows * out);
  std::vector<float> together = before;
  const LoraSegment segments[] = {{&other, 0, 3, 0}, {&f, 3, rows - 3, 0}};
  lora(*backend_, {x.data(), in, together.data(), out, segments});
  WorkPool alone_pool(1);
  const auto alone_backend = backend_on(alone_pool);
  for (int64_t row = 3; row < rows; ++row) {
    std::vector<float> alone(before.begin() + row * out, before.begin() + (row + 1) * out);
    const LoraSegment segment[] = {{&f, 0, 1, 0}};
    lora(*alone_backend, {x.data() + row * in, in, alone.data(), out, segment});
    ASSERT_EQ(std::memcmp(alone.data(), together.data() + row * out, alone.size() * 4), 0) << row;
  }
}

TEST_P(LoraTest, NoSegmentsChangeNothing) {
  std::vector<float> y = {1, 2};
  lora(*backend_, {nullptr, 0, y.data(), 2, {}});
  EXPECT_EQ(y, (std::vector<float>{1, 2}));
}

ESP_EACH_ISA(LoraTest);

}  // namespace
}  // namespace espalier::kernels
