// RMS norm and layer norm of one row, one generic source for every instruction set.
#pragma once

#include <cstdint>

namespace espalier::kernels {
namespace {

// The sum of fn(x) over a range, in four partial sums that are added in one order.
template <typename Fn>
inline float sum_of(const float* x, int64_t dim, const Fn& fn) {
  using namespace simd;
  F sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kWidth <= dim; i += 4 * kWidth) {
    for (int64_t j = 0; j < 4; ++j) sums[j] = fn(load(x + i + j * kWidth), sums[j]);
  }
  for (; i + kWidth <= dim; i += kWidth) sums[0] = fn(load(x + i), sums[0]);
  float sum = reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  for (; i < dim; ++i) {
    float one[kWidth];
    store(one, fn(set1(x[i]), zero()));
    sum += one[0];
  }
  return sum;
}

void layer_norm_row(const float* x, const float* weight, const float* bias, float epsilon,
                    int64_t dim, float* y) {
  using namespace simd;
  const auto size = static_cast<float>(dim);
  const float mean = sum_of(x, dim, [](F v, F sum) { return add(v, sum); }) / size;
  const float variance = sum_of(x, dim,
                                [mean](F v, F sum) {
                                  const F off = sub(v, set1(mean));
                                  return fma(off, off, sum);
                                }) /
                         size;
  const F scale = set1(1.0f / __builtin_sqrtf(variance + epsilon)), centre = set1(mean);
  int64_t i = 0;
  for (; i + kWidth <= dim; i += kWidth) {
    const F v = mul(sub(load(x + i), centre), scale);
    store(y + i, fma(v, load(weight + i), load(bias + i)));
  }
  if (i == dim) return;
  const int64_t left = dim - i;
  const F v = mul(sub(load_part(x + i, left, 0), centre), scale);
  store_part(y + i, left, fma(v, load_part(weight + i, left, 0), load_part(bias + i, left, 0)));
}

void rms_norm_row(const float* x, const float* weight, float epsilon, int64_t dim, float* y) {
  using namespace simd;
  F sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kWidth <= dim; i += 4 * kWidth) {
    for (int64_t j = 0; j < 4; ++j) {
      const F v = load(x + i + j * kWidth);
      sums[j] = fma(v, v, sums[j]);
    }
  }
  for (; i < dim; i += kWidth) {
    const F v = i + kWidth <= dim ? load(x + i) : load_part(x + i, dim - i, 0);
    sums[0] = fma(v, v, sums[0]);
  }
  const float sum = reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  const F scale = set1(1.0f / __builtin_sqrtf(sum / static_cast<float>(dim) + epsilon));
  for (i = 0; i + kWidth <= dim; i += kWidth) {
    store(y + i, mul(mul(load(x + i), scale), load(weight + i)));
  }
  if (i < dim) {
    const int64_t left = dim - i;
    store_part(y + i, left,
               mul(mul(load_part(x + i, left, 0), scale), load_part(weight + i, left, 0)));
  }
}

}  // namespace
}  // namespace espalier::kernels
