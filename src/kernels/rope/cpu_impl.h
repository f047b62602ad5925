// Rotary embedding of one head by halves, one generic source for every instruction set.
#pragma once

#include <cstdint>

namespace espalier::kernels {
namespace {

void rope_half_run(float* x, const float* cos, const float* sin, int64_t half) {
  using namespace simd;
  int64_t i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    const F a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(x + i, fnma(b, s, mul(a, c)));
    store(x + half + i, fma(a, s, mul(b, c)));
  }
  if (i < half) {
    const int64_t left = half - i;
    const F a = load_part(x + i, left, 0), b = load_part(x + half + i, left, 0);
    const F c = load_part(cos + i, left, 0), s = load_part(sin + i, left, 0);
    store_part(x + i, left, fnma(b, s, mul(a, c)));
    store_part(x + half + i, left, fma(a, s, mul(b, c)));
  }
}

}  // namespace
}  // namespace espalier::kernels
