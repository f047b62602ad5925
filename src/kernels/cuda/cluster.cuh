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
// What lies at the address of `from` in the shared memory of block `rank`. REQUIRES: that block
// runs.
__device__ __forceinline__ int32_t cluster_load(const int32_t* from, int rank) {
  int32_t value = *from;
  ESP_HOPPER_ASM(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.s32 %0, [there];\n}"
      : "=r"(value)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(rank)
      : "memory");
  return value;
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
