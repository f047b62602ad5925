#include "tensor/work_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "base/thread.h"
#include "fmt/core.h"

namespace espalier {
namespace {

using SpinClock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr,
          nullptr, 0);
}

// Waits until `word` is no longer `old`: spins for at most kSpin, then sleeps in the kernel.
// `parked` counts the sleepers, so that a waker makes no system call where there is none. The waker
// changes `word` before it reads `parked`, the sleeper raises `parked` before it reads `word`, both
// in the one total order, so one of them sees the other's write.
void wait_for_change(std::atomic<uint32_t>& word, uint32_t old, std::atomic<uint32_t>& parked) {
  const auto give_up = SpinClock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      cpu_relax();
    }
  } while (SpinClock::now() < give_up);
  parked.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == old) futex_wait(&word, old);
  parked.fetch_sub(1, std::memory_order_relaxed);
}

void wake(std::atomic<uint32_t>& word, std::atomic<uint32_t>& parked) {
  if (parked.load(std::memory_order_seq_cst) != 0) futex_wake_all(&word);
}

}  // namespace

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
        wake(finished, caller_parked);
      }
    }
  }

  void start_epoch() {
    epoch.fetch_add(1, std::memory_order_seq_cst);
    wake(epoch, workers_parked);
  }
};

WorkPool::WorkPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  impl_->cpus = usable_cpus();
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
