// RMS norm (Zhang and Sennrich 2019), as Llama and Qwen use it, layer norm, and what encoders of
// pictures have in their place: a layer scale, the mean of a square's patches. On the CPU; each
// call runs in parallel on the back end's pool; arguments are borrowed for the call.
#pragma once

#include <cstdint>

#include "kernels/cpu/backend.h"

namespace espalier::kernels {

struct RmsNormArgs {
  // x: [rows, groups, dim], groups adjacent, rows x_stride elements apart. groups is 1 for a norm
  // over the hidden size; for a norm per head (qk-norm) it is the number of heads.
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* y = nullptr;  // the same shape; y == x (with equal strides) works in place
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t groups = 1;
  int64_t dim = 0;
  const float* weight = nullptr;  // [dim], shared by all groups
  float epsilon = 1e-6f;
};

// y = x / sqrt(mean(x^2) + epsilon) * weight, for each row and group by itself. A row's result does
// not depend on the others.
void rms_norm(CpuBackend& backend, const RmsNormArgs& args);

// Layer normalisation (Ba et al. 2016), as GPT-2 uses it.
struct LayerNormArgs {
  const float* x = nullptr;  // [rows, dim], rows x_stride elements apart
  int64_t x_stride = 0;
  float* y = nullptr;  // the same shape; y == x (with equal strides) works in place
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t dim = 0;
  const float* weight = nullptr;  // [dim]
  const float* bias = nullptr;    // [dim]
  float epsilon = 1e-5f;
};

// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, for each row by itself.
void layer_norm(CpuBackend& backend, const LayerNormArgs& args);

// Layer scale (Touvron et al. 2021).
struct ScaleColumnsArgs {
  const float* x = nullptr;  // [rows, dim], rows x_stride elements apart
  int64_t x_stride = 0;
  float* y = nullptr;  // the same shape; y == x (with equal strides) works in place
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t dim = 0;
  const float* weight = nullptr;  // [dim]
};

// y = x * weight, element by element.
void scale_columns(CpuBackend& backend, const ScaleColumnsArgs& args);

struct MeanPartsArgs {
  const float* x = nullptr;  // [rows, parts, dim], parts adjacent, rows x_stride elements apart
  int64_t x_stride = 0;
  float* y = nullptr;  // [rows, dim], not in x
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t parts = 1;
  int64_t dim = 0;
};

// y = the mean of a row's parts, summed from the first to the last.
void mean_parts(CpuBackend& backend, const MeanPartsArgs& args);

namespace reference {
void rms_norm(const RmsNormArgs& args);
void layer_norm(const LayerNormArgs& args);
}  // namespace reference

}  // namespace espalier::kernels
