// The threads that fill the masks of a step's sequences.
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

// For batches of small pieces of work of very different cost: a mask that is known takes less than
// a microsecond, one that is made may take a thousand. The caller begins at once and goes on
// throughout; threads are woken when what is left, at the rate so far, is worth their coming. They
// are parked otherwise, and the caller waits for none that has not come. One thread calls run() at
// a time.
class MaskPool {
 public:
  // Threads in all, the caller among them: with 1 it is alone.
  explicit MaskPool(int32_t num_threads);
  ~MaskPool();
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;

  int32_t num_threads() const { return static_cast<int32_t>(threads_.size()) + 1; }

  // Calls item(i, thread) once for each i of [0, count) and returns when all calls have; thread is
  // one of [0, num_threads()) that has no other call at the time. Allocates nothing.
  template <typename Item>
  void run(size_t count, const Item& item) {
    run_raw(
        count,
        [](const void* data, size_t i, int32_t thread) {
          (*static_cast<const Item*>(data))(i, thread);
        },
        &item);
  }

  // Of run(), those that threads were woken for. For the caller's thread.
  int64_t num_shared() const { return num_shared_; }

  // Threads are woken when so many microseconds are left for each, at the rate so far. 0: always.
  void set_worth_us(double us) { worth_us_ = us; }

 private:
  using RawItem = void (*)(const void*, size_t, int32_t);
  void run_raw(size_t count, RawItem item, const void* data);
  void work(int32_t thread);
  void call(int32_t num_threads);
  void dismiss();
  int32_t worth_calling(size_t done, size_t left, double us) const;

  double worth_us_;
  double last_us_ = 0;  // of an item, in the batch before
  int64_t num_shared_ = 0;

  // The batch: written while no thread is `present_`.
  RawItem item_ = nullptr;
  const void* data_ = nullptr;
  size_t count_ = 0;
  alignas(64) std::atomic<size_t> next_{0};  // the first item that nobody has taken

  alignas(64) std::mutex mutex_;
  std::condition_variable wanted_changed_, all_left_;
  int32_t wanted_ = 0;  // threads that may still come to this batch
  std::atomic<int32_t> present_{0};
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Fills masks[i * words_per_mask ...] as matchers[i]->fill_mask() does. REQUIRES: matchers of one
// vocabulary, each once.
void fill_masks(MaskPool& pool, std::span<Matcher* const> matchers, std::span<uint32_t> masks);

}  // namespace espalier::grammar
