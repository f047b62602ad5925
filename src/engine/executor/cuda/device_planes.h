// Memory of the current device for the keys and values of a KvPool.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "cache/kv_pool.h"
#include "models/releasable_memory.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/releasable_buffer.h"
#include "tensor/cuda/stream.h"

namespace espalier {

// At whose addresses pages and graphs stay while the memory is released; it is zero when restored.
class DevicePlanes final : public KvPlanes, public ReleasableMemory {
 public:
  // Not initialised. kResourceExhausted where the device has no room.
  static Result<std::unique_ptr<DevicePlanes>> allocate(int64_t size_bytes) {
    ESP_ASSIGN_OR_RETURN(auto memory,
                         cuda::ReleasableBuffer::allocate(size_bytes, "keys and values"));
    return std::unique_ptr<DevicePlanes>(new DevicePlanes(std::move(memory)));
  }

  std::byte* data() override { return memory_->data(); }

  Result<int64_t> release_memory() override {
    ESP_RETURN_IF_ERROR(cuda::use_device(device_));
    ESP_RETURN_IF_ERROR(memory_->release());
    return memory_->size_bytes();
  }
  Status restore_memory() override {
    ESP_RETURN_IF_ERROR(cuda::use_device(device_));
    ESP_RETURN_IF_ERROR(memory_->restore());
    ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
    ESP_RETURN_IF_ERROR(cuda::fill_bytes(memory_->data(), 0, memory_->size_bytes(), stream));
    return stream.synchronize();
  }

 private:
  explicit DevicePlanes(std::unique_ptr<cuda::ReleasableBuffer> memory)
      : memory_(std::move(memory)), device_(cuda::current_device()) {}

  const std::unique_ptr<cuda::ReleasableBuffer> memory_;
  const int device_;
};

// What owns such planes is released with them. Thread-safe while no step runs.
class ReleasablePlanes : public ReleasableMemory {
 public:
  Result<int64_t> release_memory() override { return planes_->release_memory(); }
  Status restore_memory() override { return planes_->restore_memory(); }

 protected:
  DevicePlanes* planes_ = nullptr;  // set before either is called
};

// As AllocatePlanes.
inline Result<std::unique_ptr<KvPlanes>> allocate_device_planes(int64_t size_bytes) {
  return DevicePlanes::allocate(size_bytes);
}

}  // namespace espalier
