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
// Makes the initialisations seen by the copy engine.
__device__ __forceinline__ void barrier_init_done() {
  ESP_HOPPER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier& barrier) {
  ESP_HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier_address(barrier))
                 : "memory");
}
// So many times at once.
__device__ __forceinline__ void barrier_arrive(Barrier& barrier, uint32_t count) {
  ESP_HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_address(barrier)),
                 "r"(count)
                 : "memory");
}
// Arrives, and adds `bytes` that copies are still to bring.
__device__ __forceinline__ void barrier_expect(Barrier& barrier, uint32_t bytes) {
  ESP_HOPPER_ASM(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Arrives once all asynchronous copies (cp.async) that this thread has started have landed.
__device__ __forceinline__ void barrier_arrive_after_copies(Barrier& barrier) {
  ESP_HOPPER_ASM(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier_address(barrier))
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
// For two at once, which takes one look where both are complete already.
__device__ __forceinline__ void barrier_wait(Barrier& first, uint32_t first_parity, Barrier& second,
                                             uint32_t second_parity) {
  ESP_HOPPER_ASM(
      "{\n.reg .pred first, second;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 first, [%0], %1;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 second, [%2], %3;\n"
      "and.pred first, first, second;\n"
      "@first bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n}" ::"r"(barrier_address(first)),
      "r"(first_parity), "r"(barrier_address(second)), "r"(second_parity)
      : "memory");
}
// Global to shared memory, 16-byte aligned, `bytes` a multiple of 16. On an H200 one multiprocessor
// starts one about every 60 cycles: pieces under 4 KiB do not reach the memory's rate.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes,
                                          Barrier& barrier) {
  ESP_HOPPER_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(bytes), "r"(barrier_address(barrier))
      : "memory");
}

// Threads of a part of the block, by a barrier number of 1 to 15.
__device__ __forceinline__ void part_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// The same, but only to let the others go on.
__device__ __forceinline__ void part_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace espalier::kernels::cuda
