#include "tensor/work_pool.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/thread.h"
#include "fmt/core.h"
#include "tensor/park.h"

namespace espalier {

// Invariant: between runs, running == 0 and every worker waits for `epoch` to move.
struct WorkPool::Impl {
  // Written by run_raw before `epoch` moves, read by workers after.
  RawFn fn = nullptr;
  const void* data = nullptr;
  bool stopping = false;

  alignas(64) std::atomic<uint32_t> epoch{0};
  std::atomic<uint32_t> workers_parked{0};
  alignas(64) std::atomic<uint32_t> running{0};   // workers that have not finished this run
  alignas(64) std::atomic<uint32_t> finished{0};  // moves when running reaches zero
  std::atomic<uint32_t> caller_parked{0};
  alignas(64) std::atomic<int64_t> next{0};  // parallel_for's first index not yet taken

  std::vector<int> cpus;
  std::vector<std::thread> workers;

  void work(int thread) {
    set_thread_name(fmt::format("compute-{}", thread));
    if (thread < static_cast<int>(cpus.size())) pin_this_thread(cpus[thread]);
    uint32_t seen = 0;
    while (true) {
      wait_for_change(epoch, seen, workers_parked);
      seen = epoch.load(std::memory_order_acquire);
      if (stopping) return;
      fn(data, thread);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        finished.fetch_add(1, std::memory_order_seq_cst);
        wake_all(finished, caller_parked);
      }
    }
  }

  void start_epoch() {
    epoch.fetch_add(1, std::memory_order_seq_cst);
    wake_all(epoch, workers_parked);
  }
};

WorkPool::WorkPool(int num_threads, int first_cpu) : impl_(std::make_unique<Impl>()) {
  impl_->cpus = usable_cpus();
  impl_->cpus.erase(
      impl_->cpus.begin(),
      impl_->cpus.begin() + std::min<std::ptrdiff_t>(first_cpu, std::ssize(impl_->cpus)));
  if (num_threads <= 0) num_threads = std::max<int>(1, static_cast<int>(impl_->cpus.size()));
  for (int thread = 1; thread < num_threads; ++thread) {
    impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->work(thread); });
  }
}

WorkPool::~WorkPool() {
  impl_->stopping = true;
  impl_->start_epoch();
  for (std::thread& worker : impl_->workers) worker.join();
}

int WorkPool::num_threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

bool WorkPool::bind_caller() { return !impl_->cpus.empty() && pin_this_thread(impl_->cpus[0]); }

void WorkPool::run_raw(RawFn fn, const void* data) {
  Impl& impl = *impl_;
  if (impl.workers.empty()) {
    fn(data, 0);
    return;
  }
  impl.fn = fn;
  impl.data = data;
  const uint32_t before = impl.finished.load(std::memory_order_relaxed);
  impl.running.store(static_cast<uint32_t>(impl.workers.size()), std::memory_order_relaxed);
  impl.start_epoch();
  fn(data, 0);
  wait_for_change(impl.finished, before, impl.caller_parked);
}

void WorkPool::parallel_for_raw(int64_t count, int64_t grain, RawRangeFn fn, const void* data) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (count <= grain || num_threads() == 1) {
    for (int64_t begin = 0; begin < count; begin += grain) {
      fn(data, begin, std::min(count, begin + grain));
    }
    return;
  }
  impl_->next.store(0, std::memory_order_relaxed);
  run([&](int) {
    while (true) {
      const int64_t begin = impl_->next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      fn(data, begin, std::min(count, begin + grain));
    }
  });
}

}  // namespace espalier
