// Copies of decoders' weights in pinned memory of the host, from which memory that was released is
// filled again at the rate of the link. Not thread-safe. Borrows the decoders, which outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "models/cuda/decoder.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

class WeightCopies {
 public:
  explicit WeightCopies(std::vector<const CudaDecoder*> decoders)
      : decoders_(std::move(decoders)) {}

  // Takes the memory, unless it is there. kResourceExhausted where the host has none.
  Status allocate();
  int64_t size_bytes() const;

  // The copies have what the devices have, or had when their memory was released.
  bool are_current() const { return are_current_; }
  void outdate() { are_current_ = false; }
  // Takes memory and copies all weights to it, unless the copies are current.
  Status save();
  // Writes them to the devices' memory, which is not released. REQUIRES: they are current.
  Status write() const;
  // Gives the memory back.
  void drop();

 private:
  // Of all decoders at the same time, for each device has a link of its own.
  Status copy_each(const std::function<Status(size_t, const cuda::Stream&)>& copy) const;
  Status each(const std::function<Status(size_t)>& fn) const;
  const cuda::ReleasableBuffer& memory(size_t i) const {
    return decoders_[i]->placed_weights().weights.memory();
  }

  const std::vector<const CudaDecoder*> decoders_;
  std::vector<cuda::PinnedBuffer> buffers_;  // of each decoder; empty: there are none
  bool are_current_ = false;
};

}  // namespace espalier
