// Shards of matrices: the ranks' parts make the whole.
#include "models/weight_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tensor/work_pool.h"

namespace espalier {
namespace {

constexpr int64_t kIn = 64;

MatrixLayout layout_of(Shard shard) {
  return {.blocks = {{"q.weight", 32}, {"k.weight", 16}}, .in_features = kIn, .shard = shard};
}

class ShardedMatrix : public testing::Test {
 protected:
  // x W^T of one row of x, whose columns begin at `first`.
  std::vector<float> multiply(const Shard& shard, int64_t first) {
    DummySource source(7, DType::kFloat32, pool_);
    WeightReader reader(*backend_, source, DType::kFloat32);
    kernels::PackedMatrix matrix;
    EXPECT_TRUE(reader.matrix(layout_of(shard), matrix).ok());
    std::vector<float> x(static_cast<size_t>(kIn)), y(static_cast<size_t>(matrix.out_features()));
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
    kernels::linear(*backend_, matrix,
                    {.x = x.data() + first,
                     .x_stride = kIn,
                     .y = y.data(),
                     .y_stride = matrix.out_features(),
                     .rows = 1});
    return y;
  }

  WorkPool pool_{1};
  std::unique_ptr<kernels::CpuBackend> backend_ = *kernels::CpuBackend::create(pool_);
};

TEST_F(ShardedMatrix, OfRowsHasEqualPartsOfEachBlock) {
  const std::vector<float> whole = multiply({}, 0);
  const std::vector<float> first = multiply({Shard::Axis::kRows, 0, 2}, 0);
  const std::vector<float> second = multiply({Shard::Axis::kRows, 1, 2}, 0);
  ASSERT_EQ(first.size(), 24u);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(first[i], whole[i]) << i;      // of q
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(first[16 + i], whole[32 + i]);  // of k
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(second[i], whole[16 + i]) << i;
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(second[16 + i], whole[40 + i]);
}

TEST_F(ShardedMatrix, OfColumnsAddsUpToTheWhole) {
  const std::vector<float> whole = multiply({}, 0);
  const std::vector<float> first = multiply({Shard::Axis::kColumns, 0, 2}, 0);
  const std::vector<float> second = multiply({Shard::Axis::kColumns, 1, 2}, kIn / 2);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(first[i] + second[i], whole[i], 1e-5f);
}

TEST_F(ShardedMatrix, RefusesAnUnevenDivision) {
  DummySource source(7, DType::kFloat32, pool_);
  WeightReader reader(*backend_, source, DType::kFloat32);
  kernels::PackedMatrix matrix;
  const Status status = reader.matrix(layout_of({Shard::Axis::kRows, 0, 3}), matrix);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.to_string(), testing::HasSubstr("'q.weight': 32 rows"));
}

}  // namespace
}  // namespace espalier
