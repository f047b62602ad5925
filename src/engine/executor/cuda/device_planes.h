// Memory of the current device for the keys and values of a KvPool.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "cache/kv_pool.h"
#include "tensor/cuda/memory.h"

namespace espalier {

// Not initialised. kResourceExhausted where the device has no room.
inline Result<std::unique_ptr<KvPlanes>> allocate_device_planes(int64_t size_bytes) {
  class DevicePlanes final : public KvPlanes {
   public:
    explicit DevicePlanes(cuda::DeviceBuffer buffer) : buffer_(std::move(buffer)) {}
    std::byte* data() override { return buffer_.data(); }

   private:
    cuda::DeviceBuffer buffer_;
  };
  ESP_ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer,
                       cuda::DeviceBuffer::allocate(size_bytes, "keys and values"));
  return std::make_unique<DevicePlanes>(std::move(buffer));
}

}  // namespace espalier
