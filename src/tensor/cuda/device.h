// The GPU that this process uses: whether there is one, its properties and its free memory. Free of
// CUDA's headers and present in every build: one without CUDA reports that it has none.
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace espalier::cuda {

struct DeviceInfo {
  std::string name;  // "NVIDIA H200"
  int32_t compute_major = 0, compute_minor = 0;
  int32_t num_multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
};

// Opens the first device that CUDA_VISIBLE_DEVICES leaves and creates its context. kUnavailable
// names what is missing and what to do: a build without CUDA, no driver, a driver older than this
// build's CUDA, no device, a device older than compute capability 8.0 or one that this build has no
// code for.
Result<DeviceInfo> open_device();

// Memory of the opened device, in bytes.
struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};
Result<DeviceMemory> read_device_memory();

}  // namespace espalier::cuda
