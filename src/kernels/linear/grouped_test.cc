// Rows of several matrices in one call, beside a call for each.
#include <cstring>

#include "kernels/cpu/test_support.h"
#include "kernels/linear/op.h"

namespace espalier::kernels {
namespace {

using test::random_floats;

// Matrices of equal shape, held as numbers or in blocks.
std::vector<PackedMatrix> matrices(CpuBackend& backend, Rng& rng, size_t count, int64_t in,
                                   int64_t out, DType type, std::optional<BlockFormat> format,
                                   bool gate_up) {
  std::vector<PackedMatrix> result;
  for (size_t i = 0; i < count; ++i) {
    const std::vector<float> numbers = random_floats(rng, 2 * out * in, 0.1);
    const WeightRows blocks[] = {{numbers.data(), DType::kFloat32, out},
                                 {numbers.data() + out * in, DType::kFloat32, out}};
    auto packed =
        PackedMatrix::pack(backend, {in, type, {blocks, gate_up ? 2u : 1u}, gate_up, format});
    EXPECT_TRUE(packed) << packed.error().message();
    result.push_back(std::move(*packed));
  }
  return result;
}

class GroupedTest : public test::EachIsa {
 protected:
  void expect_bits_of_single_calls(int threads, DType type, std::optional<BlockFormat> format,
                                   bool gate_up) {
    WorkPool pool(threads);
    auto backend = backend_on(pool);
    const int64_t in = 320, out = 83;
    // Fewer rows than tiles take, none, more than a tile, and whole tiles.
    const std::vector<int64_t> rows = {1, 0, 4, 37, 5, 16, 1, 0};
    const auto w = matrices(*backend, rng_, rows.size(), in, out, type, format, gate_up);
    const std::vector<float> bias = random_floats(rng_, out);
    std::vector<LinearGroup> groups;
    int64_t all = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool with_bias = !gate_up && i % 2 == 0;
      groups.push_back({.w = &w[i], .rows = rows[i], .bias = with_bias ? bias.data() : nullptr});
      all += rows[i];
    }
    const std::vector<float> x = random_floats(rng_, all * in);
    std::vector<float> y(static_cast<size_t>(all * out)), expected(y.size());
    LinearArgs args = {.x = x.data(), .x_stride = in, .y = y.data(), .y_stride = out, .rows = all};
    gate_up ? linear_silu_mul_grouped(*backend, groups, args)
            : linear_grouped(*backend, groups, args);
    args.y = expected.data();
    for (const LinearGroup& group : groups) {
      args.rows = group.rows;
      args.bias = group.bias;
      gate_up ? linear_silu_mul(*backend, *group.w, args) : linear(*backend, *group.w, args);
      args.x += group.rows * in;
      args.y += group.rows * out;
    }
    ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0);
  }
};

TEST_P(GroupedTest, ARowHasTheBitsOfACallWithItsMatrixAlone) {
  struct Held {
    DType type;
    std::optional<BlockFormat> format;
  };
  for (const auto& [type, format] :
       {Held{DType::kFloat32, {}}, Held{DType::kBFloat16, {}},
        Held{DType::kBFloat16, BlockFormat::kQ8_0}, Held{DType::kBFloat16, BlockFormat::kQ4K}}) {
    for (const bool gate_up : {false, true}) {
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(testing::Message() << dtype_name(type) << " " << format.has_value()
                                        << " gate_up " << gate_up << " threads " << threads);
        expect_bits_of_single_calls(threads, type, format, gate_up);
      }
    }
  }
}

TEST_P(GroupedTest, NoRowsDoNothing) {
  WorkPool pool(1);
  auto backend = backend_on(pool);
  const auto w = matrices(*backend, rng_, 1, 32, 32, DType::kFloat32, {}, false);
  const LinearGroup group = {.w = &w[0], .rows = 0};
  linear_grouped(*backend, {&group, 1}, {.x_stride = 32, .y_stride = 32, .rows = 0});
  linear_grouped(*backend, {}, {.rows = 0});
}

ESP_EACH_ISA(GroupedTest);

}  // namespace
}  // namespace espalier::kernels
