// NVFP4 in registers: codes with the scales of their groups become bfloat16, for the GEMMs that
// multiply them (gemm_int4.cu). Device code only.
//
// A code is E2M1: a sign, two bits of exponent, one of mantissa. Its bits, where a bfloat16 has
// them, are 2^-126 of its number, often subnormal, and one multiplication with a group's factor
// makes code x scale / 256 of it, exactly: the result has six bits.
//
// Scales lie in memory as bytes of five bits of exponent (bias 10) and three of mantissa, which has
// all numbers of e4m3 from 2^-9 to 448, none subnormal, so that a byte becomes a factor by a shift
// and a sum. A scale of 0 has codes of 0; no number is kNvfp4NoNumber, whose factor is a NaN.
//
// Four codes of neighbouring weights share the 16 bits of a half word, as those of MXFP4 do
// (moe/mxfp4_weights.cu): sign and three others at 15 and 8 to 6, at 12 and 5 to 3, at 9 and 2 to
// 0, and at 14, 13, 11 and 10.
#pragma once

#include <cstdint>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"

namespace espalier::kernels::cuda {

inline constexpr float kNvfp4Whole = 256;  // weights are multiplied as this part of them
inline constexpr uint32_t kNvfp4NoNumber = 20 << 3 | 1;

// The PAIR-th codes of both halves of a word, as bfloat16 of 2^-126 of their numbers.
template <int PAIR>
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t word) {
  constexpr uint32_t kBits = 0x81c081c0;
  if constexpr (PAIR < 3)
    return word << 3 * PAIR & kBits;
  else
    return (word << 1 & 0x80008000) | (word >> 5 & 0x01000100) | (word >> 4 & 0x00c000c0);
}
// Where the PAIR-th code of 16 bits has its four.
__device__ __forceinline__ uint32_t e2m1_place(uint32_t code, int pair) {
  const uint32_t sign = code >> 3, rest = code & 7;
  if (pair < 3) return (sign << 15 | rest << 6) >> 3 * pair;
  return sign << 14 | (rest & 4) << 11 | (rest & 3) << 10;
}

// Two times 2^118 of the scale in byte `index`.
__device__ __forceinline__ uint32_t nvfp4_factor(uint32_t scales, int index) {
  const auto byte = static_cast<uint32_t>(index);
  return (__byte_perm(scales, 0, 0x4040 | byte << 8 | byte) << 4) + 0x75807580u;
}

// The two weights, divided by kNvfp4Whole.
__device__ __forceinline__ uint32_t nvfp4_weights(uint32_t codes, uint32_t factor) {
  uint32_t result = 0;
  ESP_HOPPER_ASM("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(codes), "r"(factor));
  return result;
}

}  // namespace espalier::kernels::cuda
