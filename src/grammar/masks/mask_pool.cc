#include "grammar/masks/mask_pool.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/thread.h"

namespace espalier::grammar {
namespace {

// Work that must be left for each thread that is woken. A wake-up costs the caller 3 to 16 us, and
// the thread starts after 2 to 50 us (two processors; docs/notes/grammar.md).
constexpr double kWorthUs = 100;

// How long the caller spins for threads to finish before it parks: most have an item of a few
// microseconds left.
constexpr double kSpinUs = 20;

double us_since(const SteadyClock& clock, TimePoint start) {
  return to_seconds(clock.now() - start) * 1e6;
}

}  // namespace

MaskPool::MaskPool(int32_t num_threads) : worth_us_(kWorthUs) {
  for (int32_t thread = 1; thread < num_threads; ++thread)
    threads_.emplace_back([this, thread] { work(thread); });
}

MaskPool::~MaskPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wanted_changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskPool::run_raw(size_t count, RawItem item, const void* data) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  item_ = item;
  data_ = data;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  int32_t called = threads_.empty() ? 0 : worth_calling(1, count, last_us_);
  if (called > 0) call(called);
  size_t done = 0;
  for (size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count;) {
    item(data, i, 0);
    ++done;
    if (called > 0 || threads_.empty()) continue;
    called = worth_calling(done, count - done, us_since(clock, start));
    if (called > 0) call(called);
  }
  if (done > 0) last_us_ = us_since(clock, start) / static_cast<double>(done);
  if (called > 0) dismiss();
}

// Returns how many threads are worth waking after `done` items took `us`.
int32_t MaskPool::worth_calling(size_t done, size_t left, double us) const {
  if (left < 2) return 0;
  const double left_us = us / static_cast<double>(done) * static_cast<double>(left);
  const auto most = std::min(threads_.size(), left - 1);
  if (worth_us_ <= 0) return static_cast<int32_t>(most);
  return static_cast<int32_t>(std::min(left_us / worth_us_, static_cast<double>(most)));
}

void MaskPool::call(int32_t num_threads) {
  ++num_shared_;
  {
    const std::lock_guard lock(mutex_);
    wanted_ = num_threads;
  }
  if (num_threads == std::ssize(threads_)) return wanted_changed_.notify_all();
  for (int32_t i = 0; i < num_threads; ++i) wanted_changed_.notify_one();
}

// Closes the batch to further threads and waits for those that joined.
void MaskPool::dismiss() {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = 0;
  }
  const SteadyClock clock;
  const TimePoint start = clock.now();
  while (present_.load(std::memory_order_acquire) > 0 && us_since(clock, start) < kSpinUs) {
  }
  std::unique_lock lock(mutex_);
  all_left_.wait(lock, [this] { return present_.load(std::memory_order_acquire) == 0; });
}

void MaskPool::work(int32_t thread) {
  set_thread_name("masks");
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_changed_.wait(lock, [this] { return stopping_ || wanted_ > 0; });
    if (stopping_) return;
    --wanted_;
    present_.fetch_add(1, std::memory_order_relaxed);
    lock.unlock();
    for (size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;)
      item_(data_, i, thread);
    lock.lock();
    if (present_.fetch_sub(1, std::memory_order_release) == 1) all_left_.notify_one();
  }
}

void fill_masks(MaskPool& pool, std::span<Matcher* const> matchers, std::span<uint32_t> masks) {
  if (matchers.empty()) return;
  const auto words = static_cast<size_t>(matchers[0]->words_per_mask());
  ESP_CHECK(masks.size() == matchers.size() * words, "{} words", masks.size());
  pool.run(matchers.size(),
           [&](size_t i, int32_t) { matchers[i]->fill_mask(masks.subspan(i * words, words)); });
}

}  // namespace espalier::grammar
