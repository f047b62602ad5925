// Passes over one row of logits or weights, [vocab_size] float32: the sampler's inner loops,
// compiled for each instruction set and chosen at run time. The order of every sum is fixed by the
// row's length, so a row gives the same bits on every thread and in every batch.
#pragma once

#include <cstdint>
#include <span>

namespace espalier {

// Rows are summarised by blocks of this many entries, the last one shorter.
inline constexpr int32_t kRowBlock = 128;
constexpr int32_t row_blocks(int64_t n) {
  return static_cast<int32_t>((n + kRowBlock - 1) / kRowBlock);
}

struct RowMax {
  float max = 0;
  int32_t index = -1;  // the smallest of those that hold it
  bool finite = true;  // no NaN and no infinity in the row; if false the others mean nothing,
                       // unless the only ones are -infinity
};

// row: [n], n >= 1. block_max: [row_blocks(n)], each block's largest entry.
RowMax row_max(std::span<const float> row, std::span<float> block_max);

// weights[i] = exp((row[i] - max) / temperature), 0 where row[i] is -infinity; relative error under
// 1e-6. block_sum, block_max: of the weights, [row_blocks(n)]. The sum of block_sum is returned.
// REQUIRES: row[i] <= max, max finite, temperature > 0.
double row_softmax_weights(std::span<const float> row, float max, float temperature,
                           std::span<float> weights, std::span<float> block_sum,
                           std::span<float> block_max);

// Sum over i of exp(row[i] - max). REQUIRES: as above.
double row_sum_exp(std::span<const float> row, float max);

// One instruction set's compilation of the three; the functions above use the best.
struct RowOps {
  const char* name;
  RowMax (*max)(const float* row, int64_t n, float* block_max);
  double (*softmax_weights)(const float* row, int64_t n, float max, float scale, float* weights,
                            float* block_sum, float* block_max);
  double (*sum_exp)(const float* row, int64_t n, float max);
};
// Those that this processor can run, the best first. For tests, which run each.
std::span<const RowOps> usable_row_ops();

}  // namespace espalier
