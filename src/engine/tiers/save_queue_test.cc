#include "engine/tiers/save_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "base/rng.h"
#include "engine/testing/byte_device.h"
#include "engine/testing/flaky_store.h"
#include "engine/testing/remote_copier.h"
#include "engine/tiers/host_pinner.h"
#include "tiers/host_page_store.h"

namespace espalier {
namespace {

constexpr int32_t kSavedPages = 24;
constexpr int64_t kSavedPageBytes = 40;

PageName saved_name(uint64_t number) {
  PageName name;
  const uint64_t words[] = {mix64(number), number};
  std::memcpy(name.bytes.data(), words, sizeof(words));
  return name;
}
int value_of(uint64_t number) { return static_cast<int>(mix64(number) % 200); }

// Reads all bytes of a page; nothing: the store has none.
std::optional<std::vector<std::byte>> read_from(PageStore& store, const PageName& name) {
  struct Sink final : PageSink {
    void on_page(size_t, std::span<const std::byte> bytes) override {
      if (!bytes.empty()) page.emplace(bytes.begin(), bytes.end());
    }
    void on_done() override {
      is_done = true;
      is_done.notify_all();
    }
    std::optional<std::vector<std::byte>> page;
    std::atomic<bool> is_done = false;
  };
  const auto sink = std::make_shared<Sink>();
  store.get(std::vector{name}, sink);
  sink->is_done.wait(false);
  return sink->page;
}

// Random operations on a queue whose device is slow, against a map of what each page has: what a
// store has under a name are the bytes of that name, though pages are used again as soon as they
// are taken back.
class SaveQueueRun {
 public:
  explicit SaveQueueRun(uint64_t seed) : rng_(seed), pages_(kSavedPages) {
    if (rng_.below(2) == 0) refuse_one_of_ = 4;
    if (rng_.below(3) == 0) fail_one_of_ = 8;
    remote_ = std::make_unique<RemoteCopier>(
        device_, RemoteCopier::Options{.seed = seed,
                                       .delay_max = std::chrono::microseconds(rng_.below(60)),
                                       .fail_one_of = fail_one_of_});
    host_ =
        HostPageStore::create({.size_bytes = 2000 * kSavedPageBytes, .page_bytes = kSavedPageBytes})
            .value();
    stores_ = {host_.get()};
    if (rng_.below(2) == 0) {
      flaky_ = std::make_unique<FlakyStore>(FlakyStore::Options{
          .seed = seed, .page_bytes = kSavedPageBytes, .refuse_one_of = refuse_one_of_});
      stores_.push_back(flaky_.get());
    }
    queue_ = std::make_unique<SaveQueue>(*remote_, stores_, kSavedPages);
  }

  void run() {
    for (int step = 0; step < 80 && !testing::Test::HasFailure(); ++step) {
      switch (rng_.below(8)) {
        case 0:
          queue_->flush();
          check_saved();
          break;
        case 1:
        case 2:
        case 3:
          take_back();
          break;
        default:
          add();
      }
      queue_->check_invariants();
    }
    const bool drains = rng_.below(2) == 0;
    if (!drains) queue_->flush();
    queue_.reset();  // saves what waits
    const bool saves_all = fail_one_of_ == 0 && (flaky_ == nullptr || refuse_one_of_ == 0);
    for (PageStore* store : stores_) {
      for (uint64_t number = 1; number <= num_named_; ++number) check_bytes(*store, number);
      for (const Page& page : pages_) {
        if (!saves_all || !page.is_added) continue;
        EXPECT_EQ(store->num_leading(std::vector{saved_name(page.number)}), 1u);
      }
    }
  }

 private:
  struct Page {
    uint64_t number = 0;  // 0: it has no contents
    bool is_added = false;
  };

  std::vector<PageId> some_pages() {
    std::vector<PageId> pages(kSavedPages);
    for (PageId i = 0; i < kSavedPages; ++i) pages[static_cast<size_t>(i)] = i;
    for (size_t i = 0; i + 1 < pages.size(); ++i)
      std::swap(pages[i], pages[i + rng_.below(pages.size() - i)]);
    pages.resize(rng_.between(1, 10));
    return pages;
  }
  Page& at(PageId page) { return pages_[static_cast<size_t>(page)]; }

  void add() {
    const std::vector<PageId> pages = some_pages();
    for (const PageId page : pages) {
      if (at(page).number == 0) {
        at(page).number = ++num_named_;
        device_.set(page, value_of(num_named_));
      }
      at(page).is_added = true;
    }
    names_.clear();
    for (const PageId page : pages) names_[page] = saved_name(at(page).number);
    queue_->add(pages, [&](PageId page) -> const PageName& { return names_.at(page); });
  }
  // Half of the pages get other contents at once, some are saved before.
  void take_back() {
    const std::vector<PageId> pages = some_pages();
    queue_->take_back(pages);
    std::vector<PageId> named;
    std::vector<PageName> names;
    for (const PageId page : pages) {
      EXPECT_FALSE(queue_->is_saved(page));
      if (at(page).number == 0) continue;
      named.push_back(page);
      names.push_back(saved_name(at(page).number));
    }
    if (rng_.below(3) == 0) {
      const size_t num_saved = queue_->save_now(named, names);
      for (size_t i = 0; i < num_saved; ++i)
        for (PageStore* store : stores_)
          EXPECT_EQ(store->num_leading(std::span(names).subspan(i, 1)), 1u);
    }
    for (const PageId page : pages) {
      at(page).is_added = false;
      if (rng_.below(2) == 0) continue;
      device_.set(page, 222);
      at(page).number = 0;
    }
  }
  void check_saved() {
    const bool saves_all = fail_one_of_ == 0 && (flaky_ == nullptr || refuse_one_of_ == 0);
    for (PageId page = 0; page < kSavedPages; ++page) {
      if (!queue_->is_saved(page)) {
        EXPECT_FALSE(saves_all && at(page).is_added) << "page " << page << " was not saved";
        continue;
      }
      EXPECT_TRUE(at(page).is_added);
      for (PageStore* store : stores_)
        EXPECT_EQ(store->num_leading(std::vector{saved_name(at(page).number)}), 1u);
    }
  }
  static void check_bytes(PageStore& store, uint64_t number) {
    const auto bytes = read_from(store, saved_name(number));
    if (!bytes) return;
    EXPECT_TRUE(std::ranges::all_of(
        *bytes, [&](std::byte byte) { return static_cast<int>(byte) == value_of(number); }))
        << "page " << number << " of store " << store.kind();
  }

  Rng rng_;
  uint64_t refuse_one_of_ = 0, fail_one_of_ = 0;
  ByteDevice device_{kSavedPages, kSavedPageBytes};
  std::unique_ptr<RemoteCopier> remote_;
  std::unique_ptr<HostPageStore> host_;
  std::unique_ptr<FlakyStore> flaky_;
  std::vector<PageStore*> stores_;
  std::vector<Page> pages_;
  std::map<PageId, PageName> names_;
  uint64_t num_named_ = 0;
  std::unique_ptr<SaveQueue> queue_;  // last: its thread uses all of the above
};

TEST(SaveQueue, StoresHaveTheBytesOfTheirNames) {
  const char* const setting = std::getenv("ESPALIER_FUZZ_SCALE");
  const uint64_t scale = setting == nullptr ? 1 : std::strtoull(setting, nullptr, 10);
  for (uint64_t seed = 1; seed <= 100 * scale && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SaveQueueRun(seed).run();
  }
}

// The memory is pinned while others run, part by part, and unpinned at the end.
TEST(HostPinner, PinsTheWholeArenaAndUnpinsIt) {
  ByteDevice device(1, kSavedPageBytes);
  RemoteCopier remote(device, {});
  const auto store =
      HostPageStore::create({.size_bytes = 140 << 20, .page_bytes = 1 << 20})  // several parts
          .value();
  const auto size = static_cast<int64_t>(store->arena().size());
  {
    const HostPinner pinner(remote, store->arena(), store->part_bytes());
    while (pinner.pinned_bytes() < size) std::this_thread::yield();
    EXPECT_EQ(remote.num_pinned(), store->arena().size());
  }
  EXPECT_EQ(remote.num_pinned(), 0u);
  { const HostPinner stops_early(remote, store->arena(), store->part_bytes()); }
  EXPECT_EQ(remote.num_pinned(), 0u);
}

// What the system refuses to pin is served as it is.
TEST(HostPinner, ARefusalEndsIt) {
  class Refuses final : public PageCopier {
   public:
    int64_t page_bytes() const override { return kSavedPageBytes; }
    Transfer begin_read(PageId, std::span<std::byte>) override { return 0; }
    Transfer begin_write(PageId, std::span<const std::byte>) override { return 0; }
    Status finish(Transfer) override { return {}; }
    Status pin(std::span<std::byte>) override {
      ++num_calls;
      return error(StatusCode::kResourceExhausted, "no more");
    }
    void unpin(std::span<std::byte>) override { ADD_FAILURE() << "it was not pinned"; }
    std::atomic<int> num_calls = 0;
  } refuses;
  std::vector<std::byte> memory(100);
  {
    const HostPinner pinner(refuses, memory, 4096);
    while (refuses.num_calls == 0) std::this_thread::yield();
    EXPECT_EQ(pinner.pinned_bytes(), 0);
  }
  EXPECT_EQ(refuses.num_calls, 1);
}

}  // namespace
}  // namespace espalier
