// Instructions that both attention kernels are made of: asynchronous copies into shared memory,
// matrix fragments, products of the tensor cores (m16n8k16, bfloat16, float32 sums).
//
// Rows of keys, values and queries lie in shared memory with 16 bytes between them, so that the
// eight rows of a fragment fall into different banks.
#pragma once

#include "kernels/attention/attention_plan.h"
#include "kernels/cuda/device.cuh"

namespace espalier::kernels::cuda {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kNone = -__builtin_huge_valf();  // the score of what is not seen

template <int DIM>
constexpr int kPitch = DIM + 8;  // elements between rows in shared memory

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// 16 bytes; zeros where not `known` (from must still be a valid address).
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool known) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(known ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async(void* to, const void* from, bool known) {
  copy_async(shared_address(to), from, known);
}
// Four bytes.
__device__ __forceinline__ void copy_async_word(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A word of each lane is two neighbours of row lane / 4 of an 8 x 8 matrix, from column lane % 4 *
// 2 on; so is the result, of the matrix with rows and columns exchanged.
__device__ __forceinline__ uint32_t transposed(uint32_t word) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
  return result;
}

__device__ __forceinline__ float exp2_fast(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
// Over the four lanes that share a row of a fragment.
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// cap * tanh(value / cap), to a few 1e-7 of cap, without a branch.
__device__ __forceinline__ float softcapped(float value, float cap) {
  return cap - __fdividef(2 * cap, exp2_fast(value * __fdividef(2 * kLog2E, cap)) + 1);
}
// A raw product becomes a score in base 2.
__device__ __forceinline__ float to_score(float product, float scale, float softcap) {
  if (softcap > 0) return softcapped(product * scale, softcap) * kLog2E;
  return product * scale * kLog2E;
}

// Where the key or value of a position begins, in elements of a plane. Two steps, since a warp
// stops at the first use of what it reads: the page is read a while before its offset is wanted.
__device__ __forceinline__ int kv_page(const KvPlanes& kv, const int32_t* pages, int position) {
  return pages[position / kv.page_size];
}
__device__ __forceinline__ int64_t kv_offset(const KvPlanes& kv, int page, int position,
                                             int kv_head) {
  return page * kv.page_stride + position % kv.page_size * kv.token_stride +
         kv_head * kv.head_stride;
}

// The first position that a lane's first query sees, cut down to a whole block.
__device__ __forceinline__ int first_seen(int prefix_len, int sliding_window) {
  if (sliding_window <= 0) return 0;
  return max(0, prefix_len - sliding_window + 1) / kSplitBlock * kSplitBlock;
}

// The lane with begin[lane] <= item < begin[lane + 1].
__device__ __forceinline__ int entry_with(const int32_t* begin, int num_entries, int item) {
  int low = 0, high = num_entries;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (begin[middle] <= item ? low : high) = middle;
  }
  return low;
}

}  // namespace espalier::kernels::cuda
