// Rows of float32 as a matrix that kernels multiply by: what calibration's linear algebra is made
// of, for its large GEMMs are those of linear layers. Thread safety as PackedMatrix's.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/linear/op.h"

namespace espalier::calibration {

struct FloatRows {
  const float* data = nullptr;
  int64_t rows = 0, columns = 0;
  int64_t stride = 0;  // elements from one row to the next
};

inline Result<kernels::PackedMatrix> pack_rows(kernels::CpuBackend& backend,
                                               const FloatRows& rows) {
  const kernels::WeightRows block{
      .data = rows.data, .type = DType::kFloat32, .rows = rows.rows, .row_stride = rows.stride};
  return kernels::PackedMatrix::pack(
      backend,
      {.in_features = rows.columns, .type = DType::kFloat32, .blocks = std::span(&block, 1)});
}

}  // namespace espalier::calibration
