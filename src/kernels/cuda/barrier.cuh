// Hopper's barriers in shared memory and its bulk copies, which complete on them. On older GPUs the
// functions are empty, and launchers do not choose kernels that need them.
#pragma once

#include <cstdint>

namespace espalier::kernels::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ESP_HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define ESP_HOPPER_ASM(...) (void)0
#endif

using Barrier = uint64_t;

__device__ __forceinline__ uint32_t barrier_address(const Barrier& barrier) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
}
__device__ __forceinline__ void barrier_init(Barrier& barrier, int arrivals) {
  ESP_HOPPER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}
// Makes the initialisations seen by the copy engine and by the cluster.
__device__ __forceinline__ void barrier_init_done() {
  ESP_HOPPER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier& barrier) {
  ESP_HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier_address(barrier))
                 : "memory");
}
// Arrives, and adds `bytes` that copies are still to bring.
__device__ __forceinline__ void barrier_expect(Barrier& barrier, uint32_t bytes) {
  ESP_HOPPER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     barrier_address(barrier)),
                 "r"(bytes)
                 : "memory");
}
// At the same barrier of block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(Barrier& barrier, uint32_t rank) {
  ESP_HOPPER_ASM(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(
          barrier_address(barrier)),
      "r"(rank)
      : "memory");
}
// Until the phase of this parity is complete; a fresh barrier is in the phase of parity 0.
__device__ __forceinline__ void barrier_wait(Barrier& barrier, uint32_t parity) {
  ESP_HOPPER_ASM(
      "{\n.reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n}" ::"r"(barrier_address(barrier)),
      "r"(parity)
      : "memory");
}
// The same, and what other blocks of the cluster wrote before they arrived is seen.
__device__ __forceinline__ void barrier_wait_cluster(Barrier& barrier, uint32_t parity) {
  ESP_HOPPER_ASM(
      "{\n.reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n}" ::"r"(barrier_address(barrier)),
      "r"(parity)
      : "memory");
}

// Global to shared memory, 16-byte aligned, `bytes` a multiple of 16; lines are the first to leave
// the second-level cache: what is streamed once should not push out what is used again.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes,
                                          Barrier& barrier) {
  ESP_HOPPER_ASM(
      "{\n.reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], policy;\n}" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(bytes), "r"(barrier_address(barrier))
      : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank = 0;
  ESP_HOPPER_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Every thread of the cluster.
__device__ __forceinline__ void cluster_sync() {
  ESP_HOPPER_ASM("barrier.cluster.arrive.release.aligned;" ::: "memory");
  ESP_HOPPER_ASM("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// A float of block `rank`'s shared memory, at the address of our own.
__device__ __forceinline__ float cluster_load(const float* own, uint32_t rank) {
  float value = 0;
  ESP_HOPPER_ASM(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n}"
      : "=f"(value)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(rank)
      : "memory");
  return value;
}
// Threads of a part of the block, by a barrier number of 1 to 15.
__device__ __forceinline__ void part_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace espalier::kernels::cuda
