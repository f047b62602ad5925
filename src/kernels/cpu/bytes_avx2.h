// 8-bit multiply-accumulate for the generic sources of quantised weights, in AVX2 with F16C. See
// bytes_avx512.h for the contract of each function.
#pragma once

#include "kernels/cpu/simd_avx2.h"

namespace espalier::kernels {
namespace {
namespace simd {

constexpr int64_t kQuantRows = 2;
using I = __m256i;
using Bytes = __m256i;

inline I set1_int(int32_t value) { return _mm256_set1_epi32(value); }
inline F to_floats(I v) { return _mm256_cvtepi32_ps(v); }
inline Bytes load_bytes(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline Bytes repeat_four(const int8_t* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return _mm256_set1_epi32(bits);
}
inline Bytes low_four(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline Bytes high_four(Bytes v) {
  return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}
template <int k>
inline Bytes pair_of_bits(Bytes v) {
  return _mm256_and_si256(_mm256_srli_epi16(v, k), _mm256_set1_epi8(3));
}
template <int k, int width, int at>
inline Bytes with_high_bits(Bytes low, Bytes high) {
  const Bytes moved = k <= at ? _mm256_slli_epi16(high, k <= at ? at - k : 0)
                              : _mm256_srli_epi16(high, k > at ? k - at : 0);
  return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(((1 << width) - 1) << at)));
}
inline Bytes repeat_sixteen(const uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
inline Bytes look_up(Bytes table, Bytes v) { return _mm256_shuffle_epi8(table, v); }

constexpr int32_t kWideZero = 128;
inline I dot_small(I sum, Bytes w, Bytes x) {
  const __m256i pairs = _mm256_maddubs_epi16(w, x);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline I dot_wide(I sum, Bytes w, Bytes x) {
  const __m256i values = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  return dot_small(sum, _mm256_abs_epi8(values), _mm256_sign_epi8(x, values));
}

inline F load_f16(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline F load_u8(const void* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
}
inline F load_s8(const void* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
}
inline F load_low_nibbles(const void* p) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  return _mm256_cvtepi32_ps(_mm256_and_si256(wide, _mm256_set1_epi32(15)));
}
inline F load_high_nibbles(const void* p) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  return _mm256_cvtepi32_ps(_mm256_srli_epi32(wide, 4));
}
inline F load_exponents(const void* p) {
  const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), e);
  return _mm256_castsi256_ps(
      _mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}
inline void store_s8(int8_t* p, F v) {
  const __m256i ints = _mm256_cvtps_epi32(v);
  const __m128i halves =
      _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
}
inline F abs(F v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }

}  // namespace simd
}  // namespace
}  // namespace espalier::kernels
