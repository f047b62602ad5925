// What the layers of encoder and decoder share on the CPU. The functions call kernels of the back
// end, so they are called from the thread that may run its pool; arguments are borrowed.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/backend.h"
#include "speech/whisper_weights.h"

namespace espalier::speech {

// Rows of floats without gaps, [rows, width]. Grows to what was requested most, and keeps it.
class RowBuffer {
 public:
  float* reserve(int64_t rows, int64_t width) {
    const auto size = static_cast<size_t>(rows * width);
    if (values_.size() < size) values_.resize(size);
    return values_.data();
  }

 private:
  std::vector<float> values_;
};

// y = norm(x), [rows, width].
void layer_norm(kernels::CpuBackend& backend, const LayerNormWeights& norm, const float* x,
                float* y, int64_t rows);

// y = x W^T + bias, or y += where it accumulates.
void linear(kernels::CpuBackend& backend, const LinearWeights& weights, const float* x, float* y,
            int64_t rows, bool accumulate = false);

// x += down(gelu(up(norm(x)))). normed: [rows, width], wide: [rows, intermediate], scratch.
void mlp(kernels::CpuBackend& backend, const MlpWeights& weights, float* x, float* normed,
         float* wide, int64_t rows);

// y = gelu(y), [rows, width].
void gelu(kernels::CpuBackend& backend, float* y, int64_t rows, int64_t width);

// Attention in which each row sees every row, without an order: queries, keys and values lie one
// behind the other in each row of qkv, [rows, 3 * width], and out is [rows, width].
class BidirectionalAttention {
 public:
  void run(kernels::CpuBackend& backend, const float* qkv, float* out, int64_t rows,
           int32_t num_heads, int32_t head_dim);

 private:
  RowBuffer queries_, results_;
};

}  // namespace espalier::speech
