// Device memory that is given back to the driver and taken again at the same address, so pointers
// to it stay, in captured graphs and tensor maps too: an address range that stays reserved, and
// memory that is mapped to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::cuda {

// Not initialised. Not thread-safe. Work of the device that touches the memory has ended before it
// is released or destroyed.
class ReleasableBuffer {
 public:
  // On the current device. kResourceExhausted names `what`, its size and what is free.
  static Result<std::unique_ptr<ReleasableBuffer>> allocate(int64_t size_bytes,
                                                            std::string_view what);
  ReleasableBuffer(const ReleasableBuffer&) = delete;
  ReleasableBuffer& operator=(const ReleasableBuffer&) = delete;
  ~ReleasableBuffer();

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  int64_t size_bytes() const { return size_bytes_; }
  bool is_released() const { return handle_ == 0; }

  // Lets other devices, whose memory and this one's reach each other, read and write it, also when
  // it has been restored. REQUIRES: it is not released.
  Status share(std::span<const int32_t> devices);

  // Gives the memory back; the contents are lost. REQUIRES: it is not released.
  Status release();
  // Takes memory again, not initialised. After a failure it is still released. REQUIRES: it is
  // released.
  Status restore();

 private:
  ReleasableBuffer(int64_t size_bytes, std::string_view what)
      : size_bytes_(size_bytes), what_(what) {}

  Status open() const;  // to its device and those that it is shared with

  const int64_t size_bytes_;
  const std::string what_;
  std::vector<int32_t> shared_with_;
  int device_ = 0;
  size_t mapped_bytes_ = 0;  // size_bytes_ in the driver's granules
  uint64_t address_ = 0;     // of the range; 0: none is reserved
  uint64_t handle_ = 0;      // of the memory; 0: none is mapped
};

}  // namespace espalier::cuda
