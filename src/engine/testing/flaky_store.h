// For tests: a store that is slow and forgets. Pages come late, some never; some are refused when
// they are put. What it gives is right.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "tiers/page_store.h"

namespace espalier {

class FlakyStore final : public PageStore {
 public:
  struct Options {
    uint64_t seed = 1;
    int64_t page_bytes = 0;
    uint64_t lose_one_of = 0;                // pages that are read; 0: loses none
    uint64_t refuse_one_of = 0;              // batches that are put
    std::chrono::microseconds delay_max{0};  // of each get()
  };
  explicit FlakyStore(const Options& options)
      : options_(options), rng_(options.seed), thread_([this] { run(); }) {}
  ~FlakyStore() override {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  std::string_view kind() const override { return "flaky"; }
  int64_t page_bytes() const override { return options_.page_bytes; }
  void get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) override {
    const std::lock_guard lock(mutex_);
    gets_.push_back({{names.begin(), names.end()}, std::move(sink)});
    changed_.notify_all();
  }
  size_t put(std::span<const PageName> names, const FillPage& fill) override {
    const std::lock_guard lock(mutex_);
    if (options_.refuse_one_of > 0 && rng_.below(options_.refuse_one_of) == 0) return 0;
    for (size_t i = 0; i < names.size(); ++i) {
      if (pages_.contains(names[i])) continue;
      std::vector<std::byte> bytes(static_cast<size_t>(options_.page_bytes));
      if (!fill(i, bytes)) return i;
      pages_[names[i]] = std::move(bytes);
      ++stats_.stored;
    }
    return names.size();
  }
  size_t num_leading(std::span<const PageName> names) const override {
    const std::lock_guard lock(mutex_);
    size_t count = 0;
    while (count < names.size() && pages_.contains(names[count])) ++count;
    return count;
  }
  void erase(std::span<const PageName> names) override {
    const std::lock_guard lock(mutex_);
    for (const PageName& name : names) pages_.erase(name);
  }
  void clear() override {
    const std::lock_guard lock(mutex_);
    pages_.clear();
  }
  void flush() override {}
  PageStoreStats stats() const override {
    const std::lock_guard lock(mutex_);
    PageStoreStats stats = stats_;
    stats.num_pages = static_cast<int64_t>(pages_.size());
    return stats;
  }

 private:
  using Get = std::pair<std::vector<PageName>, std::shared_ptr<PageSink>>;

  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || !gets_.empty(); });
      if (gets_.empty()) return;
      const Get get = std::move(gets_.front());
      gets_.pop_front();
      const auto delay = static_cast<uint64_t>(options_.delay_max.count());
      const std::chrono::microseconds wait(delay == 0 ? 0 : rng_.below(delay));
      lock.unlock();
      if (wait.count() > 0) std::this_thread::sleep_for(wait);
      for (size_t i = 0; i < get.first.size(); ++i) {
        lock.lock();
        const bool loses = options_.lose_one_of > 0 && rng_.below(options_.lose_one_of) == 0;
        const auto found = pages_.find(get.first[i]);
        const std::vector<std::byte> bytes =
            loses || found == pages_.end() ? std::vector<std::byte>() : found->second;
        lock.unlock();
        get.second->on_page(i, bytes);
        if (!bytes.empty()) get.second->on_release(i);
      }
      get.second->on_done();
    }
  }

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Rng rng_;
  std::map<PageName, std::vector<std::byte>> pages_;
  std::deque<Get> gets_;
  PageStoreStats stats_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace espalier
