// Pinned memory of the host for the rows of pictures, which a device writes and other devices read
// by their DMA units. It grows by slabs, since pinning takes long, and keeps what it has.
//
// Thread-safe. Blocks keep the memory alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "tensor/cuda/memory.h"

namespace espalier {

class PinnedRows : public std::enable_shared_from_this<PinnedRows> {
 public:
  // block_bytes: of a picture's rows.
  explicit PinnedRows(int64_t block_bytes);

  // A block, not initialised; it comes back when its last owner lets go of it.
  // kResourceExhausted: the host gives no more memory.
  Result<std::shared_ptr<std::byte>> take();

 private:
  Status grow();
  void give_back(std::byte* block);

  const int64_t block_bytes_, slab_blocks_;
  std::mutex mutex_;
  std::vector<cuda::PinnedBuffer> slabs_;
  std::vector<std::byte*> free_;  // has room for all blocks
};

}  // namespace espalier
