// The vector operations of the generic kernel sources, for Armv8-A (NEON). See simd_avx512.h for
// the contract of each function.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace espalier::kernels {
namespace {
namespace simd {

constexpr int64_t kWidth = 4;
constexpr int64_t kLinearRows = 2;
constexpr int64_t kAttentionRows = 4;
using F = float32x4_t;

inline F zero() { return vdupq_n_f32(0); }
inline F set1(float value) { return vdupq_n_f32(value); }
inline F load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, F v) { vst1q_f32(p, v); }
inline F load_part(const float* p, int64_t n, float fill) {
  float lanes[4] = {fill, fill, fill, fill};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return vld1q_f32(lanes);
}
inline void store_part(float* p, int64_t n, F v) {
  float lanes[4];
  vst1q_f32(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

inline F add(F a, F b) { return vaddq_f32(a, b); }
inline F sub(F a, F b) { return vsubq_f32(a, b); }
inline F mul(F a, F b) { return vmulq_f32(a, b); }
inline F div(F a, F b) { return vdivq_f32(a, b); }
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline F fnma(F a, F b, F c) { return vfmsq_f32(c, a, b); }
inline F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline F round(F v) { return vrndnq_f32(v); }
inline F scale_by_power(F v, F n) {
  const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
  return mul(v, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}
inline F where_less(F a, F b, F other, F v) { return vbslq_f32(vcltq_f32(a, b), other, v); }
inline bool any_greater(F a, F b) { return vmaxvq_u32(vcgtq_f32(a, b)) != 0; }

inline float reduce_add(F v) { return vaddvq_f32(v); }
inline float reduce_max(F v) { return vmaxvq_f32(v); }

inline F load_bf16(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
inline void store_bf16(uint16_t* p, F v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
  vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16));
}
struct Pair {
  F first, second;
};
inline Pair load_pairs(const uint16_t* p) {
  const uint32x4_t bits = vreinterpretq_u32_u16(vld1q_u16(p));
  return {vreinterpretq_f32_u32(vshlq_n_u32(bits, 16)),
          vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xffff0000u)))};
}
inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // into L2

inline void transpose(const float* const* rows, int64_t at, float* to, int64_t step) {
  for (int64_t i = 0; i < kWidth; ++i) {
    for (int64_t j = 0; j < kWidth; ++j) to[j * step + i] = rows[i][at + j];
  }
}

inline void transpose(const uint16_t* const* rows, int64_t at, float* to, int64_t step) {
  for (int64_t i = 0; i < kWidth; ++i) {
    for (int64_t part = 0; part < 2; ++part) {
      float wide[kWidth];
      store(wide, load_bf16(rows[i] + at + part * kWidth));
      for (int64_t j = 0; j < kWidth; ++j) to[(part * kWidth + j) * step + i] = wide[j];
    }
  }
}

}  // namespace simd
}  // namespace
}  // namespace espalier::kernels
