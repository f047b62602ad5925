// How fast this machine reads memory: the ceiling of everything that streams weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "tensor/buffer.h"
#include "tensor/work_pool.h"

namespace espalier::bench {

// Owns the memory that is read, so that a further measurement only reads.
class ReadRate {
 public:
  // size_bytes: well above all caches.
  static Result<ReadRate> create(WorkPool& pool, size_t size_bytes);

  // Bytes a second: the best of several ways to read, each tried `tries` times by all threads.
  double measure(int tries = 3);

 private:
  ReadRate(WorkPool& pool, Buffer buffer) : pool_(&pool), buffer_(std::move(buffer)) {}
  WorkPool* pool_;
  Buffer buffer_;
};

}  // namespace espalier::bench
