// 4-bit codes in registers become bfloat16, for the GEMMs that multiply them (gemm_int4.cu,
// moe/coded_experts.cu). Device code only.
//
// Weights are made as (code - zero) / 64: a code's bits, read as a bfloat16, are a subnormal
// number, 2^-133 times the code where they are the lowest, and one multiplication brings two of
// them to that scale and takes off the zero points, exactly.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace espalier::kernels::cuda {

inline constexpr float kInt4Whole = 64;

__device__ __forceinline__ __nv_bfloat162 bfloat_pair(uint32_t bits) {
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}
__device__ __forceinline__ uint32_t bits_of(__nv_bfloat162 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The codes in bits 0 to 3 (HIGH: 4 to 7) of both halves. zero: int4_zero_pair().
template <bool HIGH>
__device__ __forceinline__ uint32_t int4_pair(uint32_t codes, __nv_bfloat162 zero) {
  constexpr uint32_t kFactor = HIGH ? 0x7d007d00u : 0x7f007f00u;  // 2^123, 2^127
  const __nv_bfloat162 bits = bfloat_pair(codes & (HIGH ? 0x00f000f0u : 0x000f000fu));
  return bits_of(__hfma2(bits, bfloat_pair(kFactor), zero));
}

// Two times -zero / 64, of a zero point below 128.
__device__ __forceinline__ __nv_bfloat162 int4_zero_pair(uint32_t zero) {
  const uint32_t with_128 = (zero | 0x4300u) * 0x00010001u;  // 128 + zero
  return __hfma2(bfloat_pair(with_128), bfloat_pair(0xbc80bc80u), bfloat_pair(0x40004000u));
}

}  // namespace espalier::kernels::cuda
