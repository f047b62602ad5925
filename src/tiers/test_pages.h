// For tests: pages whose bytes follow from their names, and a sink that keeps what it gets.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tiers/page_store.h"

namespace espalier {

// The name of page `number` in a tenant's tree.
inline PageName test_page_name(uint64_t number, uint64_t tenant = 0) {
  PageName name;
  const uint64_t words[] = {mix64(number * 2 + 1) ^ tenant, mix64(number + (tenant << 32))};
  std::memcpy(name.bytes.data(), words, sizeof(words));
  return name;
}

inline std::vector<PageName> test_page_names(uint64_t first, uint64_t count, uint64_t tenant = 0) {
  std::vector<PageName> names;
  for (uint64_t i = 0; i < count; ++i) names.push_back(test_page_name(first + i, tenant));
  return names;
}

inline std::vector<std::byte> test_page(const PageName& name, int64_t page_bytes) {
  Rng rng(name.prefix64());
  std::vector<std::byte> bytes(static_cast<size_t>(page_bytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
  return bytes;
}

// Waits for the end of one get().
class CollectingSink final : public PageSink {
 public:
  explicit CollectingSink(size_t count) : pages_(count), num_calls_(count) {}
  void on_page(size_t index, std::span<const std::byte> bytes) override {
    ++num_calls_.at(index);
    if (!bytes.empty()) shown_[index] = bytes;
  }
  // The bytes are there until the call, whatever pages came in between.
  void on_release(size_t index) override {
    const std::span<const std::byte> bytes = shown_.at(index);
    pages_.at(index).assign(bytes.begin(), bytes.end());
    shown_.erase(index);
  }
  void on_done() override {
    EXPECT_TRUE(shown_.empty()) << "pages were not released";
    is_done_ = true;
    is_done_.notify_all();
  }

  // Empty where a page is absent.
  const std::vector<std::vector<std::byte>>& wait() {
    is_done_.wait(false);
    for (const int calls : num_calls_) EXPECT_EQ(calls, 1);
    return pages_;
  }

 private:
  std::vector<std::vector<std::byte>> pages_;
  std::map<size_t, std::span<const std::byte>> shown_;
  std::vector<int> num_calls_;
  std::atomic<bool> is_done_ = false;
};

inline std::vector<std::vector<std::byte>> get_pages(PageStore& store,
                                                     const std::vector<PageName>& names) {
  const auto sink = std::make_shared<CollectingSink>(names.size());
  store.get(names, sink);
  return sink->wait();
}

inline size_t put_pages(PageStore& store, const std::vector<PageName>& names) {
  return store.put(names, [&](size_t index, std::span<std::byte> to) {
    const std::vector<std::byte> bytes = test_page(names[index], std::ssize(to));
    std::copy(bytes.begin(), bytes.end(), to.begin());
    return true;
  });
}

// How many of the pages are found; each of these must have its own bytes.
inline size_t count_right_pages(PageStore& store, const std::vector<PageName>& names) {
  size_t count = 0;
  const auto pages = get_pages(store, names);
  for (size_t i = 0; i < names.size(); ++i) {
    if (pages[i].empty()) continue;
    EXPECT_EQ(pages[i], test_page(names[i], store.page_bytes())) << "page " << i;
    ++count;
  }
  return count;
}

// A folder that goes with the object.
class TestFolder {
 public:
  TestFolder() {
    std::string text = std::filesystem::temp_directory_path() / "espalier-tier-XXXXXX";
    path_ = mkdtemp(text.data());
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Random operations from a seed on a store, each result compared with a map's: a page that is found
// is right, and is one that was put and not erased since. `reopen` may replace the store.
inline void check_store_against_map(uint64_t seed, std::unique_ptr<PageStore>& store,
                                    const std::function<void()>& reopen) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  std::map<PageName, bool> stored;
  int64_t num_found = 0;
  const auto random_names = [&] {
    std::vector<PageName> names;
    for (uint64_t count = rng.between(1, 12), at = rng.below(60); count > 0; --count)
      names.push_back(test_page_name(at++));
    return names;
  };
  for (int step = 0; step < 200; ++step) {
    const std::vector<PageName> names = random_names();
    switch (rng.below(reopen ? 8 : 7)) {
      case 0:
      case 1:
      case 2: {
        const size_t taken = put_pages(*store, names);
        ASSERT_LE(taken, names.size());
        for (size_t i = 0; i < taken; ++i) stored[names[i]] = true;
        store->flush();
        break;
      }
      case 3:
      case 4:
      case 5: {
        const auto pages = get_pages(*store, names);
        for (size_t i = 0; i < names.size(); ++i) {
          if (pages[i].empty()) continue;
          ++num_found;
          ASSERT_TRUE(stored[names[i]]) << "found, and was never put";
          ASSERT_EQ(pages[i], test_page(names[i], store->page_bytes()));
        }
        const size_t leading = store->num_leading(names);
        for (size_t i = 0; i < leading; ++i) ASSERT_TRUE(stored[names[i]]);
        for (size_t i = 0; i < leading; ++i) ASSERT_FALSE(pages[i].empty());
        break;
      }
      case 6:
        if (rng.below(10) == 0) {
          store->clear();
          stored.clear();
          ASSERT_EQ(store->stats().num_pages, 0);
        } else {
          store->erase(names);
          for (const PageName& name : names) stored.erase(name);
          ASSERT_EQ(store->num_leading(names), 0u);
        }
        break;
      default:
        reopen();
    }
    ASSERT_LE(store->stats().num_pages, store->stats().num_pages_max);
  }
  EXPECT_GT(num_found, 0);
}

}  // namespace espalier
