#include "tensor/cuda/device.h"

#include <cuda_runtime_api.h>

#include "tensor/cuda/device_query.h"
#include "tensor/cuda/error.h"

namespace espalier::cuda {
namespace {

int32_t attribute(cudaDeviceAttr which) {
  int value = 0;
  static_cast<void>(cudaDeviceGetAttribute(&value, which, 0));
  return value;
}

DeviceQuery query_device() {
  using Found = DeviceQuery::Found;
  DeviceQuery query{.architectures = ESPALIER_BUILT_FOR};
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
  if (query.found != Found::kDevices || count == 0) return query;
  query.compute_major = attribute(cudaDevAttrComputeCapabilityMajor);
  query.compute_minor = attribute(cudaDevAttrComputeCapabilityMinor);
  return query;
}

}  // namespace

Result<DeviceInfo> open_device() {
  const DeviceQuery query = query_device();
  if (Status status = check_device(query); !status.ok()) {
    static_cast<void>(cudaGetLastError());
    return fail(std::move(status));
  }
  DeviceInfo info;
  info.compute_major = query.compute_major;
  info.compute_minor = query.compute_minor;
  ESP_RETURN_IF_ERROR(to_status(cudaSetDevice(0), "make a context on device 0"));
  cudaDeviceProp properties{};
  ESP_RETURN_IF_ERROR(to_status(cudaGetDeviceProperties(&properties, 0), "read the device"));
  info.name = properties.name;
  info.num_multiprocessors = properties.multiProcessorCount;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.l2_bytes = properties.l2CacheSize;
  return info;
}

Result<DeviceMemory> read_device_memory() {
  size_t free = 0, total = 0;
  ESP_RETURN_IF_ERROR(to_status(cudaMemGetInfo(&free, &total), "read the device's free memory"));
  return DeviceMemory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

}  // namespace espalier::cuda
