// Collectives by NCCL beside those by peer access, on two GPUs, each rank on a thread of its own.
#include <gmock/gmock.h>

#include <memory>
#include <numeric>
#include <vector>

#include "kernels/collective/cuda.h"
#include "kernels/collective/nccl_library.h"
#include "kernels/cuda/test_device.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/stream.h"
#include "tensor/rank_threads.h"

namespace espalier::kernels::cuda {
namespace {

using test::DeviceArray;
using ::testing::HasSubstr;
namespace ec = espalier::cuda;

class NcclCuda : public test::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (ec::count_devices() < 2) GTEST_SKIP() << "SKIPPED: NCCL joins two GPUs";
    const auto library = nccl_library();
    if (!library) GTEST_SKIP() << "SKIPPED: " << library.error().message();
    for (const int32_t device : {1, 0}) ASSERT_TRUE(ec::open_device(device));
    auto nccl = DeviceGroup::create_nccl({.devices = {0, 1}, .tokens_max = 1000});
    ASSERT_TRUE(nccl) << nccl.error().to_string();
    auto peers = DeviceGroup::create({.devices = {0, 1}, .tokens_max = 1000});
    ASSERT_TRUE(peers) << peers.error().to_string();
    nccl_ = *std::move(nccl), peers_ = *std::move(peers);
  }
  void TearDown() override { static_cast<void>(ec::use_device(0)); }

  // Calls fn(rank, its stream) on each rank's thread and device, then waits for both streams.
  template <typename Fn>
  void each(const Fn& fn) {
    threads_.run([&](int32_t rank) {
      ASSERT_TRUE(ec::use_device(rank).ok());
      auto stream = ec::Stream::create();
      ASSERT_TRUE(stream);
      fn(rank, *stream);
      const Status status = stream->synchronize();
      EXPECT_TRUE(status.ok()) << status.to_string();
    });
  }
  std::vector<BFloat16> draw(int64_t count) {
    return test::to_bfloat16s(test::random_floats(rng_, count, 1));
  }

  RankThreads threads_{2};
  std::unique_ptr<DeviceGroup> nccl_, peers_;
};

std::vector<uint16_t> bits_of(const std::vector<BFloat16>& values) {
  std::vector<uint16_t> out;
  for (const BFloat16 value : values) out.push_back(value.bits);
  return out;
}

// With the residual and the norm behind them, and in graphs, which run twice.
TEST_F(NcclCuda, SumsOfTwoRanksHaveTheBitsOfPeerAccess) {
  constexpr int32_t kDim = 512;
  for (const int32_t rows : {1, 7, 300}) {
    const std::vector<BFloat16> weight = draw(kDim), residual = draw(rows * kDim);
    const std::vector<std::vector<BFloat16>> x = {draw(rows * kDim), draw(rows * kDim)};
    std::vector<BFloat16> got[2][2], normed[2][2];  // by rank; of NCCL, of peer access
    for (const int kind : {0, 1}) {
      DeviceGroup& group = kind == 0 ? *nccl_ : *peers_;
      std::unique_ptr<DeviceArray<BFloat16>> sums[2];
      each([&](int32_t rank, ec::Stream&) {
        const auto at = static_cast<size_t>(rank);
        sums[rank] = std::make_unique<DeviceArray<BFloat16>>(x[at]);
        group.rank(rank).set_buffers({sums[rank]->get()});
      });
      ASSERT_TRUE(group.connect().ok());
      each([&](int32_t rank, ec::Stream& stream) {
        DeviceArray<BFloat16> sum(residual);
        const DeviceArray<BFloat16> norm(weight), y(residual.size());
        const auto run = [&] {
          return group.rank(rank).all_reduce({.x = sums[rank]->get(),
                                              .rows = rows,
                                              .dim = kDim,
                                              .residual = sum.get(),
                                              .residual_stride = kDim,
                                              .norm_weight = norm.get(),
                                              .y = y.get(),
                                              .y_stride = kDim},
                                             {.stream = stream.get()});
        };
        const auto graph = ec::Graph::capture(stream, run);
        ASSERT_TRUE(graph) << graph.error().to_string();
        for (int i = 0; i < 2; ++i) {
          sum.set(residual);
          sums[rank]->set(x[static_cast<size_t>(rank)]);
          ASSERT_TRUE(graph->launch(stream).ok());
          ASSERT_TRUE(stream.synchronize().ok());
        }
        got[rank][kind] = sum.read(), normed[rank][kind] = y.read();
      });
      EXPECT_TRUE(group.status().ok()) << group.status().to_string();
    }
    EXPECT_EQ(bits_of(got[0][0]), bits_of(got[0][1])) << rows;
    EXPECT_EQ(bits_of(got[1][0]), bits_of(got[0][0])) << rows;
    EXPECT_EQ(bits_of(normed[0][0]), bits_of(normed[0][1])) << rows;
    EXPECT_EQ(bits_of(normed[1][0]), bits_of(normed[0][0])) << rows;
  }
}

// Rows that take the buffers several times, and rank 1 does not want them.
TEST_F(NcclCuda, PartsOfRowsLieSideBySide) {
  for (const auto& [rows, columns] : {std::pair{1, 24}, {5, 30}, {70, 64128}}) {
    const int64_t part_stride = columns + 8, out_stride = int64_t{columns} * 2 + 6;
    std::vector<std::vector<float>> parts;
    for (int r = 0; r < 2; ++r) parts.push_back(test::random_floats(rng_, rows * part_stride, 1));
    std::vector<float> got;
    each([&](int32_t rank, ec::Stream& stream) {
      const DeviceArray<float> part(parts[static_cast<size_t>(rank)]);
      const DeviceArray<float> out(static_cast<size_t>(rows * out_stride));
      const Status status = nccl_->rank(rank).all_gather({.part = part.get(),
                                                          .part_stride = part_stride,
                                                          .rows = rows,
                                                          .columns = columns,
                                                          .out = rank == 0 ? out.get() : nullptr,
                                                          .out_stride = out_stride},
                                                         {.stream = stream.get()});
      EXPECT_TRUE(status.ok()) << status.to_string();
      ASSERT_TRUE(stream.synchronize().ok());
      if (rank == 0) got = out.read();
    });
    size_t num_wrong = 0;
    for (int row = 0; row < rows; ++row)
      for (int r = 0; r < 2; ++r)
        for (int c = 0; c < columns; ++c)
          num_wrong += got[static_cast<size_t>(row * out_stride + r * columns + c)] !=
                       parts[static_cast<size_t>(r)][static_cast<size_t>(row * part_stride + c)];
    EXPECT_EQ(num_wrong, 0u) << rows << " x " << columns;
  }
}

TEST_F(NcclCuda, TokensOfRankZeroAreThoseOfAll) {
  const std::vector<int32_t> slots = {3, -1, 0, 9, 4};
  std::vector<int32_t> got[2];
  each([&](int32_t rank, ec::Stream& stream) {
    std::vector<int32_t> tokens(10);
    std::iota(tokens.begin(), tokens.end(), 100 * (rank + 1));
    const DeviceArray<int32_t> row_slots(slots), slot_tokens(tokens);
    const Status status = nccl_->rank(rank).share_tokens(
        {.row_slots = row_slots.get(), .rows = 5, .slot_tokens = slot_tokens.get()},
        {.stream = stream.get()});
    EXPECT_TRUE(status.ok()) << status.to_string();
    ASSERT_TRUE(stream.synchronize().ok());
    got[rank] = slot_tokens.read();
  });
  EXPECT_THAT(got[0], testing::ElementsAre(100, 101, 102, 103, 104, 105, 106, 107, 108, 109));
  EXPECT_THAT(got[1], testing::ElementsAre(100, 201, 202, 103, 104, 205, 206, 207, 208, 109));
}

// A rank waits for one that never comes; afterwards all is refused.
TEST_F(NcclCuda, StoppingEndsARankThatWaits) {
  each([&](int32_t rank, ec::Stream& stream) {
    if (rank == 1) return;
    const DeviceArray<BFloat16> x(static_cast<size_t>(64));
    const AllReduceArgs args{.x = x.get(), .rows = 1, .dim = 64};
    EXPECT_TRUE(nccl_->rank(0).all_reduce(args, {.stream = stream.get()}).ok());
    nccl_->stop();
    EXPECT_TRUE(stream.synchronize().ok());
    const Status refused = nccl_->rank(0).all_reduce(args, {.stream = stream.get()});
    EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
    EXPECT_THAT(refused.message(), HasSubstr("stopped"));
  });
  EXPECT_FALSE(nccl_->status().ok());
}

TEST_F(NcclCuda, RefusesOneDeviceTwice) {
  EXPECT_FALSE(DeviceGroup::create_nccl({.devices = {0, 0}}));
  EXPECT_FALSE(DeviceGroup::create_nccl({.devices = {}}));
}

}  // namespace
}  // namespace espalier::kernels::cuda
