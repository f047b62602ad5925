// TMA copies of boxes by a tensor map (tensor_map.h), completed on a barrier. One thread issues
// each. Device code only; the functions are empty on GPUs before Hopper.
#pragma once

#include <cuda.h>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/mma.cuh"

namespace espalier::kernels::cuda {

// The box at these coordinates, the contiguous dimension first.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int x, int y,
                                         Barrier& full) {
  ESP_HOPPER_ASM(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(barrier_address(full))
      : "memory");
}
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int x, int y, int z,
                                         Barrier& full) {
  ESP_HOPPER_ASM(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier_address(full))
      : "memory");
}

}  // namespace espalier::kernels::cuda
