// Sums over the lanes of a warp, many at once. Device code only.
#pragma once

namespace espalier::kernels::cuda {

// Adds up COUNT sums over the warp by halves: each step hands half of what is left to the other
// lane, so 16 sums cost 16 exchanges instead of 80. Lane l ends with the sums from l * COUNT / 32
// on, or, with COUNT 16, lanes 2i and 2i + 1 with the i-th.
template <int COUNT>
__device__ __forceinline__ void add_by_halves(float (&sums)[COUNT]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int left = COUNT;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const bool upper = (lane & step) != 0;
    if (left > 1) {
      left /= 2;
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        if (i >= left) break;
        const float give = upper ? sums[i] : sums[i + left];
        const float keep = upper ? sums[i + left] : sums[i];
        sums[i] = keep + __shfl_xor_sync(~0u, give, step);
      }
    } else {
      sums[0] += __shfl_xor_sync(~0u, sums[0], step);
    }
  }
}

}  // namespace espalier::kernels::cuda
