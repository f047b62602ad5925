// 8-bit multiply-accumulate for the generic sources of quantised weights, for Armv8-A; with its
// sdot instructions where the including file is compiled for them. See bytes_avx512.h for
// the contract of each function.
#pragma once

#include "kernels/cpu/simd_neon.h"

namespace espalier::kernels {
namespace {
namespace simd {

constexpr int64_t kQuantRows = 2;
using I = int32x4_t;
using Bytes = uint8x16_t;

inline I set1_int(int32_t value) { return vdupq_n_s32(value); }
inline F to_floats(I v) { return vcvtq_f32_s32(v); }
inline Bytes load_bytes(const void* p) { return vld1q_u8(static_cast<const uint8_t*>(p)); }
inline Bytes repeat_four(const int8_t* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return vreinterpretq_u8_s32(vdupq_n_s32(bits));
}
inline Bytes low_four(Bytes v) { return vandq_u8(v, vdupq_n_u8(15)); }
inline Bytes high_four(Bytes v) { return vshrq_n_u8(v, 4); }
template <int k>
inline Bytes pair_of_bits(Bytes v) {
  return vandq_u8(vshlq_u8(v, vdupq_n_s8(-k)), vdupq_n_u8(3));
}
template <int k, int width, int at>
inline Bytes with_high_bits(Bytes low, Bytes high) {
  const Bytes bits = vandq_u8(vshlq_u8(high, vdupq_n_s8(-k)), vdupq_n_u8((1 << width) - 1));
  return vorrq_u8(low, vshlq_n_u8(bits, at));
}
inline Bytes repeat_sixteen(const uint8_t* table) { return vld1q_u8(table); }
inline Bytes look_up(Bytes table, Bytes v) { return vqtbl1q_u8(table, v); }

constexpr int32_t kWideZero = 128;
#ifdef __ARM_FEATURE_DOTPROD
inline I dot_small(I sum, Bytes w, Bytes x) {
  return vdotq_s32(sum, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(x));
}
#else
inline I dot_small(I sum, Bytes w, Bytes x) {
  const int8x16_t a = vreinterpretq_s8_u8(w), b = vreinterpretq_s8_u8(x);
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
  const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(a), vget_high_s8(b)));
  return vaddq_s32(sum, vpaddq_s32(low, high));
}
#endif
inline I dot_wide(I sum, Bytes w, Bytes x) {
  return dot_small(sum, veorq_u8(w, vdupq_n_u8(128)), x);
}

inline F load_f16(const void* p) {
  uint16x4_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return vcvt_f32_f16(vreinterpret_f16_u16(bits));
}
inline F load_u8(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  const uint32x4_t wide = {bytes[0], bytes[1], bytes[2], bytes[3]};
  return vcvtq_f32_u32(wide);
}
inline F load_s8(const void* p) {
  const auto* bytes = static_cast<const int8_t*>(p);
  const int32x4_t wide = {bytes[0], bytes[1], bytes[2], bytes[3]};
  return vcvtq_f32_s32(wide);
}
inline F load_low_nibbles(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  const uint32x4_t wide = {bytes[0], bytes[1], bytes[2], bytes[3]};
  return vcvtq_f32_u32(vandq_u32(wide, vdupq_n_u32(15)));
}
inline F load_high_nibbles(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  const uint32x4_t wide = {bytes[0], bytes[1], bytes[2], bytes[3]};
  return vcvtq_f32_u32(vshrq_n_u32(wide, 4));
}
inline F load_exponents(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  const uint32x4_t e = {bytes[0], bytes[1], bytes[2], bytes[3]};
  const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
  const uint32x4_t subnormal = vshlq_u32(vdupq_n_u32(1 << 21), vreinterpretq_s32_u32(e));
  return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), subnormal, normal));
}
inline void store_s8(int8_t* p, F v) {
  int32_t lanes[4];
  vst1q_s32(lanes, vcvtnq_s32_f32(v));
  for (int i = 0; i < 4; ++i) p[i] = static_cast<int8_t>(lanes[i]);
}
inline F abs(F v) { return vabsq_f32(v); }

}  // namespace simd
}  // namespace
}  // namespace espalier::kernels
