// Elementwise operations between the matrix products.
#pragma once

#include <cstdint>

#include "kernels/cpu/backend.h"

namespace espalier::kernels {

// y[row, i] = silu(gate[row, i]) * up[row, i], silu(v) = v / (1 + exp(-v)), for i < dim. Strides in
// elements. y may be gate or up themselves. Where gate and up come from one product,
// linear_silu_mul does both.
struct SiluMulArgs {
  const float* gate = nullptr;
  int64_t gate_stride = 0;
  const float* up = nullptr;
  int64_t up_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t dim = 0;
};
void silu_mul(CpuBackend& backend, const SiluMulArgs& args);

// y[i] += x[i], i < count: a residual. linear() can accumulate instead.
void add(CpuBackend& backend, float* y, const float* x, int64_t count);

// y[i] *= factor, i < count.
void scale(CpuBackend& backend, float* y, float factor, int64_t count);

namespace reference {
void silu_mul(const SiluMulArgs& args);
}  // namespace reference

}  // namespace espalier::kernels
