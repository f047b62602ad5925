// Device memory of another process on this computer (CUDA IPC), as its cudaMalloc made it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier::cuda {

// Maps an allocation of another process while the object lives; the other process keeps it
// meanwhile. Move-only; not thread-safe.
class SharedMemory {
 public:
  // handle: the 64 bytes of cudaIpcMemHandle_t. kInvalidArgument where it opens nothing: the
  // process has ended, is this one, or has the memory by other means than cudaMalloc.
  static Result<SharedMemory> open(std::string_view handle);
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept { swap(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~SharedMemory();

  const std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }  // of the whole allocation

 private:
  void swap(SharedMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
  }
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

// The handle by which other processes of this computer open the buffer's memory, on any GPU that
// reaches it. The buffer outlives their mappings, or their reads are undefined.
Result<std::string> share_memory(const DeviceBuffer& buffer);

// Rows of row_bytes from one pitch to another, on one device or between two; in the stream's order.
// Pitches are at most pitch_max(), and not read with one row.
struct PitchedRows {
  std::byte* to = nullptr;
  int64_t to_pitch = 0;
  const std::byte* from = nullptr;
  int64_t from_pitch = 0;
  int64_t row_bytes = 0;
  int64_t num_rows = 0;
};
Status copy_rows_on_devices(const PitchedRows& rows, const Stream& stream);

// Rows of row_bytes, from_pitch apart, one behind the other to `to`; in the stream's order.
Status copy_on_device(std::byte* to, const std::byte* from, int64_t from_pitch, int64_t row_bytes,
                      int64_t num_rows, const Stream& stream);

}  // namespace espalier::cuda
