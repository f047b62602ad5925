// Rows of numbers as e4m3 with a float32 scale each, for GEMMs of 8 bits: activations on their way
// into one, and weights at load. Thread-safe; pointers are borrowed device memory; requirements of
// streams as kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

inline constexpr int32_t kQuantizedRowMultiple = 16;  // of dim: what GEMMs of e4m3 take
inline constexpr int32_t kMostQuantizedDim = 65536;

struct QuantizeRowsArgs {
  DType type = DType::kBFloat16;  // of x and norm_weight: kBFloat16 or kFloat32
  const void* x = nullptr;        // [rows, dim], rows x_stride apart; 16-byte aligned rows
  int64_t x_stride = 0;
  // Not null: RMSNorm of x first, rounded to `type` as rms_norm() does; [dim].
  const void* norm_weight = nullptr;
  float norm_epsilon = 1e-6f;
  uint8_t* y = nullptr;     // [rows, dim] e4m3, 16-byte aligned
  float* scales = nullptr;  // [rows]: the row's largest magnitude / 448; 1 for a row of zeros
  int32_t rows = 0;         // 0 does nothing
  int32_t dim = 0;          // a multiple of kQuantizedRowMultiple, at most kMostQuantizedDim
  // On the device; not null: rows from there on are left as they are.
  const int32_t* num_used = nullptr;
};

// y = x / scale, rounded to nearest even: off by at most a sixteenth of each element's magnitude,
// or 2^-10 of the scale. The scale of a row with an element that is not finite is not finite
// either, nor are its sums.
Status quantize_rows(const QuantizeRowsArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
