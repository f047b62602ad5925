// 8-bit multiply-accumulate for the generic sources of quantised weights, in AVX-512; with VNNI
// where the including file is compiled for it. Included after simd_avx512.h.
#pragma once

#include "kernels/cpu/simd_avx512.h"

namespace espalier::kernels {
namespace {
namespace simd {

constexpr int64_t kQuantRows = 6;  // rows of a GEMM with quantised weights computed together
using I = __m512i;                 // kWidth int32
using Bytes = __m512i;             // kWidth groups of four

inline I set1_int(int32_t value) { return _mm512_set1_epi32(value); }
inline F to_floats(I v) { return _mm512_cvtepi32_ps(v); }
inline Bytes load_bytes(const void* p) { return _mm512_loadu_si512(p); }
// Four bytes in every group.
inline Bytes repeat_four(const int8_t* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return _mm512_set1_epi32(bits);
}
inline Bytes low_four(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline Bytes high_four(Bytes v) {
  return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
}
// Bits k and k + 1 of each byte.
template <int k>
inline Bytes pair_of_bits(Bytes v) {
  return _mm512_and_si512(_mm512_srli_epi16(v, k), _mm512_set1_epi8(3));
}
// low | (bits k to k + width - 1 of each byte of high) << at
template <int k, int width, int at>
inline Bytes with_high_bits(Bytes low, Bytes high) {
  const Bytes moved = k <= at ? _mm512_slli_epi16(high, k <= at ? at - k : 0)
                              : _mm512_srli_epi16(high, k > at ? k - at : 0);
  return _mm512_ternarylogic_epi32(low, moved, _mm512_set1_epi8(((1 << width) - 1) << at), 0xf8);
}
// A table of 16 bytes, and each byte of v, below 16, replaced by what stands there.
inline Bytes repeat_sixteen(const uint8_t* table) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
inline Bytes look_up(Bytes table, Bytes v) { return _mm512_shuffle_epi8(table, v); }
inline Bytes flip_sign_bit(Bytes v) { return _mm512_xor_si512(v, _mm512_set1_epi8(-128)); }
inline Bytes subtract_bytes(Bytes v, int value) {
  return _mm512_sub_epi8(v, _mm512_set1_epi8(static_cast<char>(value)));
}
inline void store_bytes(void* p, Bytes v) { _mm512_storeu_si512(p, v); }

// sum + w x over each group of four bytes; w unsigned, x in [-127, 127]. dot_small REQUIRES
// w <= 63; dot_wide takes all of a byte and computes the sum for the values less kWideZero.
#ifdef __AVX512VNNI__
constexpr int32_t kWideZero = 0;
inline I dot_small(I sum, Bytes w, Bytes x) { return _mm512_dpbusd_epi32(sum, w, x); }
inline I dot_wide(I sum, Bytes w, Bytes x) { return _mm512_dpbusd_epi32(sum, w, x); }
#else
// Sums of two multiplied pairs in 16 bits are exact: at most 2 * 63 * 127; of 128 * 127 twice
// 32512.
constexpr int32_t kWideZero = 128;
inline I dot_small(I sum, Bytes w, Bytes x) {
  const __m512i pairs = _mm512_maddubs_epi16(w, x);
  return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
inline I dot_wide(I sum, Bytes w, Bytes x) {
  const __m512i values = flip_sign_bit(w);
  const __m512i turned = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(values),
                                              _mm512_setzero_si512(), x);  // x times w's sign
  return dot_small(sum, _mm512_abs_epi8(values), turned);
}
#endif

inline F load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline F load_u8(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
inline F load_s8(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
inline F load_low_nibbles(const void* p) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return _mm512_cvtepi32_ps(_mm512_and_si512(wide, _mm512_set1_epi32(15)));
}
inline F load_high_nibbles(const void* p) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return _mm512_cvtepi32_ps(_mm512_srli_epi32(wide, 4));
}
// 2^(e - 128) of bytes e. The exponent of the float32 is e - 1; below 1 the fraction has to say it.
inline F load_exponents(const void* p) {
  const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(1 << 21), e);
  return _mm512_castsi512_ps(
      _mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), subnormal));
}
// v: whole, in [-127, 127].
inline void store_s8(int8_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}
inline F abs(F v) { return _mm512_abs_ps(v); }

}  // namespace simd
}  // namespace
}  // namespace espalier::kernels
