// Conversions of e4m3 codes. Device code only; Hopper has them as instructions, older GPUs are
// refused before.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace espalier::kernels::cuda {

// Two codes as two float16, exactly; the lower code in the lower half.
__device__ __forceinline__ uint32_t half2_of_e4m3(uint16_t codes) {
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
  return static_cast<uint32_t>(raw.x) | static_cast<uint32_t>(raw.y) << 16;
}
__device__ __forceinline__ uint16_t low_codes(uint32_t word) { return static_cast<uint16_t>(word); }
__device__ __forceinline__ uint16_t high_codes(uint32_t word) {
  return static_cast<uint16_t>(word >> 16);
}

// Eight codes, 8-byte aligned.
__device__ __forceinline__ void load8(const uint8_t* from, float (&to)[8]) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  const uint16_t codes[4] = {low_codes(words.x), high_codes(words.x), low_codes(words.y),
                             high_codes(words.y)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes[i], __NV_E4M3)));
    to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
  }
}

}  // namespace espalier::kernels::cuda
