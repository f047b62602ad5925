#include "tensor/cuda/device.h"

#include <cuda_runtime_api.h>

#include "tensor/cuda/device_query.h"
#include "tensor/cuda/error.h"

namespace espalier::cuda {
namespace {

// What the thread's calls go to: the runtime's own answer would cost a call into it for each step.
thread_local int32_t thread_device = 0;

int32_t attribute(cudaDeviceAttr which, int32_t index) {
  int value = 0;
  static_cast<void>(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

DeviceQuery query_device(int32_t index) {
  using Found = DeviceQuery::Found;
  DeviceQuery query{.index = index, .architectures = ESPALIER_BUILT_FOR};
  int driver = 0, runtime = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return query;
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  query.driver_version = driver;
  query.runtime_version = runtime;
  const cudaError_t found = cudaGetDeviceCount(&count);
  query.num_devices = count;
  query.found = found == cudaSuccess                   ? Found::kDevices
                : found == cudaErrorInsufficientDriver ? Found::kOldDriver
                : found == cudaErrorNoDevice           ? Found::kNone
                                                       : Found::kOtherError;
  if (query.found == Found::kOtherError) query.error = cudaGetErrorString(found);
  if (query.found != Found::kDevices || index < 0 || index >= count) return query;
  query.compute_major = attribute(cudaDevAttrComputeCapabilityMajor, index);
  query.compute_minor = attribute(cudaDevAttrComputeCapabilityMinor, index);
  return query;
}

}  // namespace

Result<DeviceInfo> open_device(int32_t index) {
  const DeviceQuery query = query_device(index);
  if (Status status = check_device(query); !status.ok()) {
    static_cast<void>(cudaGetLastError());
    return fail(std::move(status));
  }
  DeviceInfo info;
  info.compute_major = query.compute_major;
  info.compute_minor = query.compute_minor;
  thread_device = -1;
  ESP_RETURN_IF_ERROR(use_device(index));
  cudaDeviceProp properties{};
  ESP_RETURN_IF_ERROR(to_status(cudaGetDeviceProperties(&properties, index), "read the device"));
  info.name = properties.name;
  info.num_multiprocessors = properties.multiProcessorCount;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.l2_bytes = properties.l2CacheSize;
  return info;
}

int32_t count_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;
}

Status use_device(int32_t index) {
  if (index == thread_device) return Status();
  ESP_RETURN_IF_ERROR(
      to_status(cudaSetDevice(index), fmt::format("make a context on device {}", index)));
  thread_device = index;
  return Status();
}

Result<std::string> device_name(int32_t index) {
  cudaDeviceProp properties{};
  ESP_RETURN_IF_ERROR(to_status(cudaGetDeviceProperties(&properties, index), "read the device"));
  return std::string(properties.name);
}

int32_t current_device() { return thread_device < 0 ? 0 : thread_device; }

Status allow_peer_access(int32_t peer) {
  const int32_t device = current_device();
  int possible = 0;
  ESP_RETURN_IF_ERROR(to_status(cudaDeviceCanAccessPeer(&possible, device, peer),
                                "ask for peer access between devices"));
  if (possible == 0) {
    return error(StatusCode::kUnavailable,
                 "the GPUs {} and {} cannot read each other's memory (peer access), which several "
                 "ranks need; choose GPUs that NVLink or one PCIe root connects (nvidia-smi topo "
                 "-m), or leave --tp-size out",
                 device, peer);
  }
  const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
    return Status();
  }
  return to_status(code, fmt::format("open the memory of device {} to device {}", peer, device));
}

Result<DeviceMemory> read_device_memory() {
  size_t free = 0, total = 0;
  ESP_RETURN_IF_ERROR(to_status(cudaMemGetInfo(&free, &total), "read the device's free memory"));
  return DeviceMemory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

}  // namespace espalier::cuda
