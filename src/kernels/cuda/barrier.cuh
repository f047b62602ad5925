// Hopper's mbarriers in shared memory, the TMA bulk copies that complete on them, and named
// barriers. Device code only. On older GPUs the mbarrier functions are empty, and launchers do not
// choose kernels that need them.
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
// Makes the initialisations visible to TMA copies.
__device__ __forceinline__ void barrier_init_done() {
  ESP_HOPPER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier& barrier) {
  ESP_HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier_address(barrier))
                 : "memory");
}
// Arrives `count` times at once.
__device__ __forceinline__ void barrier_arrive(Barrier& barrier, uint32_t count) {
  ESP_HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_address(barrier)),
                 "r"(count)
                 : "memory");
}
// Arrives, and adds `bytes` that copies have yet to complete.
__device__ __forceinline__ void barrier_expect(Barrier& barrier, uint32_t bytes) {
  ESP_HOPPER_ASM(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Arrives once all asynchronous copies (cp.async) that this thread has issued have landed.
__device__ __forceinline__ void barrier_arrive_after_copies(Barrier& barrier) {
  ESP_HOPPER_ASM(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier_address(barrier))
      : "memory");
}
// Waits until the phase of this parity is complete; a fresh barrier is in the phase of parity 0.
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
// Waits for two barriers at once, with one test where both are complete already.
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
// TMA bulk copy from global to shared memory, 16-byte aligned, `bytes` a multiple of 16. On an H200
// a multiprocessor starts one about every 60 cycles, so copies under 4 KiB do not reach the
// memory's rate.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes,
                                          Barrier& barrier) {
  ESP_HOPPER_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(bytes), "r"(barrier_address(barrier))
      : "memory");
}

// Synchronises `threads` threads of the block at named barrier `number`, 1 to 15.
__device__ __forceinline__ void named_barrier_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Arrives at the named barrier without waiting.
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace espalier::kernels::cuda
