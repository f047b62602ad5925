// Keys and values of e4m3 in the attention kernels: conversions, and fragments of the tensor cores.
// Device code only; Hopper has the conversions as instructions, older GPUs are refused before.
//
// A fragment of b16 (ldmatrix) holds two codes where it would hold one bfloat16, so one load fills
// the fragments of two matrix instructions. Which of the summed-over elements a lane has is then
// not the instruction's own order; both operands take the same permutation:
//   keys    lane j of a quad has elements 4j .. 4j + 3 of 16 instead of 2j, 2j + 1, 2j + 8, 2j + 9
//   values  rows g and g + 8 of the output's tile are elements 2g and 2g + 1 of 16
#pragma once

#include "kernels/cuda/e4m3.cuh"
#include "kernels/cuda/mma.cuh"

namespace espalier::kernels::cuda {

// Whether a kernel's keys and values are codes of e4m3 (uint8_t) instead of bf16.
template <typename KV>
constexpr bool kCodes = sizeof(KV) == 1;

// Rounds to nearest, ties to even; beyond 65,504 the value is infinite.
__device__ __forceinline__ uint32_t pack_half2(float first, float second) {
  const __half2 pair = __floats2half2_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// m16n8k16 of float16 with float32 sums; fragments as mma() of bfloat16.
__device__ __forceinline__ void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The left operands of two instructions from codes[0 .. 1] and [2 .. 3] of 16 keys by 32 elements:
// the matrices of rows 0 .. 7 and 8 .. 15 of the first 16 elements, then of the next 16.
__device__ __forceinline__ void key_fragment(const uint32_t (&codes)[4], int which,
                                             uint32_t (&a)[4]) {
  const uint32_t upper = codes[2 * which], lower = codes[2 * which + 1];
  a[0] = half2_of_e4m3(low_codes(upper));
  a[1] = half2_of_e4m3(low_codes(lower));
  a[2] = half2_of_e4m3(high_codes(upper));
  a[3] = half2_of_e4m3(high_codes(lower));
}
// The same of values loaded with transposition: the matrices of positions 0 .. 7 and 8 .. 15.
__device__ __forceinline__ void value_fragment(const uint32_t (&codes)[4], int which,
                                               uint32_t (&a)[4]) {
  const uint32_t first = __byte_perm(codes[2 * which], 0, 0x3120);
  const uint32_t second = __byte_perm(codes[2 * which + 1], 0, 0x3120);
  a[0] = half2_of_e4m3(low_codes(first));
  a[1] = half2_of_e4m3(high_codes(first));
  a[2] = half2_of_e4m3(low_codes(second));
  a[3] = half2_of_e4m3(high_codes(second));
}

// Two of the four codes of a word as two bfloat16, exactly but for NaN, which becomes 480: the bits
// of sign, exponent and fraction move to their places, and a multiplication by 2^120 sets the
// exponent's bias right. first: 0 or 2.
__device__ __forceinline__ uint32_t bfloat162_of_e4m3(uint32_t codes, int first) {
  const uint32_t spread = __byte_perm(codes, 0, first == 0 ? 0x1404 : 0x3424);
  const uint32_t bits = (spread & 0x80008000u) | ((spread & 0x7f007f00u) >> 4);
  constexpr uint32_t kTwoTo120 = 0x7b807b80;
  const __nv_bfloat162 value = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits),
                                       *reinterpret_cast<const __nv_bfloat162*>(&kTwoTo120));
  return *reinterpret_cast<const uint32_t*>(&value);
}
// 16 codes as 16 bfloat16.
__device__ __forceinline__ void bfloat16s_of_e4m3(uint4 codes, uint4& lower, uint4& upper) {
  lower = make_uint4(bfloat162_of_e4m3(codes.x, 0), bfloat162_of_e4m3(codes.x, 2),
                     bfloat162_of_e4m3(codes.y, 0), bfloat162_of_e4m3(codes.y, 2));
  upper = make_uint4(bfloat162_of_e4m3(codes.z, 0), bfloat162_of_e4m3(codes.z, 2),
                     bfloat162_of_e4m3(codes.w, 0), bfloat162_of_e4m3(codes.w, 2));
}

}  // namespace espalier::kernels::cuda
