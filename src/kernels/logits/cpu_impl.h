// Reductions over a contiguous range of floats, one generic source for every instruction set.
#pragma once

#include <cstdint>

#include "kernels/cpu/math.h"

namespace espalier::kernels {
namespace {

float max_run(const float* x, int64_t count) {
  using namespace simd;
  const float lowest = -__builtin_inff();
  F most[4] = {set1(lowest), set1(lowest), set1(lowest), set1(lowest)};
  int64_t i = 0;
  // The running maximum is max's second operand, which it takes where the first is NaN.
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
    for (int64_t j = 0; j < 4; ++j) most[j] = max(load(x + i + j * kWidth), most[j]);
  }
  for (; i < count; i += kWidth) {
    const F v = i + kWidth <= count ? load(x + i) : load_part(x + i, count - i, lowest);
    most[0] = max(v, most[0]);
  }
  return reduce_max(max(max(most[0], most[1]), max(most[2], most[3])));
}

// Sums of 64 vectors at most are float32; those sums are added in double.
double sum_exp_run(const float* x, float offset, int64_t count) {
  using namespace simd;
  const int64_t chunk = 64 * kWidth;
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t end = begin + chunk < count ? begin + chunk : count;
    F sum = zero();
    int64_t i = begin;
    for (; i + kWidth <= end; i += kWidth) sum = add(sum, exp(sub(load(x + i), set1(offset))));
    if (i < end) {
      sum = add(sum, exp(sub(load_part(x + i, end - i, -__builtin_inff()), set1(offset))));
    }
    total += reduce_add(sum);
  }
  return total;
}

int64_t find_above_run(const float* x, int64_t begin, int64_t count, float bound) {
  using namespace simd;
  int64_t i = begin;
  for (; i + kWidth <= count; i += kWidth) {
    if (any_greater(load(x + i), set1(bound))) break;
  }
  for (; i < count; ++i) {
    if (x[i] > bound) return i;
  }
  return count;
}

}  // namespace
}  // namespace espalier::kernels
