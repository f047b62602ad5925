// Norms of rows on the GPU: RMS norm, with the residual sum in front of it, and layer norm; a layer
// scale, and the mean of a row's parts.
// Thread-safe; pointers are borrowed device memory; requirements of streams as
// kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

struct RmsNormArgs {
  DType type = DType::kBFloat16;  // of x, residual, y and weight: kBFloat16 or kFloat32
  const void* x = nullptr;        // [rows, dim], rows x_stride apart; 16-byte aligned rows
  int64_t x_stride = 0;
  // If not null: residual += x (rounded to `type`), and the norm is of that sum. [rows, dim], rows
  // residual_stride apart.
  void* residual = nullptr;
  int64_t residual_stride = 0;
  const void* weight = nullptr;  // [dim]
  float weight_offset = 0;       // added to each weight: 1 where they lie around 0 (Gemma)
  void* y = nullptr;             // [rows, dim]; may be x; null: only the sum
  int64_t y_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t dim = 0;   // at most 32768
  float epsilon = 1e-6f;
};

// y = x / sqrt(mean(x^2) + epsilon) * (weight + weight_offset), in float32, rounded once.
Status rms_norm(const RmsNormArgs& args, const LaunchOptions& launch);

struct LayerNormArgs {
  DType type = DType::kBFloat16;  // of all: kBFloat16 or kFloat32
  const void* x = nullptr;        // [rows, dim], rows x_stride apart
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [dim]
  const void* bias = nullptr;    // [dim]
  void* y = nullptr;             // [rows, dim]; may be x
  int64_t y_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t dim = 0;
  float epsilon = 1e-5f;
};

// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, in float32, rounded once.
Status layer_norm(const LayerNormArgs& args, const LaunchOptions& launch);

struct ScaleColumnsArgs {
  DType type = DType::kBFloat16;  // of all: kBFloat16 or kFloat32
  const void* x = nullptr;        // [rows, dim], rows x_stride apart
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [dim]
  void* y = nullptr;             // [rows, dim]; may be x
  int64_t y_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t dim = 0;
};

// y = x * weight, rounded once.
Status scale_columns(const ScaleColumnsArgs& args, const LaunchOptions& launch);

struct MeanPartsArgs {
  DType type = DType::kBFloat16;  // of all: kBFloat16 or kFloat32
  const void* x = nullptr;        // [rows, parts, dim], parts adjacent, rows x_stride apart
  int64_t x_stride = 0;
  void* y = nullptr;  // [rows, dim], not in x
  int64_t y_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t parts = 1;
  int32_t dim = 0;
};

// y = the mean of a row's parts, summed in float32 from the first to the last, rounded once.
Status mean_parts(const MeanPartsArgs& args, const LaunchOptions& launch);

struct PoolRowsArgs {
  DType type = DType::kBFloat16;  // of x: kBFloat16 or kFloat32
  const void* x = nullptr;        // rows x_stride apart
  int64_t x_stride = 0;
  const int32_t* begins = nullptr;  // [texts + 1]: the first row of each text, and the last's end
  int32_t texts = 0;                // 0 does nothing; each has a row or more
  int32_t dim = 0;
  bool largest = false;  // of each column, instead of the mean
  float* y = nullptr;    // [texts, dim]
};

// y = the mean, or the largest, of a text's rows, in float32 from the first to the last.
Status pool_rows(const PoolRowsArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
