// What the attention kernels share on the device: scores, visible positions, and addresses of keys
// and values in pages.
//
// Rows of keys, values and queries lie in shared memory with 16 bytes between them, so that the
// eight rows of a fragment fall into different banks.
#pragma once

#include "kernels/attention/attention_plan.h"
#include "kernels/cuda/mma.cuh"

namespace espalier::kernels::cuda {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kMasked = -__builtin_huge_valf();  // the score of a masked position

template <int DIM>
constexpr int kPitch = DIM + 8;  // elements between rows in shared memory

// cap * tanh(value / cap), to a few 1e-7 of cap, without a branch.
__device__ __forceinline__ float softcapped(float value, float cap) {
  return cap - __fdividef(2 * cap, exp2_fast(value * __fdividef(2 * kLog2E, cap)) + 1);
}
// Turns a raw q k^T into a score in base 2.
__device__ __forceinline__ float to_score(float raw, float scale, float softcap) {
  if (softcap > 0) return softcapped(raw * scale, softcap) * kLog2E;
  return raw * scale * kLog2E;
}

// The address of a position's key or value, in elements of a plane. Two steps, since a warp stalls
// at the first use of what it loads: the page number is loaded a while before its offset is used.
__device__ __forceinline__ int kv_page(const KvPlanes& kv, const int32_t* pages, int position) {
  return pages[position / kv.page_size];
}
__device__ __forceinline__ int64_t kv_offset(const KvPlanes& kv, int page, int position,
                                             int kv_head) {
  return page * kv.page_stride + position % kv.page_size * kv.token_stride +
         kv_head * kv.head_stride;
}

// The first position that an entry's first query sees, rounded down to a whole block.
__device__ __forceinline__ int first_visible(int prefix_len, int sliding_window) {
  if (sliding_window <= 0) return 0;
  return max(0, prefix_len - sliding_window + 1) / kKeyBlock * kKeyBlock;
}

}  // namespace espalier::kernels::cuda
