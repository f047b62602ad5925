// Thread block clusters, whose blocks write to each other's shared memory. Device code only. On
// older GPUs a cluster is one block.
#pragma once

#include <cstdint>

#include "kernels/cuda/barrier.cuh"

namespace espalier::kernels::cuda {

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank = 0;
  ESP_HOPPER_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ int cluster_size() {
  uint32_t size = 1;
  ESP_HOPPER_ASM("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return static_cast<int>(size);
}
// REQUIRES: every thread of every block calls it, by whole warps. What was written before an
// arrival, also to global memory, is visible after the wait for it.
__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
  ESP_HOPPER_ASM("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  ESP_HOPPER_ASM("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Stores `value` in the shared memory of block `rank` at the address that `to` has here. REQUIRES:
// that block runs.
__device__ __forceinline__ void cluster_store(uint64_t* to, int rank, uint64_t value) {
  ESP_HOPPER_ASM(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.b64 [there], %2;\n}" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "r"(rank), "l"(value)
      : "memory");
}

}  // namespace espalier::kernels::cuda
