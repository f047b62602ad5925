#include "kernels/activation/gelu.h"

#include <cmath>

#include "kernels/cpu/share_rows.h"
#include "kernels/cpu/table.h"

namespace espalier::kernels {
namespace {

void erf_row(const float* x, float* y, int64_t dim) {
  constexpr float kRootHalf = 0.70710678f;
  for (int64_t i = 0; i < dim; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * kRootHalf));
}

// v / (1 + exp(-a v)) is silu(a v) / a.
void quick_row(const CpuTable& table, const float* x, float* y, int64_t dim) {
  constexpr float kSlope = 1.702f;
  for (int64_t i = 0; i < dim; ++i) y[i] = kSlope * x[i];
  table.silu_mul(y, nullptr, y, dim);
  table.scale(y, 1 / kSlope, dim);
}

}  // namespace

void gelu(CpuBackend& backend, const GeluArgs& args) {
  const auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const x = args.x + row * args.x_stride;
      float* const y = args.y + row * args.y_stride;
      if (args.kind == Gelu::kErf) {
        erf_row(x, y, args.dim);
      } else {
        quick_row(backend.table(), x, y, args.dim);
      }
      if (args.up == nullptr) continue;
      const float* const up = args.up + row * args.up_stride;
      for (int64_t i = 0; i < args.dim; ++i) y[i] *= up[i];
    }
  };
  share_rows(backend, args.rows, args.dim, rows);
}

}  // namespace espalier::kernels
