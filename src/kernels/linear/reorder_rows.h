// Rows with their inputs in another order, for weights whose inputs lie by groups (GPTQ's
// act-order). Thread-safe; pointers are borrowed device memory; streams as kernels/cuda/stream.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

inline constexpr int32_t kReorderedRowMax = 65536;  // inputs

// y[row][i] = n(x[row])[columns[i]], n an RMSNorm where there is a weight; bfloat16.
struct ReorderRowsArgs {
  const void* x = nullptr;  // [rows, dim], rows x_stride apart
  int64_t x_stride = 0;
  const void* norm_weight = nullptr;  // [dim], or none
  float norm_epsilon = 1e-6f;
  const int32_t* columns = nullptr;  // [dim], each in [0, dim)
  void* y = nullptr;                 // [rows, dim], 16-byte aligned; not x
  int32_t rows = 0;                  // 0 does nothing
  int32_t dim = 0;                   // a multiple of 8, at most kReorderedRowMax
};
Status reorder_rows(const ReorderRowsArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
