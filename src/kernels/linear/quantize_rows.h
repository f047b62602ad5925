// Rows of numbers as e4m3 with a float32 scale each, for GEMMs of 8 bits: activations on their way
// into one, and weights at load. Thread-safe; pointers are borrowed device memory; requirements of
// streams as kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

inline constexpr int32_t kQuantizedRowMultiple = 16;  // of dim: what GEMMs of e4m3 take
inline constexpr int32_t kMostQuantizedDim = 65536;

// Weights whose scales are of blocks of 128 x 128, and rows whose scales are of 128 neighbours.
inline constexpr int32_t kScaleBlock = 128;
constexpr int64_t scale_blocks(int64_t features) {
  return (features + kScaleBlock - 1) / kScaleBlock;
}
// From the scales of 128 rows of weights to those of the next 128: what cuBLASLt reads.
constexpr int64_t block_scale_stride(int64_t in_features) {
  return (scale_blocks(in_features) + 3) / 4 * 4;
}
// From the scales of 128 inputs of all rows to those of the next 128, where our kernels read them.
constexpr int64_t group_scale_stride(int64_t rows) { return (rows + 3) / 4 * 4; }

struct QuantizeRowsArgs {
  DType type = DType::kBFloat16;  // of x and norm_weight: kBFloat16 or kFloat32
  const void* x = nullptr;        // [rows, dim], rows x_stride apart; 16-byte aligned rows
  int64_t x_stride = 0;
  // Not null: RMSNorm of x first, rounded to `type` as rms_norm() does; [dim].
  const void* norm_weight = nullptr;
  float norm_epsilon = 1e-6f;
  uint8_t* y = nullptr;     // [rows, dim] e4m3, 16-byte aligned
  float* scales = nullptr;  // [rows]: the row's largest magnitude / 448; 1 for a row of zeros
  // Not 0: each 128 neighbours of a row have a scale, [scale_blocks(dim)][rows], those of the same
  // neighbours of all rows one behind the other and so many elements from one to the next.
  int64_t group_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t dim = 0;   // a multiple of kQuantizedRowMultiple, at most kMostQuantizedDim
  // On the device; not null: rows from there on are left as they are.
  const int32_t* num_used = nullptr;
};

// y = x / scale, rounded to nearest even: off by at most a sixteenth of each element's magnitude,
// or 2^-10 of the scale. The scale of a row with an element that is not finite is not finite
// either, nor are its sums.
Status quantize_rows(const QuantizeRowsArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
