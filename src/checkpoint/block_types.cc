#include "checkpoint/block_types.h"

#include <bit>
#include <cstring>

#include "tensor/dtype.h"

// Compiled without contraction of products and sums, so that results have the reference's bits.

namespace espalier {
namespace {

uint8_t byte_at(const std::byte* from, size_t i) { return static_cast<uint8_t>(from[i]); }
int8_t signed_at(const std::byte* from, size_t i) { return static_cast<int8_t>(from[i]); }

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float half_at(const std::byte* from) { return to_float(load<Float16>(from)); }

// The low half of each byte first, then the high half: elements i and i + 16 share byte i.
int nibble(const std::byte* packed, size_t i) {
  return i < 16 ? byte_at(packed, i) & 15 : byte_at(packed, i - 16) >> 4;
}

// One element a block.
template <typename T>
void plain(const std::byte* block, float* out) {
  *out = static_cast<float>(load<T>(block));
}
void plain_half(const std::byte* block, float* out) { *out = half_at(block); }
void plain_bfloat16(const std::byte* block, float* out) { *out = to_float(load<BFloat16>(block)); }

// d f16, 16 bytes of nibbles.
void q4_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block + 2, i) - 8);
}

// d, m f16, nibbles.
void q4_1(const std::byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block + 4, i)) + m;
}

// d f16, 32 high bits, nibbles.
void q5_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  const auto high = load<uint32_t>(block + 2);
  for (size_t i = 0; i < 32; ++i) {
    const int q = nibble(block + 6, i) | static_cast<int>(high >> i & 1) << 4;
    out[i] = d * static_cast<float>(q - 16);
  }
}

void q5_1(const std::byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  const auto high = load<uint32_t>(block + 4);
  for (size_t i = 0; i < 32; ++i) {
    const int q = nibble(block + 8, i) | static_cast<int>(high >> i & 1) << 4;
    out[i] = d * static_cast<float>(q) + m;
  }
}

void q8_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (size_t i = 0; i < 32; ++i) out[i] = static_cast<float>(signed_at(block + 2, i)) * d;
}

// 16 bytes of scales (low half) and minima (high half), 64 of 2-bit values, d, dmin f16. Values lie
// by halves of 128: 32 bytes hold four runs of 32.
void q2_k(const std::byte* block, float* out) {
  const float d = half_at(block + 80), dmin = half_at(block + 82);
  for (size_t i = 0; i < 256; ++i) {
    const uint8_t scale = byte_at(block, i / 16);
    const int q = byte_at(block + 16, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    const float dl = d * static_cast<float>(scale & 15);
    const float ml = dmin * static_cast<float>(scale >> 4);
    out[i] = dl * static_cast<float>(q) - ml;
  }
}

// The 6-bit scale of run i of 16: low four bits in bytes 0 to 7, high two in bytes 8 to 11.
int q3_scale(const std::byte* scales, size_t i) {
  const int low = i < 8 ? byte_at(scales, i) & 15 : byte_at(scales, i - 8) >> 4;
  const int high = byte_at(scales, 8 + i % 4) >> (i / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

// 32 bytes of high bits (0: minus 4), 64 of 2-bit values, 12 of scales, d f16.
void q3_k(const std::byte* block, float* out) {
  const float d = half_at(block + 108);
  for (size_t i = 0; i < 256; ++i) {
    const int low = byte_at(block + 32, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    const int high = byte_at(block, i % 32) >> (i / 32) & 1;
    const float dl = d * static_cast<float>(q3_scale(block + 96, i / 16));
    out[i] = dl * static_cast<float>(low - (high == 0 ? 4 : 0));
  }
}

struct ScaleAndMin {
  int scale, min;
};

// The 6-bit scale and minimum of run i of 32, in 12 bytes.
ScaleAndMin k_scale(const std::byte* scales, size_t i) {
  if (i < 4) return {byte_at(scales, i) & 63, byte_at(scales, i + 4) & 63};
  const uint8_t both = byte_at(scales, i + 4);
  return {(both & 15) | (byte_at(scales, i - 4) >> 2 & 0x30),
          both >> 4 | (byte_at(scales, i) >> 2 & 0x30)};
}

// d, dmin f16, 12 bytes of scales, 128 of nibbles: 32 bytes hold two runs of 32.
void q4_k(const std::byte* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  for (size_t run = 0; run < 8; ++run) {
    const ScaleAndMin scale = k_scale(block + 4, run);
    const float dl = d * static_cast<float>(scale.scale);
    const float ml = dmin * static_cast<float>(scale.min);
    for (size_t i = 0; i < 32; ++i) {
      const int q = byte_at(block + 16, run / 2 * 32 + i) >> (run % 2 * 4) & 15;
      out[run * 32 + i] = dl * static_cast<float>(q) - ml;
    }
  }
}

// The same with 32 bytes of high bits before the nibbles.
void q5_k(const std::byte* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  for (size_t run = 0; run < 8; ++run) {
    const ScaleAndMin scale = k_scale(block + 4, run);
    const float dl = d * static_cast<float>(scale.scale);
    const float ml = dmin * static_cast<float>(scale.min);
    for (size_t i = 0; i < 32; ++i) {
      const int low = byte_at(block + 48, run / 2 * 32 + i) >> (run % 2 * 4) & 15;
      const int high = byte_at(block + 16, i) >> run & 1;
      out[run * 32 + i] = dl * static_cast<float>(low | high << 4) - ml;
    }
  }
}

// 128 bytes of low nibbles (64 bytes hold two runs of 64), 64 of high pairs (32 bytes hold four
// runs of 32), 16 signed scales, d f16.
void q6_k(const std::byte* block, float* out) {
  const float d = half_at(block + 208);
  for (size_t i = 0; i < 256; ++i) {
    const int low = byte_at(block, i / 128 * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
    const int high = byte_at(block + 128, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    const float dl = d * static_cast<float>(signed_at(block + 192, i / 16));
    out[i] = dl * static_cast<float>((low | high << 4) - 32);
  }
}

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

void iq4_nl(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (size_t i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(kIq4Values[nibble(block + 2, i)]);
  }
}

// d f16, 16 bits of high scale pairs, 4 bytes of low scale nibbles, 128 of nibbles.
void iq4_xs(const std::byte* block, float* out) {
  const float d = half_at(block);
  const auto high_scales = load<uint16_t>(block + 2);
  for (size_t run = 0; run < 8; ++run) {
    const int low = byte_at(block + 4, run / 2) >> (run % 2 * 4) & 15;
    const int high = high_scales >> (2 * run) & 3;
    const float dl = d * static_cast<float>((low | high << 4) - 32);
    for (size_t i = 0; i < 32; ++i) {
      out[run * 32 + i] = dl * static_cast<float>(kIq4Values[nibble(block + 8 + run * 16, i)]);
    }
  }
}

// An 8-bit exponent and 32 values of 4 bits (OCP microscaling), here doubled, so half the scale.
void mxfp4(const std::byte* block, float* out) {
  constexpr int8_t kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const uint32_t exponent = byte_at(block, 0);
  const float d =
      std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
  for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kValues[nibble(block + 1, i)]);
}

constexpr BlockType kTypes[] = {
    {0, "F32", 1, 4, plain<float>},     {1, "F16", 1, 2, plain_half},
    {2, "Q4_0", 32, 18, q4_0},          {3, "Q4_1", 32, 20, q4_1},
    {6, "Q5_0", 32, 22, q5_0},          {7, "Q5_1", 32, 24, q5_1},
    {8, "Q8_0", 32, 34, q8_0},          {9, "Q8_1", 32, 40, nullptr},
    {10, "Q2_K", 256, 84, q2_k},        {11, "Q3_K", 256, 110, q3_k},
    {12, "Q4_K", 256, 144, q4_k},       {13, "Q5_K", 256, 176, q5_k},
    {14, "Q6_K", 256, 210, q6_k},       {15, "Q8_K", 256, 292, nullptr},
    {16, "IQ2_XXS", 256, 66, nullptr},  {17, "IQ2_XS", 256, 74, nullptr},
    {18, "IQ3_XXS", 256, 98, nullptr},  {19, "IQ1_S", 256, 50, nullptr},
    {20, "IQ4_NL", 32, 18, iq4_nl},     {21, "IQ3_S", 256, 110, nullptr},
    {22, "IQ2_S", 256, 82, nullptr},    {23, "IQ4_XS", 256, 136, iq4_xs},
    {24, "I8", 1, 1, plain<int8_t>},    {25, "I16", 1, 2, plain<int16_t>},
    {26, "I32", 1, 4, plain<int32_t>},  {27, "I64", 1, 8, plain<int64_t>},
    {28, "F64", 1, 8, plain<double>},   {29, "IQ1_M", 256, 56, nullptr},
    {30, "BF16", 1, 2, plain_bfloat16}, {34, "TQ1_0", 256, 54, nullptr},
    {35, "TQ2_0", 256, 66, nullptr},    {39, "MXFP4", 32, 17, mxfp4},
};

}  // namespace

const BlockType* find_block_type(uint32_t id) {
  for (const BlockType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

std::span<const BlockType> block_types() { return kTypes; }

}  // namespace espalier
