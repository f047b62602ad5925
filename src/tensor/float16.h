// Rounding to IEEE 754 binary16. A pure function.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace espalier {

// Round to nearest, ties to even; subnormals kept; beyond 65,504 infinite; NaN stays a NaN.
constexpr Float16 to_float16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65,520
  const uint32_t exponent = magnitude >> 23;
  // Of a normal number 13 bits are dropped; of a subnormal one, as many as leave multiples of
  // 2^-24.
  const uint32_t drop = exponent >= 113 ? 13 : 126 - exponent;
  if (drop > 24) return {sign};
  const uint32_t from =
      exponent >= 113 ? magnitude - (112u << 23) : (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t half = (1u << (drop - 1)) - 1 + (from >> drop & 1);
  return {static_cast<uint16_t>(sign | (from + half) >> drop)};
}

}  // namespace espalier
