// Pages that are staged on a GPU have the cache's bytes, also where a step computes them layer by
// layer and later steps write over them; another process maps them.
#include "engine/executor/cuda/cuda_page_staging.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "cache/kv_pool.h"
#include "engine/executor/cuda/cuda_page_copier.h"
#include "engine/executor/cuda/device_planes.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

constexpr int32_t kPages = 64;
constexpr KvPoolConfig kPool{
    .num_layers = 10, .num_kv_heads = 8, .head_dim = 128, .num_pages = kPages, .page_size = 16};
constexpr int64_t kStagingBytes = (96 << 20) + kStagingHeadBytes;  // blocks of 51 pages

// Drawn, each once.
std::vector<PageId> draw_pages(Rng& rng, size_t count) {
  std::vector<PageId> pages(kPages);
  for (PageId i = 0; i < kPages; ++i) pages[static_cast<size_t>(i)] = i;
  for (size_t i = pages.size(); i-- > 1;) std::swap(pages[i], pages[rng.below(i + 1)]);
  pages.resize(count);
  return pages;
}

class CudaPageStagingTest : public testing::Test {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    stream_ = cuda::Stream::create().value();
    pool_ = std::make_unique<KvPool>(KvPool::create(kPool, allocate_device_planes).value());
    copier_ = CudaPageCopier::create(pool_->view(), /*stages_steps=*/true).value();
  }
  void start() { staging_ = copier_->start_staging(kStagingBytes).value(); }

  std::vector<std::byte> page(PageId id) {
    std::vector<std::byte> bytes(static_cast<size_t>(copier_->page_bytes()));
    EXPECT_TRUE(copier_->read_page(id, bytes).ok());
    return bytes;
  }
  // Bytes that follow from the seed and the page.
  void draw(uint64_t seed) {
    std::vector<std::byte> bytes(static_cast<size_t>(copier_->page_bytes()));
    for (PageId id = 0; id < kPages; ++id) {
      Rng rng(seed * 1000 + static_cast<uint64_t>(id));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
      ASSERT_TRUE(copier_->write_page(id, bytes).ok());
    }
  }
  void expect_staged(StagedPages& staged, std::span<const PageId> pages) {
    for (int32_t range = 0; range < staged.num_ranges(); ++range) ASSERT_TRUE(staged.wait(range));
    std::vector<std::byte> bytes(static_cast<size_t>(copier_->page_bytes()));
    size_t at = 0;
    for (const StagedPart& part : staged.parts())
      for (int32_t i = 0; i < part.num_pages; ++i, ++at) {
        ASSERT_TRUE(staged.read(part, i, bytes).ok());
        ASSERT_EQ(bytes, page(pages[at])) << "page " << at;
      }
    EXPECT_EQ(at, pages.size());
  }

  cuda::Stream stream_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<CudaPageCopier> copier_;
  PageStaging* staging_ = nullptr;
};

TEST_F(CudaPageStagingTest, StagedPagesHaveTheCachesBytes) {
  draw(1);
  start();
  Rng rng(5);
  for (int round = 0; round < 20; ++round) {
    const std::vector<PageId> pages = draw_pages(rng, 1 + rng.below(kPages));
    const auto staged = staging_->stage(pages);
    ASSERT_EQ(staged->num_pages(), std::ssize(pages));
    expect_staged(*staged, pages);
  }
  std::vector<std::unique_ptr<StagedPages>> all;
  const std::vector<PageId> one = {3};
  while (auto staged = staging_->stage(one)) all.push_back(std::move(staged));
  EXPECT_EQ(all.size(), 3u);
}

// Each layer is written late, and the next step writes over all of them at once.
TEST_F(CudaPageStagingTest, LayersAreStagedAsTheStepComputesThem) {
  start();
  CudaPageStaging& staging = *copier_->staging();
  auto work = cuda::DeviceBuffer::allocate(int64_t{1} << 29, "a test").value();
  Rng rng(7);
  const auto fill = [&](int32_t layer, int value) {
    const KvView::Layer& l = pool_->view().layer(layer);
    for (void* plane : {l.k, l.v})
      ASSERT_TRUE(cuda::fill_bytes(plane, value + layer, l.plane_bytes(), stream_).ok());
  };
  for (int round = 0; round < 10; ++round) {
    const int value = 1 + 20 * (round % 5);
    const std::vector<PageId> pages = draw_pages(rng, 1 + rng.below(kPages));
    const auto staged = staging.stage_next_step(pages);
    ASSERT_NE(staged, nullptr);
    ASSERT_TRUE(staging.precede(stream_).ok());
    for (int32_t layer = 0; layer < kPool.num_layers; ++layer) {
      ASSERT_TRUE(cuda::fill_bytes(work.data(), layer, work.size_bytes(), stream_).ok());
      fill(layer, value);
      if (round % 3 == 0) continue;  // the step was a graph
      ASSERT_TRUE(staging.on_append(layer, stream_).ok());
    }
    ASSERT_TRUE(staging.end_step(Status(), stream_).ok());
    ASSERT_TRUE(staging.precede(stream_).ok());
    for (int32_t layer = 0; layer < kPool.num_layers; ++layer) fill(layer, 200);  // a later step
    for (int32_t range = 0; range < staged->num_ranges(); ++range) ASSERT_TRUE(staged->wait(range));
    std::vector<std::byte> bytes(static_cast<size_t>(copier_->page_bytes()));
    ASSERT_TRUE(staged->read(staged->parts()[0], 0, bytes).ok());
    for (size_t i = 0; i < bytes.size(); ++i)
      ASSERT_EQ(static_cast<int>(bytes[i]),
                value + static_cast<int>(i * kPool.num_layers / bytes.size()));
  }
}

TEST_F(CudaPageStagingTest, AStepThatFailsFailsItsPages) {
  start();
  const std::vector<PageId> pages = {1, 2};
  const auto staged = copier_->staging()->stage_next_step(pages);
  Result<PlaneRange> waited;
  std::thread reader([&] { waited = staged->wait(0); });
  const Status failure = error(StatusCode::kInternal, "lost");
  EXPECT_EQ(copier_->staging()->end_step(failure, stream_).code(), StatusCode::kInternal);
  reader.join();
  EXPECT_FALSE(waited);
}

constexpr const char* kChildFile = "ESPALIER_TEST_STAGING_FILE";

// The other process of the next test: stages all pages in the order of their numbers.
TEST_F(CudaPageStagingTest, DISABLED_Export) {
  const char* const file = std::getenv(kChildFile);
  ASSERT_NE(file, nullptr);
  draw(9);
  start();
  std::vector<PageId> pages;
  for (PageId i = 0; i < kPages; ++i) pages.push_back(i);
  const auto staged = staging_->stage(pages);
  ASSERT_TRUE(staged->wait(0));
  const StagingHandle& handle = staging_->handle();
  std::ofstream out(std::string(file) + ".part", std::ios::binary);
  out.write(reinterpret_cast<const char*>(handle.nonce.data()), 16);
  out.write(handle.bytes.data(), std::ssize(handle.bytes));
  const auto pid = static_cast<int64_t>(getpid());
  out.write(reinterpret_cast<const char*>(&pid), sizeof(pid));
  for (const StagedPart& part : staged->parts())
    out.write(reinterpret_cast<const char*>(&part), sizeof(part));
  out.close();
  std::filesystem::rename(std::string(file) + ".part", file);
  while (std::getchar() != EOF) {
  }
}

TEST_F(CudaPageStagingTest, AnotherProcessMapsThem) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("espalier-staging-" + std::to_string(getpid()));
  const std::string command =
      std::string(kChildFile) + "=" + file.string() + " " +
      std::filesystem::read_symlink("/proc/self/exe").string() +
      " --gtest_also_run_disabled_tests --gtest_filter=*DISABLED_Export > /dev/null 2>&1";
  FILE* const child = popen(command.c_str(), "w");
  ASSERT_NE(child, nullptr);
  for (int i = 0; i < 6000 && !std::filesystem::exists(file); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::ifstream in(file, std::ios::binary);
  StagingHandle handle{.kind = "cuda-ipc", .bytes = std::string(64, 0)};
  in.read(reinterpret_cast<char*>(handle.nonce.data()), 16);
  in.read(handle.bytes.data(), 64);
  int64_t pid = 0;
  in.read(reinterpret_cast<char*>(&pid), sizeof(pid));
  std::vector<StagedPart> parts;
  for (StagedPart part; in.read(reinterpret_cast<char*>(&part), sizeof(part));)
    parts.push_back(part);
  std::filesystem::remove(file);
  StagingHandle other = handle;
  other.nonce[0] ^= 1;
  EXPECT_FALSE(copier_->map_staging(other)) << "the nonce is another memory's";
  const auto mapped = copier_->map_staging(handle);
  ASSERT_TRUE(mapped) << mapped.error().to_string();
  Rng rng(2);
  const std::vector<PageId> pages = draw_pages(rng, kPages);
  const int32_t middle = 7, end = 2 * kPool.num_layers;
  ASSERT_TRUE((*mapped)->take(parts, {0, middle}, pages).ok());
  ASSERT_TRUE((*mapped)->take(parts, {middle, end}, pages).ok());
  std::vector<std::vector<std::byte>> taken;
  for (const PageId id : pages) taken.push_back(page(id));
  draw(9);
  for (PageId i = 0; i < kPages; ++i) EXPECT_EQ(taken[static_cast<size_t>(i)], page(i)) << i;
  // The process is killed: this one goes on, whatever its copies read.
  kill(static_cast<pid_t>(pid), SIGKILL);
  pclose(child);
  static_cast<void>((*mapped)->take(parts, {0, end}, pages));
  draw(3);
  EXPECT_EQ(page(5).size(), static_cast<size_t>(copier_->page_bytes()));
}

}  // namespace
}  // namespace espalier
