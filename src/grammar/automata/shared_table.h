// A table that one thread makes longer while others read it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

namespace espalier::grammar {

// One thread at a time writes; any may read, without a lock, the elements that it knows to be
// there: because it has been told by the writer, or has found their index in an element that set()
// wrote. Outgrown storage is kept, so that whoever still reads it may: all of it is less than what
// is in use.
template <typename T>
class SharedTable {
 public:
  // For any thread: what set() wrote last, or is writing. What the writer had written before is
  // seen, too.
  T read(size_t i) const {
    return std::atomic_ref<T>(data_.load(std::memory_order_acquire)[i])
        .load(std::memory_order_acquire);
  }

  // The rest is the writer's.
  size_t size() const { return size_; }
  T operator[](size_t i) const { return data_.load(std::memory_order_relaxed)[i]; }
  void set(size_t i, T value) {
    std::atomic_ref<T>(data_.load(std::memory_order_relaxed)[i])
        .store(value, std::memory_order_release);
  }
  // Adds elements, which nobody knows of yet.
  void append(size_t count, T value) {
    if (size_ + count > capacity_) grow(size_ + count);
    std::fill_n(data_.load(std::memory_order_relaxed) + size_, count, value);
    size_ += count;
  }

 private:
  void grow(size_t least) {
    capacity_ = std::max(2 * capacity_, least);
    auto larger = std::make_unique_for_overwrite<T[]>(capacity_);
    std::copy_n(data_.load(std::memory_order_relaxed), size_, larger.get());
    data_.store(larger.get(), std::memory_order_release);
    storage_.push_back(std::move(larger));
  }

  std::atomic<T*> data_{nullptr};  // the last of storage_
  size_t size_ = 0, capacity_ = 0;
  std::vector<std::unique_ptr<T[]>> storage_;
};

}  // namespace espalier::grammar
