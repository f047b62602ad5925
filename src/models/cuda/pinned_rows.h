// Pinned memory of the host for the rows of pictures, which a device writes and other devices read
// by their DMA units. It grows by slabs, since pinning takes long, and keeps what it has.
//
// Thread-safe. Blocks keep the memory alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "models/cuda/free_ranges.h"
#include "tensor/cuda/memory.h"

namespace espalier {

class PinnedRows : public std::enable_shared_from_this<PinnedRows> {
 public:
  // slab_bytes: what is pinned at once, at least.
  explicit PinnedRows(int64_t slab_bytes) : slab_bytes_(slab_bytes) {}

  // A block, not initialised; it comes back when its last owner lets go of it. REQUIRES: bytes
  // above 0. kResourceExhausted: the host gives no more memory.
  Result<std::shared_ptr<std::byte>> take(int64_t bytes);

 private:
  struct Slab {
    cuda::PinnedBuffer memory;
    FreeRanges free;  // in units
    bool unused() const { return free.num_free() == free.size(); }
  };
  struct Range {
    Slab* slab = nullptr;
    int64_t begin = 0, units = 0;
  };
  Result<Range> take_range(int64_t units);
  void give_back(const Range& range);

  const int64_t slab_bytes_;
  std::mutex mutex_;
  std::list<Slab> slabs_;  // whose addresses stay
};

}  // namespace espalier
