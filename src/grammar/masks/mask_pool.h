// A pool of threads that fill the masks of a step's sequences.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "grammar/grammar.h"

namespace espalier::grammar {

// Runs batches of small work items of very different cost: a cached mask takes less than a
// microsecond, a new one up to a thousand. The caller starts at once and works throughout. Threads
// are parked, and are woken when the remaining work, at the rate so far, is worth it; the caller
// waits only for threads that have joined. One thread at a time calls run().
class MaskPool {
 public:
  // `num_threads` counts the caller; with 1 the caller is alone.
  explicit MaskPool(int32_t num_threads);
  ~MaskPool();
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;

  int32_t num_threads() const { return static_cast<int32_t>(threads_.size()) + 1; }

  // Calls item(i, thread) once for each i of [0, count) and returns when all calls have returned.
  // `thread` is in [0, num_threads()) and has one call at a time. Allocates nothing.
  template <typename Item>
  void run(size_t count, const Item& item) {
    run_raw(
        count,
        [](const void* data, size_t i, int32_t thread) {
          (*static_cast<const Item*>(data))(i, thread);
        },
        &item);
  }

  // The calls of run() for which threads were woken. Only the calling thread may read it.
  int64_t num_shared() const { return num_shared_; }

  // Sets the microseconds of work per thread for which threads are woken; 0 always wakes them.
  void set_worth_us(double us) { worth_us_ = us; }

 private:
  using RawItem = void (*)(const void*, size_t, int32_t);
  void run_raw(size_t count, RawItem item, const void* data);
  void work(int32_t thread);
  void call(int32_t num_threads);
  void dismiss();
  int32_t worth_calling(size_t done, size_t left, double us) const;

  double worth_us_;
  double last_us_ = 0;  // of an item, in the previous batch
  int64_t num_shared_ = 0;

  // The batch: written while `present_` is 0.
  RawItem item_ = nullptr;
  const void* data_ = nullptr;
  size_t count_ = 0;
  alignas(64) std::atomic<size_t> next_{0};  // the first item not yet taken

  alignas(64) std::mutex mutex_;
  std::condition_variable wanted_changed_, all_left_;
  int32_t wanted_ = 0;  // threads that may still join this batch
  std::atomic<int32_t> present_{0};
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Fills masks[i * words_per_mask ...] as matchers[i]->fill_mask() does. REQUIRES: distinct matchers
// of one vocabulary.
void fill_masks(MaskPool& pool, std::span<Matcher* const> matchers, std::span<uint32_t> masks);

}  // namespace espalier::grammar
