// The vector operations of the generic kernel sources, for AVX2 with FMA. See simd_avx512.h for the
// contract of each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace espalier::kernels {
namespace {
namespace simd {

constexpr int64_t kWidth = 8;
constexpr int64_t kLinearRows = 3;
constexpr int64_t kAttentionRows = 2;
using F = __m256;

inline __m256i first(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline F zero() { return _mm256_setzero_ps(); }
inline F set1(float value) { return _mm256_set1_ps(value); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F v) { _mm256_storeu_ps(p, v); }
inline F load_part(const float* p, int64_t n, float fill) {
  const __m256i mask = first(n);
  return _mm256_blendv_ps(set1(fill), _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask));
}
inline void store_part(float* p, int64_t n, F v) { _mm256_maskstore_ps(p, first(n), v); }

inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F round(F v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F scale_by_power(F v, F n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return mul(v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline F where_less(F a, F b, F other, F v) {
  return _mm256_blendv_ps(v, other, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
inline bool any_greater(F a, F b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}

inline float reduce_add(F v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
}
inline float reduce_max(F v) {
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_shuffle_ps(most, most, 1)));
}

inline F load_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline void store_bf16(uint16_t* p, F v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i chosen = _mm256_srli_epi32(
      _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q))),
      16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(chosen, chosen), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
struct Pair {
  F first, second;
};
inline Pair load_pairs(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-65536)))};
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_far(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}  // into L2

inline void transpose_in_place(__m256 (&r)[8]) {
  __m256 t[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x20);
    t[4 + c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x31);
  }
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

inline void transpose(const float* const* rows, int64_t at, float* to, int64_t step) {
  __m256 r[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(rows[i] + at);
  transpose_in_place(r);
  for (int i = 0; i < 8; ++i) _mm256_storeu_ps(to + i * step, r[i]);
}

inline void transpose(const uint16_t* const* rows, int64_t at, float* to, int64_t step) {
  __m256 r[8];
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(rows[i] + at));
  }
  transpose_in_place(r);
  for (int i = 0; i < 8; ++i) {
    const __m256i pairs = _mm256_castps_si256(r[i]);
    store(to + 2 * i * step, _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)));
    store(to + (2 * i + 1) * step,
          _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536))));
  }
}

}  // namespace simd
}  // namespace
}  // namespace espalier::kernels
