// Elementwise operations on one run of floats, the same text for every instruction set.
#pragma once

#include <cstdint>

#include "kernels/cpu/math.h"

namespace espalier::kernels {
namespace {

void silu_mul_run(const float* gate, const float* up, float* y, int64_t count) {
  using namespace simd;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(y + i, mul(silu(load(gate + i)), load(up + i)));
  if (i < count) {
    const int64_t left = count - i;
    store_part(y + i, left, mul(silu(load_part(gate + i, left, 0)), load_part(up + i, left, 0)));
  }
}

void add_run(float* y, const float* x, int64_t count) {
  using namespace simd;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(y + i, add(load(y + i), load(x + i)));
  if (i < count) {
    const int64_t left = count - i;
    store_part(y + i, left, add(load_part(y + i, left, 0), load_part(x + i, left, 0)));
  }
}

void scale_run(float* y, float factor, int64_t count) {
  using namespace simd;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(y + i, mul(load(y + i), set1(factor)));
  if (i < count) store_part(y + i, count - i, mul(load_part(y + i, count - i, 0), set1(factor)));
}

void to_bf16_run(const float* from, uint16_t* to, int64_t count) {
  using namespace simd;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store_bf16(to + i, load(from + i));
  if (i < count) {
    uint16_t last[kWidth];
    store_bf16(last, load_part(from + i, count - i, 0));
    for (int64_t j = 0; i + j < count; ++j) to[i + j] = last[j];
  }
}

void from_bf16_run(const uint16_t* from, float* to, int64_t count) {
  using namespace simd;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(to + i, load_bf16(from + i));
  if (i < count) {
    uint16_t last[kWidth] = {};
    for (int64_t j = 0; i + j < count; ++j) last[j] = from[i + j];
    store_part(to + i, count - i, load_bf16(last));
  }
}

}  // namespace
}  // namespace espalier::kernels
