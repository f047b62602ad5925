#include "tiers/disk_page_store.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <thread>

#include "tiers/test_pages.h"

namespace espalier {
namespace {

constexpr int64_t kDiskPageBytes = 500;

DiskPageStoreConfig config_for(const TestFolder& folder, int64_t num_pages) {
  return {.folder = folder.path() / "tier",
          .scope = "model A, layout B",
          .page_bytes = kDiskPageBytes,
          .size_bytes = 4096 + num_pages * (4096 + 24),
          .write_buffer_bytes = 64 * 4096,
          .depth = 8};
}

std::vector<PageName> names_in(uint64_t begin, uint64_t end, uint64_t tenant = 0) {
  std::vector<PageName> names;
  for (; begin < end; ++begin) names.push_back(test_page_name(begin, tenant));
  return names;
}

std::unique_ptr<DiskPageStore> open_store(const DiskPageStoreConfig& config) {
  auto store = DiskPageStore::open(config);
  EXPECT_TRUE(store.has_value()) << store.error().message();
  return std::move(store).value();
}

TEST(DiskPageStore, FindsPagesAfterARestart) {
  const TestFolder folder;
  const DiskPageStoreConfig config = config_for(folder, 1600);
  {
    const auto store = open_store(config);
    EXPECT_EQ(put_pages(*store, names_in(0, 40)), 40u);
    store->flush();
    EXPECT_EQ(count_right_pages(*store, names_in(0, 40)), 40u);
  }
  const auto store = open_store(config);
  EXPECT_EQ(store->stats().num_pages, 40);
  EXPECT_EQ(store->num_leading(names_in(0, 50)), 40u);
  EXPECT_EQ(count_right_pages(*store, names_in(0, 50)), 40u);
  EXPECT_EQ(store->stats().found, 40);
  EXPECT_EQ(store->stats().absent, 10);
}

TEST(DiskPageStore, StoresWhatWasPutBeforeItIsDestroyed) {
  const TestFolder folder;
  open_store(config_for(folder, 160))->put(names_in(0, 3), [](size_t i, std::span<std::byte> to) {
    const auto bytes = test_page(names_in(0, 3)[i], std::ssize(to));
    std::copy(bytes.begin(), bytes.end(), to.begin());
    return true;
  });
  EXPECT_EQ(count_right_pages(*open_store(config_for(folder, 160)), names_in(0, 3)), 3u);
}

TEST(DiskPageStore, KeepsItsSizeAndTheMostRecentPages) {
  const TestFolder folder;
  const auto store = open_store(config_for(folder, 160));
  EXPECT_EQ(store->stats().num_pages_max, 160);
  for (uint64_t i = 0; i < 100; ++i) {
    put_pages(*store, names_in(i * 10, i * 10 + 10));
    store->flush();
    count_right_pages(*store, names_in(0, 10));  // used all the time
  }
  EXPECT_EQ(count_right_pages(*store, names_in(0, 10)), 10u);
  EXPECT_GE(count_right_pages(*store, names_in(950, 1000)), 40u);
  EXPECT_EQ(count_right_pages(*store, names_in(20, 500)), 0u);
  const PageStoreStats stats = store->stats();
  EXPECT_EQ(stats.stored - stats.evicted, stats.num_pages);
  EXPECT_EQ(stats.corrupt, 0);
  struct stat info {};
  ASSERT_EQ(::stat(store->file().path().c_str(), &info), 0);
  EXPECT_LE(info.st_size, config_for(folder, 160).size_bytes);
  EXPECT_EQ(info.st_mode & 0077, 0u) << "others can read keys and values";
}

TEST(DiskPageStore, RefusesWhatItHasNoBufferFor) {
  const TestFolder folder;
  DiskPageStoreConfig config = config_for(folder, 16000);
  config.write_buffer_bytes = 2 * 4096;
  const auto store = open_store(config);
  size_t taken = 0, rounds = 0;
  for (; taken < 5000; ++rounds)
    taken += put_pages(*store, names_in(taken, taken + 500));  // each round begins where it ended
  store->flush();
  EXPECT_EQ(count_right_pages(*store, names_in(0, taken)), taken);
  EXPECT_GT(rounds, 10u);
  EXPECT_GT(store->stats().refused, 0);
}

TEST(DiskPageStore, RefusesReadsBeyondItsQueue) {
  const TestFolder folder;
  DiskPageStoreConfig config = config_for(folder, 160);
  config.num_reads_max = 4;
  const auto store = open_store(config);
  put_pages(*store, names_in(0, 5));
  store->flush();
  EXPECT_EQ(count_right_pages(*store, names_in(0, 5)), 0u);
  EXPECT_EQ(store->stats().refused, 5);
  EXPECT_EQ(count_right_pages(*store, names_in(0, 4)), 4u);
}

TEST(DiskPageStore, EqualsAMap) {
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    const TestFolder folder;
    DiskPageStoreConfig config = config_for(folder, static_cast<int64_t>(16 * (1 + seed % 6)));
    config.use_uring = seed % 2 == 0;
    config.use_direct_io = seed % 3 != 0;
    std::unique_ptr<PageStore> store = open_store(config);
    check_store_against_map(seed, store, [&] {
      store.reset();
      store = open_store(config);
    });
    EXPECT_EQ(store->stats().corrupt + store->stats().errors, 0);
    if (testing::Test::HasFailure()) return;
  }
}

// What one stores the others find; pages that all write at once stay right.
TEST(DiskPageStore, IsSharedByStoresOfOneFolder) {
  const TestFolder folder;
  const DiskPageStoreConfig config = config_for(folder, 64);
  const auto a = open_store(config), b = open_store(config);
  put_pages(*a, names_in(0, 4));
  a->flush();
  EXPECT_EQ(count_right_pages(*b, names_in(0, 4)), 4u);
  std::vector<std::thread> threads;
  for (DiskPageStore* store : {a.get(), b.get()})
    threads.emplace_back([store] {
      Rng rng(3);  // the same for both, so they write the same pages at the same time
      for (int i = 0; i < 300; ++i) {
        const uint64_t begin = rng.below(300);
        put_pages(*store, names_in(begin, begin + 4));
        count_right_pages(*store, names_in(begin, begin + 4));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(a->stats().found, 0);
}

TEST(DiskPageStore, AnotherSizeBeginsAnew) {
  const TestFolder folder;
  {
    const auto store = open_store(config_for(folder, 160));
    put_pages(*store, names_in(0, 10));
    store->flush();
    const auto second = open_store(config_for(folder, 320));  // in use: its size stays
    EXPECT_EQ(second->stats().num_pages_max, 160);
    EXPECT_EQ(count_right_pages(*second, names_in(0, 10)), 10u);
  }
  const auto store = open_store(config_for(folder, 320));
  EXPECT_EQ(store->stats().num_pages_max, 320);
  EXPECT_EQ(count_right_pages(*store, names_in(0, 10)), 0u);
}

TEST(DiskPageStore, SaysWhatIsWrongWithItsFolder) {
  const TestFolder folder;
  DiskPageStoreConfig config = config_for(folder, 15);
  auto store = DiskPageStore::open(config);
  ASSERT_FALSE(store.has_value());
  EXPECT_NE(store.error().message().find("--hicache-disk-size"), std::string::npos);
  std::ofstream(folder.path() / "file") << "no folder";
  config.folder = folder.path() / "file";
  store = DiskPageStore::open(config);
  ASSERT_FALSE(store.has_value());
  EXPECT_NE(store.error().message().find("--hicache-storage-path"), std::string::npos);
}

}  // namespace
}  // namespace espalier
