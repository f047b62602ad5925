#include <algorithm>

#include "kernels/cuda/launch.h"
#include "tensor/cuda/device_query.h"

namespace espalier::kernels::cuda {
namespace {

Status no_device(cudaError_t code) {
  return error(StatusCode::kUnavailable,
               "no usable CUDA device: {} ({}); check nvidia-smi and the driver's version, or run "
               "on the CPU",
               cudaGetErrorString(code), cudaGetErrorName(code));
}

Result<DeviceTraits> read_traits(int device) {
  DeviceTraits traits;
  const auto read = [&](cudaDeviceAttr attribute, int& value) {
    return cudaDeviceGetAttribute(&value, attribute, device);
  };
  int major = 0, minor = 0, processors = 0, l2 = 0, shared = 0;
  for (const cudaError_t code :
       {read(cudaDevAttrComputeCapabilityMajor, major),
        read(cudaDevAttrComputeCapabilityMinor, minor),
        read(cudaDevAttrMultiProcessorCount, processors), read(cudaDevAttrL2CacheSize, l2),
        read(cudaDevAttrMaxSharedMemoryPerBlockOptin, shared)})
    if (code != cudaSuccess) return fail(no_device(code));
  const auto code = espalier::cuda::code_for(ESPALIER_BUILT_FOR, major, minor);
  if (!code)
    return fail(error(StatusCode::kUnavailable,
                      "this build has no code for compute capability {}.{}, only for {}", major,
                      minor, ESPALIER_BUILT_FOR));
  // The traits describe the code, not the device, since kernels that need more are stubs in it.
  // Kernels for 9.0 need code for exactly 9.0 (sm_90a).
  traits.compute_capability = code->own ? code->architecture : std::min(code->architecture, 80);
  traits.num_multiprocessors = processors;
  traits.l2_bytes = l2;
  traits.shared_bytes_per_block = shared;
  return traits;
}

}  // namespace

Result<DeviceTraits> device_traits() {
  int device = 0;
  if (const cudaError_t code = cudaGetDevice(&device); code != cudaSuccess)
    return fail(no_device(code));
  thread_local int known_device = -1;
  thread_local DeviceTraits known;
  if (known_device != device) {
    ESP_ASSIGN_OR_RETURN(known, read_traits(device));
    known_device = device;
  }
  return known;
}

}  // namespace espalier::kernels::cuda
