// The GPUs of this process, by their index among those that CUDA_VISIBLE_DEVICES leaves: whether
// one can be used, its properties and its free memory. Free of CUDA's headers and present in every
// build: one without CUDA reports that it has none.
//
// Every thread has a current device, 0 at first, on which its calls allocate memory, make streams
// and events and launch kernels. A thread that works for an object of another device calls
// use_device() with the object's index first. Memory, streams and events stay with the device that
// they were made on, and any thread may free them. Thread-safe.
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

// Opens the device, creates its context and makes it the thread's current one. kUnavailable names
// what is missing and what to do: a build without CUDA, no driver, a driver older than this build's
// CUDA, no device of this index, a device older than compute capability 8.0 or one that this build
// has no code for.
Result<DeviceInfo> open_device(int32_t index = 0);
// Devices that CUDA finds; 0 in a build without CUDA.
int32_t count_devices();

// Makes an open device the thread's current one; costs nothing where it is.
Status use_device(int32_t index);
int32_t current_device();
// Makes the thread's current device the same at its end as at its begin.
class RestoredDevice {
 public:
  RestoredDevice() : device_(current_device()) {}
  RestoredDevice(const RestoredDevice&) = delete;
  RestoredDevice& operator=(const RestoredDevice&) = delete;
  ~RestoredDevice() { static_cast<void>(use_device(device_)); }

 private:
  const int32_t device_;
};
Result<std::string> device_name(int32_t index);  // of a device that CUDA finds: "NVIDIA H200"

// Lets kernels and copies on the thread's current device read and write the other device's memory,
// all that is or will be allocated there. kUnavailable where the system has no such way between the
// two.
Status allow_peer_access(int32_t peer);

// Memory of the thread's current device, in bytes.
struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};
Result<DeviceMemory> read_device_memory();

}  // namespace espalier::cuda
