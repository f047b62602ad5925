// What the grouped GEMMs of Hopper share: the tiles of each expert's rows, and the position in a
// pipeline of stages. Device code only.
#pragma once

#include <cstdint>

#include "kernels/router/op.h"

namespace espalier::kernels::cuda {

// In shared memory. Expert e has slots [begins[e], begins[e + 1]) and tiles [tiles[e], tiles[e +
// 1]) of them, each of tile_rows rows but for its last.
struct ExpertTiles {
  int32_t begins[kMaxExperts + 1];
  int32_t tiles[kMaxExperts + 1];
};

// All THREADS of the block call it; the block needs a barrier before it reads `out`. begins: of the
// plan, [experts + 1].
template <int TILE_ROWS, int THREADS>
__device__ void divide_experts(const int32_t* begins, int experts, ExpertTiles& out) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  for (int i = thread; i <= experts; i += THREADS) out.begins[i] = begins[i];
  if (thread >= 32) return;
  int before = 0;
  for (int base = 0; base < experts; base += 32) {
    const int expert = base + lane;
    int sum = 0;
    if (expert < experts) sum = (begins[expert + 1] - begins[expert] + TILE_ROWS - 1) / TILE_ROWS;
    const int own = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    if (expert < experts) out.tiles[expert] = before + sum - own;
    before += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) out.tiles[experts] = before;
}

// Producers and consumers begin with stage 0 and parity 0; a producer waits for the other parity.
template <int STAGES>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

}  // namespace espalier::kernels::cuda
