// Device memory and pinned host memory: few large blocks, allocated at start and divided by an
// Arena. Nothing is allocated once the engine runs. Buffers own their memory; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "tensor/cuda/stream.h"

namespace espalier::cuda {

// Owns a block of device memory; move-only; not initialised. A default-constructed one is empty.
class DeviceBuffer {
 public:
  // kResourceExhausted names `what`, its size and what is free.
  static Result<DeviceBuffer> allocate(int64_t size_bytes, std::string_view what);
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  void swap(DeviceBuffer& other) noexcept;
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

// Owns pinned host memory, which the device copies from and to without waiting for the processor;
// otherwise as DeviceBuffer.
class PinnedBuffer {
 public:
  static Result<PinnedBuffer> allocate(int64_t size_bytes, std::string_view what);
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  void swap(PinnedBuffer& other) noexcept;
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

// Divides one block, front to back. Laying out twice, first from no block, measures what is needed:
// the pointers of the first pass are null and mean nothing. Borrows the block.
class Arena {
 public:
  static constexpr int64_t kAlignment =
      256;  // bytes, of every allocation: the largest that a kernel requires

  Arena() = default;
  explicit Arena(std::byte* base) : base_(base) {}

  template <typename T>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  int64_t used_bytes() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  int64_t used_ = 0;
};

// Asynchronous, in the stream's order; host memory is pinned.
Status copy_to_device(void* device, const void* host, int64_t size_bytes, const Stream& stream);
Status copy_to_host(void* host, const void* device, int64_t size_bytes, const Stream& stream);
// Between memory of this device, or of others whose memory it reaches.
Status copy_between_devices(void* to, const void* from, int64_t size_bytes, const Stream& stream);
Status fill_bytes(void* device, int value, int64_t size_bytes, const Stream& stream);

// From one device's memory to another's, or to the same: directly where the two have peer access
// (allow_peer_access), else through the host. Asynchronous, in the order of the stream, which is of
// either device.
struct DeviceBytes {
  std::byte* data = nullptr;
  int32_t device = 0;
};
Status copy_to_peer(const DeviceBytes& to, const DeviceBytes& from, int64_t size_bytes,
                    const Stream& stream);

// Rows on the device, `pitch` bytes from one to the next; in the host's memory they lie one behind
// the other. One copy of a DMA unit, whatever their number. Host memory that is not pinned is
// copied through the driver's, and the call may wait for that.
struct DeviceRows {
  std::byte* first = nullptr;
  int64_t pitch = 0;  // at most pitch_max(), and at least row_bytes, where there are several
  int64_t row_bytes = 0;
  int64_t num_rows = 0;
};
Status copy_rows_to_device(const DeviceRows& rows, const std::byte* host, const Stream& stream);
Status copy_rows_to_host(std::byte* host, const DeviceRows& rows, const Stream& stream);
Result<int64_t> pitch_max();  // of the thread's current device

// Pins memory of the host for all devices, until unpin_memory() of the same address.
Status pin_memory(std::byte* begin, int64_t size_bytes);
void unpin_memory(std::byte* begin);

}  // namespace espalier::cuda
