// Host memory for weights, caches and scratch: aligned, zero, committed by the system only as it is
// written. Not thread-safe; a Buffer owns its bytes.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"

namespace espalier {

// Owns its bytes; move-only. Starts at a 64-byte boundary, filled with zeros. From kHugeBytes on it
// is mapped directly, starts at a 2 MiB boundary and requests huge pages; its pages take memory
// only once written. A default-constructed buffer is empty.
class Buffer {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kHugeBytes = size_t{2} << 20;

  Buffer() = default;
  // kResourceExhausted, with the size, when there is no memory.
  static Result<Buffer> allocate(size_t size_bytes);

  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  void* mapping_ = nullptr;  // of a large buffer: what munmap takes
  size_t mapping_bytes_ = 0;
};

}  // namespace espalier
