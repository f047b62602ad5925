// The vector operations of the generic kernel sources, for AVX-512 (F, BW, DQ, VL). Included only
// by files that are compiled with the matching flags: everything is local to them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace espalier::kernels {
namespace {
namespace simd {

constexpr int64_t kWidth = 16;
constexpr int64_t kLinearRows = 8;     // rows of a GEMM computed together, and
constexpr int64_t kAttentionRows = 6;  // of attention: as many as the registers hold
using F = __m512;

inline __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

inline F zero() { return _mm512_setzero_ps(); }
inline F set1(float value) { return _mm512_set1_ps(value); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F v) { _mm512_storeu_ps(p, v); }
// The first n lanes, 0 < n < kWidth; the others read as `fill`.
inline F load_part(const float* p, int64_t n, float fill) {
  return _mm512_mask_loadu_ps(set1(fill), first(n), p);
}
inline void store_part(float* p, int64_t n, F v) { _mm512_mask_storeu_ps(p, first(n), v); }

inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
inline F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
// b where either is NaN.
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F round(F v) { return _mm512_roundscale_ps(v, 0); }  // to nearest, ties to even
// v * 2^n; n is whole, in [-126, 127].
inline F scale_by_power(F v, F n) { return _mm512_scalef_ps(v, n); }
// v, but `other` in the lanes where a < b.
inline F where_less(F a, F b, F other, F v) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), v, other);
}
inline bool any_greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }

// Sums and maxima over lanes, in a fixed order.
inline float reduce_add(F v) { return _mm512_reduce_add_ps(v); }
inline float reduce_max(F v) { return _mm512_reduce_max_ps(v); }

// kWidth bfloat16 as float32.
inline F load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
// kWidth float32 as bfloat16, to nearest, ties to even.
inline void store_bf16(uint16_t* p, F v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits,
                                 _mm512_set1_epi32(0x00400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
// Of kWidth pairs of bfloat16: the first, and the second, of each pair.
struct Pair {
  F first, second;
};
inline Pair load_pairs(const uint16_t* p) {
  const __m512i bits = _mm512_loadu_si512(p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-65536)))};
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_far(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}  // into L2

// The 16 x 16 matrix of 32-bit elements in r, transposed.
inline void transpose_in_place(__m512 (&r)[16]) {
  __m512 t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
      const __m512d low = _mm512_castps_pd(t[4 * i + j]), high = _mm512_castps_pd(t[4 * i + 2 + j]);
      r[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      r[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  }
  // r[4 i + c] holds in 128-bit part q column 4 q + c of rows 4 i to 4 i + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x44);
    const __m512 b = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xee);
    const __m512 d = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x44);
    const __m512 e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xee);
    t[c] = _mm512_shuffle_f32x4(a, d, 0x88);
    t[4 + c] = _mm512_shuffle_f32x4(a, d, 0xdd);
    t[8 + c] = _mm512_shuffle_f32x4(b, e, 0x88);
    t[12 + c] = _mm512_shuffle_f32x4(b, e, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Elements [at, at + kWidth) of kWidth rows to columns: to[i * step + row].
inline void transpose(const float* const* rows, int64_t at, float* to, int64_t step) {
  __m512 r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(rows[i] + at);
  transpose_in_place(r);
  for (int i = 0; i < 16; ++i) _mm512_storeu_ps(to + i * step, r[i]);
}

// The same for elements [at, at + 2 kWidth) of bfloat16, widened.
inline void transpose(const uint16_t* const* rows, int64_t at, float* to, int64_t step) {
  __m512 r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(rows[i] + at);
  transpose_in_place(r);
  for (int i = 0; i < 16; ++i) {
    const __m512i pairs = _mm512_castps_si512(r[i]);
    store(to + 2 * i * step, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
    store(to + (2 * i + 1) * step,
          _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536))));
  }
}

}  // namespace simd
}  // namespace
}  // namespace espalier::kernels
