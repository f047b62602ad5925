// Element types of weights, activations and caches, and exact conversions between them. Pure
// functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace espalier {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16 };

constexpr size_t dtype_size(DType type) { return type == DType::kFloat32 ? 4 : 2; }

// The names of safetensors: "F32", "BF16", "F16".
constexpr std::string_view dtype_name(DType type) {
  switch (type) {
    case DType::kFloat32:
      return "F32";
    case DType::kBFloat16:
      return "BF16";
    case DType::kFloat16:
      return "F16";
  }
  return "?";
}

// Returns nothing for any other name.
constexpr std::optional<DType> parse_dtype(std::string_view safetensors_name) {
  for (DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (safetensors_name == dtype_name(type)) return type;
  }
  return std::nullopt;
}

// The upper half of a float32's bits.
struct BFloat16 {
  uint16_t bits = 0;
  friend bool operator==(const BFloat16&, const BFloat16&) = default;
};

// IEEE 754 binary16.
struct Float16 {
  uint16_t bits = 0;
  friend bool operator==(const Float16&, const Float16&) = default;
};

constexpr float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Round to nearest, ties to even; subnormals kept; NaN stays a (quiet) NaN of the same sign.
constexpr BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// Exact.
constexpr float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t fraction = value.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1.0p-24f;  // subnormal
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace espalier
