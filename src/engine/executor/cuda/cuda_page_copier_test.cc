// Pages between a GPU and the host: the bytes of every plane arrive, from pinned memory and from
// other, several at a time, beside a stream that works.
#include "engine/executor/cuda/cuda_page_copier.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "cache/kv_pool.h"
#include "engine/executor/cuda/device_planes.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

class CudaPageCopierTest : public testing::Test {
 protected:
  static constexpr int32_t kPages = 16;

  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    stream_ = cuda::Stream::create().value();
  }
  KvPool device_pool(const KvPoolConfig& config) {
    return KvPool::create(config, allocate_device_planes).value();
  }
  // Random pages go there and come back, in planes as they lie in the host's pool.
  void check(const KvPoolConfig& config, bool pinned) {
    const KvPool host = KvPool::create(config).value(), device = device_pool(config);
    Rng rng(7);
    const auto reference = make_host_page_copier(host.view()).value();
    auto made = CudaPageCopier::create(device.view());
    ASSERT_TRUE(made) << made.error().to_string();
    CudaPageCopier& copier = **made;
    const int64_t page_bytes = copier.page_bytes();
    ASSERT_EQ(page_bytes, reference->page_bytes());
    std::vector<std::byte> bytes(static_cast<size_t>(kPages * page_bytes)), back(bytes.size());
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
    if (pinned) {
      ASSERT_TRUE(copier.pin(bytes).ok());
      ASSERT_TRUE(copier.pin(back).ok());
    }
    const auto page_of = [&](std::vector<std::byte>& all, PageId page) {
      return std::span(all).subspan(static_cast<size_t>(page * page_bytes),
                                    static_cast<size_t>(page_bytes));
    };
    std::vector<PageCopier::Transfer> transfers;
    for (PageId page = 0; page < kPages; ++page) {
      ASSERT_TRUE(reference->write_page(page, page_of(bytes, page)).ok());
      transfers.push_back(copier.begin_write(page, page_of(bytes, page)));
    }
    for (const auto transfer : transfers) ASSERT_TRUE(copier.finish(transfer).ok());
    expect_planes(host.view(), device.view());
    transfers.clear();
    for (PageId page = 0; page < kPages; ++page)
      transfers.push_back(copier.begin_read(page, page_of(back, page)));
    for (const auto transfer : transfers) ASSERT_TRUE(copier.finish(transfer).ok());
    EXPECT_EQ(back, bytes);
    if (pinned) {
      copier.unpin(bytes);
      copier.unpin(back);
    }
  }
  void expect_planes(const KvView& host, const KvView& device) {
    for (size_t layer = 0; layer < host.layers.size(); ++layer)
      for (const bool values : {false, true}) {
        const KvView::Layer& h = host.layers[layer];
        const KvView::Layer& d = device.layers[layer];
        std::vector<std::byte> plane(static_cast<size_t>(h.plane_bytes()));
        ASSERT_TRUE(
            cuda::copy_to_host(plane.data(), values ? d.v : d.k, std::ssize(plane), stream_).ok());
        ASSERT_TRUE(stream_.synchronize().ok());
        EXPECT_EQ(std::memcmp(plane.data(), values ? h.v : h.k, plane.size()), 0)
            << "layer " << layer;
      }
  }

  cuda::Stream stream_;
};

TEST_F(CudaPageCopierTest, CopiesAllPlanesOfAPage) {
  const KvPoolConfig config{
      .num_layers = 5, .num_kv_heads = 2, .head_dim = 64, .num_pages = kPages, .page_size = 16};
  check(config, false);
  check(config, true);
}

TEST_F(CudaPageCopierTest, CopiesLatentsAndLayersOfSeveralShapes) {
  check({.num_layers = 3,
         .num_kv_heads = 1,
         .head_dim = 96,
         .num_pages = kPages,
         .page_size = 3,
         .num_planes = 1},
        true);
  check({.num_layers = 3,
         .num_pages = kPages,
         .page_size = 4,
         .layer_shapes = {{.num_kv_heads = 1, .head_dim = 8, .type = KvType::kFloat32},
                          {.num_kv_heads = 1, .head_dim = 8, .type = KvType::kFloat32},
                          {.num_kv_heads = 2, .head_dim = 4, .type = KvType::kFloat8E4M3}}},
        true);
}

// Threads load and save at the same time, as the host store's thread and the queue's do.
TEST_F(CudaPageCopierTest, ServesThreads) {
  const KvPoolConfig config{
      .num_layers = 4, .num_kv_heads = 2, .head_dim = 64, .num_pages = kPages, .page_size = 16};
  const KvPool pool = device_pool(config);
  auto made = CudaPageCopier::create(pool.view());
  ASSERT_TRUE(made) << made.error().to_string();
  CudaPageCopier& copier = **made;
  std::vector<std::thread> threads;
  for (PageId page = 0; page < 4; ++page)
    threads.emplace_back([&, page] {
      std::vector<std::byte> from(static_cast<size_t>(copier.page_bytes())), to(from.size());
      for (int i = 0; i < 100; ++i) {
        std::fill(from.begin(), from.end(), static_cast<std::byte>(i + page));
        EXPECT_TRUE(copier.write_page(page, from).ok());
        EXPECT_TRUE(copier.read_page(page, to).ok());
        EXPECT_EQ(to, from);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

// What is enqueued on the steps' stream before follow() comes before the copies behind it.
TEST_F(CudaPageCopierTest, FollowsAStream) {
  const KvPoolConfig config{
      .num_layers = 2, .num_kv_heads = 8, .head_dim = 128, .num_pages = kPages, .page_size = 64};
  const KvPool pool = device_pool(config);
  auto made = CudaPageCopier::create(pool.view());
  ASSERT_TRUE(made) << made.error().to_string();
  auto work = cuda::DeviceBuffer::allocate(int64_t{1} << 30, "a test").value();
  std::vector<std::byte> page(static_cast<size_t>((*made)->page_bytes()));
  for (int round = 1; round <= 5; ++round) {
    for (int i = 0; i < 20; ++i)  // some milliseconds
      ASSERT_TRUE(cuda::fill_bytes(work.data(), i, work.size_bytes(), stream_).ok());
    for (const KvView::Layer& layer : pool.view().layers)
      for (void* plane : {layer.k, layer.v})
        ASSERT_TRUE(cuda::fill_bytes(plane, round, layer.plane_bytes(), stream_).ok());
    ASSERT_TRUE((*made)->follow(stream_).ok());
    ASSERT_TRUE((*made)->read_page(3, page).ok());
    for (const std::byte byte : page) ASSERT_EQ(static_cast<int>(byte), round);
  }
}

}  // namespace
}  // namespace espalier
