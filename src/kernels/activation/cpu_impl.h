// Elementwise operations on one contiguous range of floats, one generic source for every
// instruction set.
#pragma once

#include <cstdint>

#include "kernels/cpu/math.h"

namespace espalier::kernels {
namespace {

// y[i] = fn(a[i], b[i]), a vector at a time; without b fn gets ones.
template <typename Fn>
inline void map_run(const float* a, const float* b, float* y, int64_t count, const Fn& fn) {
  using namespace simd;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    store(y + i, fn(load(a + i), b == nullptr ? set1(1.0f) : load(b + i)));
  }
  if (i == count) return;
  const int64_t left = count - i;
  store_part(y + i, left,
             fn(load_part(a + i, left, 0), b == nullptr ? set1(1.0f) : load_part(b + i, left, 0)));
}

void silu_mul_run(const float* gate, const float* up, float* y, int64_t count) {
  using namespace simd;
  map_run(gate, up, y, count, [](F g, F u) { return mul(silu(g), u); });
}

void gelu_mul_run(const float* gate, const float* up, float* y, int64_t count) {
  using namespace simd;
  map_run(gate, up, y, count, [](F g, F u) { return mul(gelu_tanh(g), u); });
}

void clamped_swiglu_run(const float* gate, const float* up, float limit, float* y, int64_t count) {
  using namespace simd;
  map_run(gate, up, y, count, [limit](F g, F u) {
    const F most = set1(limit), least = set1(-limit);
    g = min(most, g);  // NaN passes: it is the second operand
    u = max(least, min(most, u));
    const F sigmoid = div(set1(1.0f), add(set1(1.0f), exp(mul(g, set1(-1.702f)))));
    return mul(mul(g, sigmoid), add(u, set1(1.0f)));
  });
}

void add_scaled_run(float* y, const float* x, float factor, int64_t count) {
  using namespace simd;
  map_run(x, y, y, count, [factor](F a, F b) { return fma(a, set1(factor), b); });
}

void softcap_run(float* y, float cap, int64_t count) {
  using namespace simd;
  map_run(y, nullptr, y, count, [cap](F a, F) { return mul(tanh(div(a, set1(cap))), set1(cap)); });
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
