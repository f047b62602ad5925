#include "cache/host_staging.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "cache/kv_pool.h"
#include "cache/page_staging.h"

namespace espalier {
namespace {

constexpr KvPoolConfig kPool{
    .num_layers = 3, .num_kv_heads = 2, .head_dim = 4, .num_pages = 24, .page_size = 3};

std::vector<std::byte> page_of(PageCopier& copier, PageId page) {
  std::vector<std::byte> bytes(static_cast<size_t>(copier.page_bytes()));
  EXPECT_TRUE(copier.read_page(page, bytes).ok());
  return bytes;
}

// A cache with drawn bytes, and its staging memory of so many blocks.
struct Side {
  explicit Side(uint64_t seed) : pool(KvPool::create(kPool).value()) {
    Rng rng(seed);
    for (const KvView::Layer& layer : pool.view().layers)
      for (void* plane : {layer.k, layer.v})
        for (int64_t i = 0; i < layer.plane_bytes(); ++i)
          static_cast<std::byte*>(plane)[i] = static_cast<std::byte>(rng());
    copier = make_host_page_copier(pool.view()).value();
  }
  KvPool pool;
  std::unique_ptr<PageCopier> copier;
};

TEST(HostStaging, PagesGoFromOneCacheToAnother) {
  Side from(1), to(2);
  PageStaging* const staging = from.copier->start_staging(8 << 20).value();
  const auto mapped = to.copier->map_staging(staging->handle()).value();
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<PageId> sources, targets;
    for (PageId page = 0; page < kPool.num_pages; ++page) {
      if (rng.below(3) > 0) sources.push_back(page);  // neighbours often go together
      targets.push_back(page);
    }
    if (sources.empty()) continue;
    for (size_t i = targets.size(); i-- > 1;) std::swap(targets[i], targets[rng.below(i + 1)]);
    targets.resize(sources.size());
    const auto staged = staging->stage(sources);
    ASSERT_EQ(staged->num_pages(), std::ssize(sources));
    const PlaneRange planes = staged->wait(0).value();
    EXPECT_EQ(planes.end, 2 * kPool.num_layers);
    // Planes may come in several ranges.
    const auto middle = static_cast<int32_t>(rng.below(7));
    for (const PlaneRange range : {PlaneRange{0, middle}, PlaneRange{middle, planes.end}})
      ASSERT_TRUE(mapped->take(staged->parts(), range, targets).ok());
    std::vector<std::byte> read(static_cast<size_t>(from.copier->page_bytes()));
    for (size_t i = 0; i < sources.size(); ++i) {
      ASSERT_EQ(page_of(*to.copier, targets[i]), page_of(*from.copier, sources[i]));
      ASSERT_TRUE(staged->read(staged->parts()[0], static_cast<int32_t>(i), read).ok());
      ASSERT_EQ(read, page_of(*from.copier, sources[i]));
    }
  }
}

TEST(HostStaging, WhatHasNoBlockIsNotStaged) {
  Side side(1);
  // Blocks of 1 MiB: two of them.
  PageStaging* const staging = side.copier->start_staging((2 << 20) + kStagingHeadBytes).value();
  const std::vector<PageId> pages = {1, 2, 3};
  auto first = staging->stage(pages);
  const auto second = staging->stage(pages);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_EQ(staging->stage(pages), nullptr);
  first.reset();
  EXPECT_NE(staging->stage(pages), nullptr);
}

TEST(HostStaging, StagesAsManyLeadingPagesAsThereAreBlocks) {
  StagingBlocks blocks(kStagingHeadBytes + 3 * 400, 400, 100);
  EXPECT_EQ(blocks.block_pages(), 4);
  const auto parts = blocks.take(17);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].num_pages, 4);
  EXPECT_EQ(blocks.num_free(), 0);
  EXPECT_TRUE(blocks.take(1).empty());
  blocks.give_back(parts);
  EXPECT_EQ(blocks.take(5).at(1).num_pages, 1);
}

// Whatever a handle names, nothing but a staging memory is mapped.
TEST(HostStaging, WrongHandlesAreRefused) {
  Side from(1), to(2);
  const StagingHandle handle = from.copier->start_staging(8 << 20).value()->handle();
  StagingHandle other = handle;
  other.nonce[3] ^= 1;
  EXPECT_FALSE(to.copier->map_staging(other));
  for (const char* name :
       {"", "/etc/passwd", "/proc/1/fd/../../self/maps", "/proc/self/fd/0", "/proc/4000000/fd/3"}) {
    other = handle;
    other.bytes = name;
    EXPECT_FALSE(to.copier->map_staging(other)) << name;
  }
  other = handle;
  other.kind = "cuda-ipc";
  EXPECT_FALSE(to.copier->map_staging(other));
  EXPECT_TRUE(to.copier->map_staging(handle));
}

TEST(HostStaging, PartsBeyondTheMemoryAreRefused) {
  Side from(1), to(2);
  PageStaging* const staging = from.copier->start_staging(4 << 20).value();
  const auto mapped = to.copier->map_staging(staging->handle()).value();
  const std::vector<PageId> pages = {0, 1};
  const auto take = [&](const StagedPart& part) {
    return mapped->take(std::span(&part, 1), {0, 6}, pages).code();
  };
  const StagedPart good{.block = kStagingHeadBytes, .block_pages = 2, .num_pages = 2};
  EXPECT_EQ(take(good), StatusCode::kOk);
  for (const StagedPart& bad :
       {StagedPart{.block = 0, .block_pages = 2, .num_pages = 2},
        StagedPart{.block = 4 << 20, .block_pages = 2, .num_pages = 2},
        StagedPart{.block = INT64_MAX, .block_pages = 2, .num_pages = 2},
        StagedPart{.block = kStagingHeadBytes, .block_pages = INT32_MAX, .num_pages = 2},
        StagedPart{.block = kStagingHeadBytes, .block_pages = 2, .first = 1, .num_pages = 2},
        StagedPart{.block = kStagingHeadBytes, .block_pages = 2, .first = -1, .num_pages = 2},
        StagedPart{.block = kStagingHeadBytes, .block_pages = 2, .num_pages = 1}})
    EXPECT_EQ(take(bad), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
