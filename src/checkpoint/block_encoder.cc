#include "checkpoint/block_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/float16.h"

// Compiled without contraction of products and sums, so that blocks have the reference's bits.

namespace espalier {
namespace {

constexpr size_t kElements = 32;  // of a block of these formats

template <typename T>
void put_value(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

void encode_single(const float* x, std::byte* block) { put_value(block, *x); }
void encode_half(const float* x, std::byte* block) { put_value(block, to_float16(*x)); }
void encode_brain(const float* x, std::byte* block) { put_value(block, to_bfloat16(*x)); }

// The element that is farthest from zero, the first of equals.
float farthest(const float* x) {
  float out = 0;
  for (size_t i = 0; i < kElements; ++i)
    if (std::abs(x[i]) > std::abs(out)) out = x[i];
  return out;
}

float inverse(float scale) { return scale == 0 ? 0.0f : 1.0f / scale; }

// What is no number becomes 0.
int nearest_code(float value, int max) {
  return value > 0 ? static_cast<int>(std::min(value, static_cast<float>(max))) : 0;
}

// Elements i and i + 16 share byte i.
void store_nibbles(const int* codes, std::byte* to) {
  for (size_t i = 0; i < kElements / 2; ++i)
    to[i] = static_cast<std::byte>((codes[i] & 15) | (codes[i + kElements / 2] & 15) << 4);
}

void store_high_bits(const int* codes, std::byte* to) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kElements; ++i) bits |= static_cast<uint32_t>(codes[i] >> 4 & 1) << i;
  put_value(to, bits);
}

void encode_q8_0(const float* x, std::byte* block) {
  const float d = std::abs(farthest(x)) / 127.0f, id = inverse(d);
  put_value(block, to_float16(d));
  for (size_t i = 0; i < kElements; ++i) {
    const float rounded = std::clamp(std::round(x[i] * id), -127.0f, 127.0f);
    block[2 + i] =
        static_cast<std::byte>(static_cast<int8_t>(std::isnan(rounded) ? 0.0f : rounded));
  }
}

// Codes around a middle: the element farthest from zero gets the lowest, -middle, exactly.
// Returns the scale.
float centred_codes(const float* x, int middle, int* codes) {
  const float d = farthest(x) / static_cast<float>(-middle), id = inverse(d);
  for (size_t i = 0; i < kElements; ++i)
    codes[i] = nearest_code(x[i] * id + (static_cast<float>(middle) + 0.5f), 2 * middle - 1);
  return d;
}

struct Line {
  float scale, min;
};

// Codes from the smallest element (0) to the largest (`top`).
Line lined_codes(const float* x, int top, int* codes) {
  const auto [low, high] = std::minmax_element(x, x + kElements);
  const Line line{.scale = (*high - *low) / static_cast<float>(top), .min = *low};
  const float id = inverse(line.scale);
  for (size_t i = 0; i < kElements; ++i)
    codes[i] = nearest_code((x[i] - line.min) * id + 0.5f, top);
  return line;
}

void encode_q4_0(const float* x, std::byte* block) {
  int codes[kElements];
  put_value(block, to_float16(centred_codes(x, 8, codes)));
  store_nibbles(codes, block + 2);
}

void encode_q5_0(const float* x, std::byte* block) {
  int codes[kElements];
  put_value(block, to_float16(centred_codes(x, 16, codes)));
  store_high_bits(codes, block + 2);
  store_nibbles(codes, block + 6);
}

void encode_q4_1(const float* x, std::byte* block) {
  int codes[kElements];
  const Line line = lined_codes(x, 15, codes);
  put_value(block, to_float16(line.scale));
  put_value(block + 2, to_float16(line.min));
  store_nibbles(codes, block + 4);
}

void encode_q5_1(const float* x, std::byte* block) {
  int codes[kElements];
  const Line line = lined_codes(x, 31, codes);
  put_value(block, to_float16(line.scale));
  put_value(block + 2, to_float16(line.min));
  store_high_bits(codes, block + 4);
  store_nibbles(codes, block + 8);
}

constexpr BlockEncoder kEncoders[] = {
    {"F32", encode_single, 0}, {"F16", encode_half, 1},  {"BF16", encode_brain, 32},
    {"Q8_0", encode_q8_0, 7},  {"Q5_1", encode_q5_1, 9}, {"Q5_0", encode_q5_0, 8},
    {"Q4_1", encode_q4_1, 3},  {"Q4_0", encode_q4_0, 2},
};

}  // namespace

std::span<const BlockEncoder> block_encoders() { return kEncoders; }

const BlockEncoder* find_block_encoder(std::string_view name) {
  const auto found = std::ranges::find(kEncoders, name, &BlockEncoder::name);
  return found == std::end(kEncoders) ? nullptr : &*found;
}

const BlockType& block_type_of(const BlockEncoder& encoder) {
  const auto all = block_types();
  const auto found = std::ranges::find(all, encoder.name, &BlockType::name);
  ESP_CHECK(found != all.end(), "no block type {}", encoder.name);
  return *found;
}

void encode_blocks(const BlockEncoder& encoder, std::span<const float> elements,
                   std::span<std::byte> out) {
  const BlockType& type = block_type_of(encoder);
  ESP_CHECK(elements.size() % type.elements == 0 &&
            out.size() == elements.size() / type.elements * type.bytes);
  std::byte* to = out.data();
  for (size_t i = 0; i < elements.size(); i += type.elements, to += type.bytes)
    encoder.encode(elements.data() + i, to);
}

}  // namespace espalier
