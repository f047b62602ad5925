// How launchers of this room start their kernels. For .cu and .cc files that have CUDA's headers.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

inline Status cuda_status(cudaError_t code, const char* operation) {
  if (code == cudaSuccess) return {};
  return error(StatusCode::kInternal, "{}: {} ({})", operation, cudaGetErrorString(code),
               cudaGetErrorName(code));
}

// Starts `kernel`, by programmatic dependent launch where `launch` asks for it and the GPU can. The
// kernel must then call wait_for_previous() (device.cuh) before it touches what others wrote.
template <typename... Params, typename... Args>
Status launch_kernel(const char* operation, void (*kernel)(Params...), dim3 grid, dim3 block,
                     size_t shared_bytes, const LaunchOptions& launch, Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = launch.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  if (launch.overlap) {
    ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
    if (traits.compute_capability >= 90) {
      config.attrs = &attribute;
      config.numAttrs = 1;
    }
  }
  return cuda_status(
      cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...),
      operation);
}
// Lets `kernel` use so much dynamic shared memory; cheap after the first call for the same kernel.
template <typename Kernel>
Status allow_shared(const char* operation, Kernel kernel, size_t shared_bytes) {
  if (shared_bytes <= 48 * 1024) return {};
  return cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shared_bytes)),
                     operation);
}

inline bool aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace espalier::kernels::cuda
