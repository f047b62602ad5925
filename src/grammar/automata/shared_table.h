// An append-only table with one writer and lock-free readers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "grammar/automata/held_bytes.h"

namespace espalier::grammar {

// One thread at a time writes. Any thread may read, without a lock, the elements that it knows to
// exist: because the writer published them to it, or because it found their index in an element
// that set() wrote. Outgrown storage is kept for its readers; together it is smaller than what is
// in use.
template <typename T>
class SharedTable {
 public:
  // Any thread: returns what set() wrote last or is writing, with acquire semantics for what the
  // writer wrote before.
  T read(size_t i) const {
    return std::atomic_ref<T>(data_.load(std::memory_order_acquire)[i])
        .load(std::memory_order_acquire);
  }

  // The other functions are for the writer alone.
  size_t size() const { return size_; }
  T operator[](size_t i) const { return data_.load(std::memory_order_relaxed)[i]; }
  void set(size_t i, T value) {
    std::atomic_ref<T>(data_.load(std::memory_order_relaxed)[i])
        .store(value, std::memory_order_release);
  }
  // Returns the bytes held, with the outgrown storage.
  size_t num_bytes() const {
    return outgrown_ * sizeof(T) + resident_bytes(size_ * sizeof(T), capacity_ * sizeof(T));
  }
  // Appends elements that no other thread knows of yet.
  void append(size_t count, T value) {
    if (size_ + count > capacity_) grow(size_ + count);
    std::fill_n(data_.load(std::memory_order_relaxed) + size_, count, value);
    size_ += count;
  }

 private:
  void grow(size_t least) {
    outgrown_ += capacity_;
    capacity_ = std::max(2 * capacity_, least);
    auto larger = std::make_unique_for_overwrite<T[]>(capacity_);
    std::copy_n(data_.load(std::memory_order_relaxed), size_, larger.get());
    data_.store(larger.get(), std::memory_order_release);
    storage_.push_back(std::move(larger));
  }

  std::atomic<T*> data_{nullptr};                  // the last of storage_
  size_t size_ = 0, capacity_ = 0, outgrown_ = 0;  // elements
  std::vector<std::unique_ptr<T[]>> storage_;
};

}  // namespace espalier::grammar
