#include "kernels/activation/gelu.h"

#include <cmath>

#include "kernels/cpu/test_support.h"

namespace espalier::kernels {
namespace {

using test::random_floats;

class GeluTest : public test::EachIsa {};

double gelu_in_double(Gelu kind, double v) {
  return kind == Gelu::kErf ? v / 2 * (1 + std::erf(v / std::sqrt(2.0)))
                            : v / (1 + std::exp(-1.702 * v));
}

TEST_P(GeluTest, AgreesWithDoubles) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const int64_t rows = 33, dim = 1001, stride = 1003;
  std::vector<float> x = random_floats(rng_, rows * stride, 4);
  const float edges[] = {-200, -20, -9, -0.0f, 0, 9, 20, 200};
  std::copy(std::begin(edges), std::end(edges), x.begin());
  for (const Gelu kind : {Gelu::kErf, Gelu::kQuick}) {
    std::vector<float> y(x.size(), 7);
    GeluArgs args = {.kind = kind,
                     .x = x.data(),
                     .x_stride = stride,
                     .y = y.data(),
                     .y_stride = stride,
                     .rows = rows,
                     .dim = dim};
    gelu(*backend, args);
    for (int64_t i = 0; i < rows * stride; ++i) {
      const auto at = static_cast<size_t>(i);
      if (i % stride >= dim) {
        ASSERT_EQ(y[at], 7) << i;
        continue;
      }
      // A few roundings of the result, and of 1 + erf where that cancels.
      const double expected = gelu_in_double(kind, x[at]);
      ASSERT_NEAR(y[at], expected, 16 * 0x1.0p-24 * (1 + std::abs(expected))) << x[at];
    }
    std::vector<float> in_place = x;
    args.x = args.y = in_place.data();
    gelu(*backend, args);
    for (int64_t i = 0; i < dim; ++i)
      ASSERT_EQ(in_place[static_cast<size_t>(i)], y[static_cast<size_t>(i)]);
  }
}

ESP_EACH_ISA(GeluTest);

}  // namespace
}  // namespace espalier::kernels
