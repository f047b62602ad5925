// For tests: copies pages as a device beyond the host does, beside its caller and late. What is
// copied is what lies there when the copy runs, so a page that is used for something else too early
// gives wrong bytes. Some transfers may fail, and leave garbage in their destination.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "cache/page_copier.h"

namespace espalier {

class RemoteCopier final : public PageCopier {
 public:
  struct Options {
    uint64_t seed = 1;
    std::chrono::microseconds delay_max{0};  // before each copy
    uint64_t fail_one_of = 0;                // transfers; 0: none fails
  };
  // Borrows the device's own copier.
  RemoteCopier(PageCopier& device, const Options& options)
      : device_(device), options_(options), rng_(options.seed) {
    for (Direction* direction : {&reads_, &writes_})
      direction->thread = std::thread([this, direction] { run(*direction); });
  }
  ~RemoteCopier() override {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (Direction* direction : {&reads_, &writes_}) direction->thread.join();
  }

  int64_t page_bytes() const override { return device_.page_bytes(); }
  std::string device_name() const override { return "remote"; }
  Transfer begin_read(PageId page, std::span<std::byte> to) override {
    return begin(reads_, {.page = page, .to = to});
  }
  Transfer begin_write(PageId page, std::span<const std::byte> from) override {
    return begin(writes_, {.page = page, .from = from});
  }
  Status finish(Transfer transfer) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_.contains(transfer); });
    return ended_.extract(transfer).mapped();
  }

  bool uses_pinned_memory() const override { return true; }
  Status pin(std::span<std::byte> range) override {
    const std::lock_guard lock(mutex_);
    num_pinned_ += range.size();
    return {};
  }
  void unpin(std::span<std::byte> range) override {
    const std::lock_guard lock(mutex_);
    num_pinned_ -= range.size();
  }
  size_t num_pinned() const {
    const std::lock_guard lock(mutex_);
    return num_pinned_;
  }
  size_t num_writes() const {  // begun so far
    const std::lock_guard lock(mutex_);
    return num_writes_;
  }
  size_t num_begun_at_once() const {  // of one direction, the most so far
    const std::lock_guard lock(mutex_);
    return num_at_once_;
  }

 private:
  struct Job {
    Transfer transfer = 0;
    PageId page = 0;
    std::span<std::byte> to;          // of a read
    std::span<const std::byte> from;  // of a write
  };
  struct Direction {
    std::deque<Job> jobs;  // the first one may be running
    std::thread thread;
  };

  Transfer begin(Direction& direction, Job job) {
    const std::lock_guard lock(mutex_);
    job.transfer = ++num_begun_;
    num_writes_ += job.to.empty() ? 1 : 0;
    direction.jobs.push_back(job);
    num_at_once_ = std::max(num_at_once_, direction.jobs.size());
    changed_.notify_all();
    return job.transfer;
  }
  Status copy(const Job& job, bool fails) {
    const std::vector<std::byte> garbage(static_cast<size_t>(page_bytes()), std::byte{0xee});
    if (job.to.empty()) {
      const Status written = device_.write_page(job.page, fails ? garbage : job.from);
      return fails ? error(StatusCode::kInternal, "a write fails in a test") : written;
    }
    if (!fails) return device_.read_page(job.page, job.to);
    std::ranges::copy(garbage, job.to.begin());
    return error(StatusCode::kInternal, "a read fails in a test");
  }
  void run(Direction& direction) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopped_ || !direction.jobs.empty(); });
      if (direction.jobs.empty()) return;
      const Job job = direction.jobs.front();
      const auto delay = static_cast<uint64_t>(options_.delay_max.count());
      const std::chrono::microseconds wait(delay == 0 ? 0 : rng_.below(delay));
      const bool fails = options_.fail_one_of > 0 && rng_.below(options_.fail_one_of) == 0;
      lock.unlock();
      if (wait.count() > 0) std::this_thread::sleep_for(wait);
      Status status = copy(job, fails);
      lock.lock();
      direction.jobs.pop_front();
      ended_.emplace(job.transfer, std::move(status));
      changed_.notify_all();
    }
  }

  PageCopier& device_;
  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Rng rng_;
  Direction reads_, writes_;
  std::map<Transfer, Status> ended_;
  uint64_t num_begun_ = 0;
  size_t num_at_once_ = 0, num_pinned_ = 0, num_writes_ = 0;
  bool stopped_ = false;
};

}  // namespace espalier
