// 8-bit multiply-accumulate for the generic sources of quantised weights, in portable C++. See
// bytes_avx512.h for the contract of each function.
#pragma once

#include "kernels/cpu/simd_plain.h"

namespace espalier::kernels {
namespace {
namespace simd {

constexpr int64_t kQuantRows = 1;
typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef int8_t SignedBytes __attribute__((vector_size(16)));
typedef int16_t Shorts __attribute__((vector_size(32)));

inline I set1_int(int32_t value) { return I{value, value, value, value}; }
inline F to_floats(I v) { return __builtin_convertvector(v, F); }
inline Bytes load_bytes(const void* p) {
  Bytes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline Bytes repeat_four(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return reinterpret_cast<Bytes>(set1_int(bits));
}
inline Bytes low_four(Bytes v) { return v & uint8_t{15}; }
inline Bytes high_four(Bytes v) { return v >> uint8_t{4}; }
template <int k>
inline Bytes pair_of_bits(Bytes v) {
  return (v >> uint8_t{k}) & uint8_t{3};
}
template <int k, int width, int at>
inline Bytes with_high_bits(Bytes low, Bytes high) {
  constexpr auto kMask = static_cast<uint8_t>((1 << width) - 1);
  return low | (((high >> uint8_t{k}) & kMask) << uint8_t{at});
}
inline Bytes repeat_sixteen(const uint8_t* table) { return load_bytes(table); }
inline Bytes look_up(Bytes table, Bytes v) {
  for (int i = 0; i < 16; ++i) v[i] = table[v[i]];
  return v;
}

// Two bytes multiplied fit 16 bits: 255 * 127 = 32385.
constexpr int32_t kWideZero = 0;
inline I dot_wide(I sum, Bytes w, Bytes x) {
  const Shorts wide = __builtin_convertvector(w, Shorts) *
                      __builtin_convertvector(reinterpret_cast<SignedBytes>(x), Shorts);
  for (int i = 0; i < 4; ++i) {
    sum[i] += wide[4 * i] + wide[4 * i + 1] + wide[4 * i + 2] + wide[4 * i + 3];
  }
  return sum;
}
inline I dot_small(I sum, Bytes w, Bytes x) { return dot_wide(sum, w, x); }

// Exponent and fraction shifted to a float32's fields are 2^-112 times the value, subnormal or not.
inline F load_f16(const void* p) {
  uint16_t halves[4];
  std::memcpy(halves, p, sizeof halves);
  F v;
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = (halves[i] & 0x7fffu) << 13 | (halves[i] & 0x8000u) << 16;
    float lane;
    std::memcpy(&lane, &bits, sizeof lane);
    v[i] = lane;
  }
  return v * 0x1.0p112f;
}
inline F load_u8(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  return F{static_cast<float>(bytes[0]), static_cast<float>(bytes[1]), static_cast<float>(bytes[2]),
           static_cast<float>(bytes[3])};
}
inline F load_s8(const void* p) {
  const auto* bytes = static_cast<const int8_t*>(p);
  return F{static_cast<float>(bytes[0]), static_cast<float>(bytes[1]), static_cast<float>(bytes[2]),
           static_cast<float>(bytes[3])};
}
inline F load_low_nibbles(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  const uint8_t low[4] = {static_cast<uint8_t>(bytes[0] & 15), static_cast<uint8_t>(bytes[1] & 15),
                          static_cast<uint8_t>(bytes[2] & 15), static_cast<uint8_t>(bytes[3] & 15)};
  return load_u8(low);
}
inline F load_high_nibbles(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  const uint8_t high[4] = {static_cast<uint8_t>(bytes[0] >> 4), static_cast<uint8_t>(bytes[1] >> 4),
                           static_cast<uint8_t>(bytes[2] >> 4),
                           static_cast<uint8_t>(bytes[3] >> 4)};
  return load_u8(high);
}
inline F load_exponents(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  F v;
  for (int i = 0; i < 4; ++i) {
    const uint32_t e = bytes[i], bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    float lane;
    std::memcpy(&lane, &bits, sizeof lane);
    v[i] = lane;
  }
  return v;
}
inline void store_s8(int8_t* p, F v) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<int8_t>(static_cast<int32_t>(v[i]));
}
inline F abs(F v) {
  const I bits = reinterpret_cast<I>(v) & 0x7fffffff;
  return reinterpret_cast<F>(bits);
}

}  // namespace simd
}  // namespace
}  // namespace espalier::kernels
