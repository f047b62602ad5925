// How the launchers of this room start their kernels. For .cu and .cc files that include CUDA's
// headers. Thread-safe.
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

// Starts `kernel` in clusters of blocks_per_cluster blocks, with programmatic dependent launch
// where `launch` requests it and the GPU supports it. The kernel must then call wait_for_previous()
// (device.cuh) before it touches what other kernels wrote.
template <typename... Params, typename... Args>
Status launch_clusters(const char* operation, void (*kernel)(Params...), dim3 grid, dim3 block,
                       int32_t blocks_per_cluster, size_t shared_bytes, const LaunchOptions& launch,
                       Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = launch.stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (launch.pdl) {
    ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
    if (traits.compute_capability >= 90) {
      cudaLaunchAttribute& early = attributes[config.numAttrs++];
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
    }
  }
  if (blocks_per_cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(blocks_per_cluster);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  return cuda_status(
      cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...),
      operation);
}
template <typename... Params, typename... Args>
Status launch_kernel(const char* operation, void (*kernel)(Params...), dim3 grid, dim3 block,
                     size_t shared_bytes, const LaunchOptions& launch, Args&&... args) {
  return launch_clusters(operation, kernel, grid, block, 1, shared_bytes, launch,
                         std::forward<Args>(args)...);
}
// Lets `kernel` use shared_bytes of dynamic shared memory; cheap after the first call for the same
// kernel.
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
