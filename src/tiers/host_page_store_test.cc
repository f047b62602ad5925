#include "tiers/host_page_store.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

#include "tiers/test_pages.h"

namespace espalier {
namespace {

constexpr int64_t kHostPageBytes = 96;

std::unique_ptr<HostPageStore> make_host_store(int64_t num_pages, int32_t num_gets_max = 256) {
  return HostPageStore::create({.size_bytes = num_pages * kHostPageBytes,
                                .page_bytes = kHostPageBytes,
                                .num_gets_max = num_gets_max})
      .value();
}

std::vector<PageName> names_from(uint64_t begin, uint64_t end) {
  std::vector<PageName> names;
  for (; begin < end; ++begin) names.push_back(test_page_name(begin));
  return names;
}

TEST(HostPageStore, StoresAndEvictsTheOldestUnused) {
  const auto store = make_host_store(4);
  EXPECT_EQ(put_pages(*store, names_from(0, 4)), 4u);
  EXPECT_EQ(count_right_pages(*store, names_from(0, 2)), 2u);  // used again
  EXPECT_EQ(put_pages(*store, names_from(4, 6)), 2u);
  EXPECT_EQ(store->num_leading(names_from(0, 2)), 2u);
  EXPECT_EQ(store->num_leading(names_from(4, 6)), 2u);
  EXPECT_EQ(count_right_pages(*store, names_from(2, 4)), 0u);
  const PageStoreStats stats = store->stats();
  EXPECT_EQ(stats.num_pages, 4);
  EXPECT_EQ(stats.evicted, 2);
  EXPECT_EQ(stats.stored, 6);
  EXPECT_EQ(stats.bytes_written, 6 * kHostPageBytes);
  store->check_invariants();
}

TEST(HostPageStore, RefusesASizeWithoutRoomForOnePage) {
  const auto store =
      HostPageStore::create({.size_bytes = kHostPageBytes - 1, .page_bytes = kHostPageBytes});
  ASSERT_FALSE(store.has_value());
  EXPECT_EQ(store.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(store.error().message().find("--hicache-size"), std::string::npos);
}

TEST(HostPageStore, EqualsAMap) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::unique_ptr<PageStore> store = make_host_store(static_cast<int64_t>(seed % 50) + 1);
    check_store_against_map(seed, store, nullptr);
    static_cast<HostPageStore&>(*store).check_invariants();
    if (testing::Test::HasFailure()) return;
  }
}

// A mirror that is made of the watch's calls has the store's pages, whatever threads do.
TEST(HostPageStore, AWatchSeesPagesComeAndGoInOrder) {
  const auto store = make_host_store(20);
  std::mutex mutex;  // guards the next
  std::set<PageName> mirror;
  int num_calls = 0;
  store->watch([&](std::span<const PageName> names, bool stored) {
    const std::lock_guard lock(mutex);
    ++num_calls;
    for (const PageName& name : names)
      EXPECT_TRUE(stored ? mirror.insert(name).second : mirror.erase(name) == 1);
  });
  put_pages(*store, names_from(0, 10));
  EXPECT_EQ(num_calls, 1) << "pages of a batch are reported together";
  put_pages(*store, names_from(0, 10));
  EXPECT_EQ(num_calls, 1) << "they are there already";
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Rng rng(t + 70);
      for (int i = 0; i < 300; ++i) {
        const uint64_t begin = rng.below(40);
        const std::vector<PageName> names = names_from(begin, begin + 1 + rng.below(8));
        rng.below(3) > 0 ? static_cast<void>(put_pages(*store, names)) : store->erase(names);
        if (rng.below(50) == 0) store->clear();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (uint64_t i = 0; i < 50; ++i) {
    const PageName name = test_page_name(i);
    EXPECT_EQ(store->num_leading({&name, 1}) == 1, mirror.contains(name)) << i;
  }
  store->clear();
  EXPECT_TRUE(mirror.empty());
}

// A sink that erases the page while it reads it: the bytes stay until the read has ended.
TEST(HostPageStore, KeepsBytesThatAreBeingRead) {
  const auto store = make_host_store(1);
  const PageName name = test_page_name(1);
  put_pages(*store, {name});
  struct Sink final : PageSink {
    explicit Sink(HostPageStore& s) : store(s) {}
    void on_page(size_t, std::span<const std::byte> bytes) override {
      store.erase(std::vector{test_page_name(1)});
      num_taken = put_pages(store, {test_page_name(2)});  // the only slot is being read
      kept.assign(bytes.begin(), bytes.end());
    }
    void on_done() override {
      is_done = true;
      is_done.notify_all();
    }
    HostPageStore& store;
    size_t num_taken = 99;
    std::vector<std::byte> kept;
    std::atomic<bool> is_done = false;
  };
  const auto sink = std::make_shared<Sink>(*store);
  store->get(std::vector{name}, sink);
  sink->is_done.wait(false);
  EXPECT_EQ(sink->num_taken, 0u);
  EXPECT_EQ(sink->kept, test_page(name, kHostPageBytes));
  EXPECT_EQ(store->stats().refused, 1);
  EXPECT_EQ(put_pages(*store, {test_page_name(2)}), 1u);
  store->check_invariants();
}

// A page that is shown keeps its bytes while others are shown behind it, until it is released.
TEST(HostPageStore, KeepsBytesUntilTheyAreReleased) {
  const auto store = make_host_store(6);
  const std::vector<PageName> names = names_from(0, 6);
  put_pages(*store, names);
  struct Sink final : PageSink {
    explicit Sink(HostPageStore& s) : store(s) {}
    void on_page(size_t index, std::span<const std::byte> bytes) override {
      shown[index] = bytes;
      if (index < 3) return;
      EXPECT_EQ(shown.size(), 4u);
      store.erase(names_from(0, 6));
      EXPECT_EQ(put_pages(store, names_from(100, 110)), 10u);  // in the two slots that are left
    }
    void on_release(size_t index) override {
      const std::vector<std::byte> want = test_page(test_page_name(index), kHostPageBytes);
      EXPECT_TRUE(std::ranges::equal(shown.at(index), want)) << "page " << index;
      shown.erase(index);
    }
    void on_done() override {
      is_done = true;
      is_done.notify_all();
    }
    HostPageStore& store;
    std::map<size_t, std::span<const std::byte>> shown;
    std::atomic<bool> is_done = false;
  };
  const auto sink = std::make_shared<Sink>(*store);
  store->get(names_from(0, 4), sink);
  sink->is_done.wait(false);
  EXPECT_TRUE(sink->shown.empty());
  store->check_invariants();
}

TEST(HostPageStore, APageThatCannotBeFilledIsRefused) {
  const auto store = make_host_store(4);
  const std::vector<PageName> names = names_from(0, 3);
  EXPECT_EQ(store->put(names, [](size_t index, std::span<std::byte>) { return index < 1; }), 1u);
  EXPECT_EQ(store->num_leading(names), 1u);
  EXPECT_EQ(store->stats().refused, 2);
  store->check_invariants();
}

TEST(HostPageStore, PartsOfTheArenaHaveBordersOfPages) {
  const auto store = make_host_store(1000);
  EXPECT_EQ(store->arena().size(), 1000u * kHostPageBytes);
  EXPECT_EQ(store->part_bytes() % kHostPageBytes, 0);
  EXPECT_EQ(store->part_bytes() % 4096, 0);
}

TEST(HostPageStore, ServesThreads) {
  const auto store = make_host_store(20);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Rng rng(t);
      for (int i = 0; i < 300; ++i) {
        const uint64_t begin = rng.below(40);
        const std::vector<PageName> names = names_from(begin, begin + 1 + rng.below(8));
        rng.below(2) == 0 ? put_pages(*store, names) : count_right_pages(*store, names);
        if (rng.below(8) == 0) store->erase(names);
      }
    });
  for (std::thread& thread : threads) thread.join();
  store->check_invariants();
  EXPECT_GT(store->stats().found, 0);
}

}  // namespace
}  // namespace espalier
