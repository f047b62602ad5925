#include "engine/sampling/row_ops.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

// One text, compiled once for each instruction set: the bodies are inlined into wrappers that
// differ by their target alone. Built with -fopenmp-simd, which lets float sums be taken entry by
// entry.
#define ESP_INLINE inline __attribute__((always_inline))

namespace espalier {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Integers in the order of the floats; -0 and +0 are one.
ESP_INLINE int32_t ordered_key(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x + 0.0f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
ESP_INLINE float from_ordered_key(int32_t key) {
  return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
}

// e^x for x <= 0, 0 below -87: Cody-Waite reduction by ln 2 in two parts (|r| <= 0.347), then the
// Taylor polynomial of degree 6, whose error there is r^7/5040 < 1.2e-7.
ESP_INLINE float exp_not_positive(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  return x < -87.0f ? 0.0f : p * std::bit_cast<float>(exponent);
}

ESP_INLINE RowMax row_max_body(const float* row, int64_t n, float* block_max) {
  int32_t best = std::numeric_limits<int32_t>::min();
  int64_t best_block = 0;
  int32_t magnitude = 0;
  for (int64_t begin = 0, block = 0; begin < n; begin += kRowBlock, ++block) {
    const int count = static_cast<int>(std::min<int64_t>(kRowBlock, n - begin));
    int32_t key = std::numeric_limits<int32_t>::min();
    for (int i = 0; i < count; ++i) {
      key = std::max(key, ordered_key(row[begin + i]));
      magnitude = std::max(magnitude, std::bit_cast<int32_t>(row[begin + i]) & 0x7fffffff);
    }
    block_max[block] = from_ordered_key(key);
    if (key > best) best = key, best_block = block;
  }
  RowMax result{.max = from_ordered_key(best), .finite = magnitude < 0x7f800000};
  const int64_t begin = best_block * kRowBlock, end = std::min<int64_t>(begin + kRowBlock, n);
  for (int64_t i = begin; i < end && result.index < 0; ++i)
    if (ordered_key(row[i]) == best) result.index = static_cast<int32_t>(i);
  return result;
}

ESP_INLINE double softmax_weights_body(const float* row, int64_t n, float max, float scale,
                                       float* weights, float* block_sum, float* block_max) {
  double total = 0;
  for (int64_t begin = 0, block = 0; begin < n; begin += kRowBlock, ++block) {
    const int count = static_cast<int>(std::min<int64_t>(kRowBlock, n - begin));
    float sum = 0;
    int32_t largest = 0;  // weights are not negative: their bits are in their order
#pragma omp simd reduction(+ : sum) reduction(max : largest)
    for (int i = 0; i < count; ++i) {
      const float x = row[begin + i];
      const float below = std::max(x - max, -FLT_MAX);  // the difference of huge logits overflows
      const float e = exp_not_positive(below * scale);
      const float w = x == -kInf ? 0.0f : e;
      weights[begin + i] = w;
      sum += w;
      largest = std::max(largest, std::bit_cast<int32_t>(w));
    }
    block_sum[block] = sum;
    block_max[block] = std::bit_cast<float>(largest);
    total += sum;
  }
  return total;
}

ESP_INLINE double sum_exp_body(const float* row, int64_t n, float max) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kRowBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kRowBlock, n - begin));
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < count; ++i) sum += exp_not_positive(row[begin + i] - max);
    total += sum;
  }
  return total;
}

#define ESP_ROW_OPS(name, target)                                                            \
  target RowMax max_##name(const float* row, int64_t n, float* block_max) {                  \
    return row_max_body(row, n, block_max);                                                  \
  }                                                                                          \
  target double softmax_weights_##name(const float* row, int64_t n, float max, float scale,  \
                                       float* weights, float* block_sum, float* block_max) { \
    return softmax_weights_body(row, n, max, scale, weights, block_sum, block_max);          \
  }                                                                                          \
  target double sum_exp_##name(const float* row, int64_t n, float max) {                     \
    return sum_exp_body(row, n, max);                                                        \
  }                                                                                          \
  constexpr RowOps kRowOps_##name{#name, max_##name, softmax_weights_##name, sum_exp_##name};

ESP_ROW_OPS(plain, )
#if defined(__x86_64__)
ESP_ROW_OPS(avx2, __attribute__((target("avx2,fma"))))
ESP_ROW_OPS(avx512,
            __attribute__((target("avx512f,avx512vl,avx512dq,fma,prefer-vector-width=512"))))

std::vector<RowOps> list_row_ops() {
  std::vector<RowOps> usable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx512) usable.push_back(kRowOps_avx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    usable.push_back(kRowOps_avx2);
  usable.push_back(kRowOps_plain);
  return usable;
}
#else
std::vector<RowOps> list_row_ops() { return {kRowOps_plain}; }
#endif

const RowOps& row_ops() { return usable_row_ops().front(); }

}  // namespace

std::span<const RowOps> usable_row_ops() {
  // Never destroyed: an engine that a static object holds still samples while the process ends.
  static const auto* const kUsable = new std::vector<RowOps>(list_row_ops());
  return *kUsable;
}

RowMax row_max(std::span<const float> row, std::span<float> block_max) {
  return row_ops().max(row.data(), static_cast<int64_t>(row.size()), block_max.data());
}

double row_softmax_weights(std::span<const float> row, float max, float temperature,
                           std::span<float> weights, std::span<float> block_sum,
                           std::span<float> block_max) {
  const float scale = std::min(1.0f / temperature, FLT_MAX);  // 1 / a denormal overflows
  return row_ops().softmax_weights(row.data(), static_cast<int64_t>(row.size()), max, scale,
                                   weights.data(), block_sum.data(), block_max.data());
}

double row_sum_exp(std::span<const float> row, float max) {
  return row_ops().sum_exp(row.data(), static_cast<int64_t>(row.size()), max);
}

}  // namespace espalier
