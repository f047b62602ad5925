// Floats of 8 bits: e4m3, e5m2 and exponents alone (OCP 8-bit floating point specification 1.0).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tensor/float16.h"

namespace espalier {

// S.1111.111 is no number, and there is no infinity.
inline float e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  float value = 0;
  if (exponent == 15 && fraction == 7) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = static_cast<float>(fraction) * 0x1.0p-9f;
  } else {
    value = std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  }
  return (bits & 0x80) != 0 ? -value : value;
}

inline float e5m2(uint8_t bits) { return to_float(Float16{static_cast<uint16_t>(bits << 8)}); }

// The values of all bytes.
template <float (*kDecode)(uint8_t)>
inline const std::array<float, 256>& decode_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int i = 0; i < 256; ++i) values[i] = kDecode(static_cast<uint8_t>(i));
    return values;
  }();
  return table;
}

inline float e8m0(uint8_t bits) {
  if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, bits - 127);
}

}  // namespace espalier
