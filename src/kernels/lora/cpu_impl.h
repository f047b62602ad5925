// Shrink and expand of one row, one generic source for every instruction set. Factors are padded to
// 16 elements; the last elements of a row of x and y are read and written in part.
#pragma once

#include <cstdint>

namespace espalier::kernels {
namespace {

inline simd::F load_factor(const float* p) { return simd::load(p); }
inline simd::F load_factor(const uint16_t* p) { return simd::load_bf16(p); }

// t[r] = scale * sum over i of x[i] a[r, i]: kRanks of them at a time share the reads of x.
template <int kRanks, typename T>
void lora_dot(const float* x, const T* a, int64_t stride, int64_t count, float scale, float* t) {
  using namespace simd;
  F sums[kRanks];
  for (int r = 0; r < kRanks; ++r) sums[r] = zero();
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const F v = load(x + i);
    for (int r = 0; r < kRanks; ++r) sums[r] = fma(v, load_factor(a + r * stride + i), sums[r]);
  }
  if (i < count) {
    const F v = load_part(x + i, count - i, 0);
    for (int r = 0; r < kRanks; ++r) sums[r] = fma(v, load_factor(a + r * stride + i), sums[r]);
  }
  for (int r = 0; r < kRanks; ++r) t[r] = scale * reduce_add(sums[r]);
}

// Each rank has sums of its own, so its bits do not depend on how ranks are grouped.
template <typename T>
void lora_shrink_row(const float* x, const void* a, int64_t stride, int64_t count, int64_t ranks,
                     float scale, float* t) {
  const T* row = static_cast<const T*>(a);
  int64_t r = 0;
  for (; r + 8 <= ranks; r += 8) lora_dot<8>(x, row + r * stride, stride, count, scale, t + r);
  for (; r < ranks; ++r) lora_dot<1>(x, row + r * stride, stride, count, scale, t + r);
}

// y[o] += sum over r of t[r] b[r, o], from the first rank to the last.
template <typename T>
void lora_expand_row(const float* t, const void* b, int64_t stride, int64_t ranks, int64_t count,
                     float* y) {
  using namespace simd;
  const T* from = static_cast<const T*>(b);
  int64_t o = 0;
  for (; o + 4 * kWidth <= count; o += 4 * kWidth) {
    F sums[4];
    for (int j = 0; j < 4; ++j) sums[j] = load(y + o + j * kWidth);
    for (int64_t r = 0; r < ranks; ++r) {
      const F factor = set1(t[r]);
      for (int j = 0; j < 4; ++j)
        sums[j] = fma(factor, load_factor(from + r * stride + o + j * kWidth), sums[j]);
    }
    for (int j = 0; j < 4; ++j) store(y + o + j * kWidth, sums[j]);
  }
  for (; o < count; o += kWidth) {
    const int64_t left = count - o;
    F sum = left >= kWidth ? load(y + o) : load_part(y + o, left, 0);
    for (int64_t r = 0; r < ranks; ++r)
      sum = fma(set1(t[r]), load_factor(from + r * stride + o), sum);
    if (left >= kWidth) {
      store(y + o, sum);
    } else {
      store_part(y + o, left, sum);
    }
  }
}

}  // namespace
}  // namespace espalier::kernels
