#include "tensor/cuda/device.h"

#include <cuda_runtime_api.h>

#include "tensor/cuda/error.h"

namespace espalier::cuda {
namespace {

constexpr int kOldestMajor = 8;

std::string version(int code) { return fmt::format("{}.{}", code / 1000, code % 1000 / 10); }

Status unavailable(std::string what) { return Status(StatusCode::kUnavailable, std::move(what)); }

Status check_driver() {
  int driver = 0, runtime = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return unavailable("no NVIDIA driver was found; install one, or use --device cpu");
  }
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaErrorInsufficientDriver) {
    return unavailable(
        fmt::format("the NVIDIA driver supports CUDA {} and this build needs {}; update the "
                    "driver, or use --device cpu",
                    version(driver), version(runtime)));
  }
  if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0)) {
    return unavailable(
        "no NVIDIA device is visible (see CUDA_VISIBLE_DEVICES and nvidia-smi); or use --device "
        "cpu");
  }
  return to_status(found, "look for devices");
}

}  // namespace

Result<DeviceInfo> open_device() {
  if (Status status = check_driver(); !status.ok()) {
    static_cast<void>(cudaGetLastError());
    return fail(unavailable(status.message()));
  }
  const auto attribute = [](cudaDeviceAttr which) {
    int value = 0;
    static_cast<void>(cudaDeviceGetAttribute(&value, which, 0));
    return value;
  };
  DeviceInfo info;
  info.compute_major = attribute(cudaDevAttrComputeCapabilityMajor);
  info.compute_minor = attribute(cudaDevAttrComputeCapabilityMinor);
  if (info.compute_major < kOldestMajor) {
    return fail(unavailable(
        fmt::format("the device has compute capability {}.{} and {}.0 is the oldest supported; use "
                    "--device cpu",
                    info.compute_major, info.compute_minor, kOldestMajor)));
  }
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
