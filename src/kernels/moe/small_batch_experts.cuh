// The experts that the rows of a small batch selected, found by each block for itself from the
// scores (moe_small_batch.cu, one_row_coded_experts.cu). Device code only.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/moe/cuda_small_batch.h"
#include "kernels/router/replicas.cuh"
#include "kernels/router/router_topk.cuh"

namespace espalier::kernels::cuda {

inline constexpr uint8_t kNoPair = 255;

__device__ __forceinline__ const bf16* bf16s(const void* at) {
  return static_cast<const bf16*>(at);
}

// The experts that the rows selected, by their index among those that are here. A pair (row,
// expert) is row * top_k + rank; an active expert is one that is here and that some row selected.
struct ChosenExperts {
  int32_t experts[kSmallBatchMoePairs];  // of each pair; another rank's is not in [0, num_local)
  float weights[kSmallBatchMoePairs];
  int32_t num_active;
  int32_t active_experts[kSmallBatchMoePairs];
  int32_t active_rows[kSmallBatchMoePairs];                       // how many rows selected it,
  uint8_t active_pairs[kSmallBatchMoePairs][kSmallBatchMoeRows];  // and their pairs
  uint8_t pair_of_row[kSmallBatchMoePairs][kSmallBatchMoeRows];   // each row's pair, or kNoPair
  float shared_gates[kSmallBatchMoeRows];
};

__device__ __forceinline__ bool is_here(const SmallBatchMoeArgs& args, int expert) {
  return static_cast<uint32_t>(expert) < static_cast<uint32_t>(args.num_local);
}

// One warp collects the active experts from the pairs.
__device__ inline void gather_active(const SmallBatchMoeArgs& args, ChosenExperts& chosen,
                                     int lane) {
  const int top_k = args.router.top_k, count = args.rows * top_k;
  int num_active = 0;
#pragma unroll 1
  for (int base = 0; base < count; base += 32) {
    const int pair = base + lane;
    const int expert = pair < count ? chosen.experts[pair] : -1;
    bool first = is_here(args, expert);
#pragma unroll 1
    for (int i = 0; i < pair && first; ++i) first = chosen.experts[i] != expert;
    const uint32_t all = __ballot_sync(~0u, first);
    if (first) {
      const int active = num_active + __popc(all & ((1u << lane) - 1));
#pragma unroll
      for (int row = 0; row < kSmallBatchMoeRows; ++row) chosen.pair_of_row[active][row] = kNoPair;
      int rows = 0;
#pragma unroll 1
      for (int i = pair; i < count; ++i) {
        if (chosen.experts[i] != expert) continue;
        chosen.active_pairs[active][rows++] = static_cast<uint8_t>(i);
        chosen.pair_of_row[active][i / top_k] = static_cast<uint8_t>(i);
      }
      chosen.active_experts[active] = expert;
      chosen.active_rows[active] = rows;
    }
    num_active += __popc(all);
  }
  if (lane == 0) chosen.num_active = num_active;
}

// Selects the experts of all rows, by the whole block. words: [rows, route_words()] in shared
// memory. Loads of the scores bypass L1, which may hold those of the layer before. REQUIRES: the
// scores are written.
__device__ inline void select_experts(const SmallBatchMoeArgs& args, float* words,
                                      ChosenExperts& chosen) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const RouterSpec& router = args.router;
  if (warp < args.rows) {
    float* own = words + warp * route_words(router);
#pragma unroll 4
    for (int i = lane; i < router.num_experts; i += 32)
      own[i] = __ldcg(args.scores + warp * router.num_experts + i);
    if (lane == 0) {
      chosen.shared_gates[warp] = args.shared_gate_weights == nullptr
                                      ? 1.0f
                                      : 1.0f / (1.0f + expf(-__ldcg(args.shared_gate + warp)));
    }
    __syncwarp();
    int32_t* experts = chosen.experts + warp * router.top_k;
    route_row(router, args.correction, own, lane, experts, chosen.weights + warp * router.top_k);
    if (args.first_local > 0 || args.replicas.table != nullptr) {
      __syncwarp();
      for (int i = lane; i < router.top_k; i += 32)
        experts[i] = slot_of(args.replicas, experts[i], warp) - args.first_local;
    }
  }
  __syncthreads();
  if (warp == 0) gather_active(args, chosen, lane);
  __syncthreads();
}

// Adds the rows of each active expert that are no padding to its count, by one block.
__device__ inline void count_rows(const SmallBatchMoeArgs& args, const ChosenExperts& chosen) {
  const int active = static_cast<int>(threadIdx.x), num_rows = *args.counts.num_rows;
  if (active >= chosen.num_active) return;
  unsigned long long count = 0;
  for (int row = 0; row < args.rows; ++row)
    if (row < num_rows && chosen.pair_of_row[active][row] != kNoPair) ++count;
  if (count > 0) atomicAdd(&args.counts.pairs[chosen.active_experts[active]], count);
}

}  // namespace espalier::kernels::cuda
