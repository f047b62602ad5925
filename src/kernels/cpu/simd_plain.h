// The vector operations of the generic kernel sources, in portable C++ (the compilers' vector types
// of four floats). See simd_avx512.h for the contract of each function.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace espalier::kernels {
namespace {
namespace simd {

constexpr int64_t kWidth = 4;
constexpr int64_t kLinearRows = 1;
constexpr int64_t kAttentionRows = 2;
typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
typedef uint32_t U __attribute__((vector_size(16)));

inline F zero() { return F{0, 0, 0, 0}; }
inline F set1(float value) { return F{value, value, value, value}; }
inline F load(const float* p) {
  F v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
inline F load_part(const float* p, int64_t n, float fill) {
  F v = set1(fill);
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
}
inline void store_part(float* p, int64_t n, F v) {
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
}

inline F add(F a, F b) { return a + b; }
inline F sub(F a, F b) { return a - b; }
inline F mul(F a, F b) { return a * b; }
inline F div(F a, F b) { return a / b; }
inline F fma(F a, F b, F c) { return a * b + c; }  // two roundings: contraction is off
inline F fnma(F a, F b, F c) { return c - a * b; }
inline F max(F a, F b) { return a > b ? a : b; }
inline F min(F a, F b) { return a < b ? a : b; }
// Adding and taking away 1.5 * 2^23 leaves no bits below one, for |v| < 2^22.
inline F round(F v) { return (v + 0x1.8p23f) - 0x1.8p23f; }
inline F scale_by_power(F v, F n) {
  const I exponent = (__builtin_convertvector(n, I) + 127) << 23;
  return v * reinterpret_cast<F>(exponent);
}
inline F where_less(F a, F b, F other, F v) { return a < b ? other : v; }
inline bool any_greater(F a, F b) {
  const I mask = a > b;
  return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
}

inline float reduce_add(F v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline float reduce_max(F v) {
  const float a = v[0] > v[2] ? v[0] : v[2];
  const float b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}

inline F load_bf16(const uint16_t* p) {
  const U bits = {p[0], p[1], p[2], p[3]};
  return reinterpret_cast<F>(bits << 16);
}
inline void store_bf16(uint16_t* p, F v) {
  const U bits = reinterpret_cast<U>(v);
  const U rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const U chosen = (v == v) ? rounded : (bits | 0x00400000);
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint16_t>(chosen[i] >> 16);
}
struct Pair {
  F first, second;
};
inline Pair load_pairs(const uint16_t* p) {
  // Little-endian: the first of a pair is the lower half.
  U bits;
  std::memcpy(&bits, p, sizeof bits);
  return {reinterpret_cast<F>(bits << 16), reinterpret_cast<F>(bits & 0xffff0000u)};
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
