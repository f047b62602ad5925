// Rows of an embedding table by index, as float32, on the CPU. Arguments are borrowed for the call.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/backend.h"
#include "tensor/dtype.h"

namespace espalier::kernels {

struct GatherArgs {
  const void* table = nullptr;  // [num_rows, dim], rows adjacent
  DType type = DType::kBFloat16;
  int64_t dim = 0;
  std::span<const int32_t> ids;  // each in [0, num_rows)
  float* out = nullptr;          // [ids.size(), dim], rows out_stride elements apart
  int64_t out_stride = 0;
};

// out[i] = table[ids[i]], exactly. For a table that lives in a PackedMatrix (a tied output head)
// use gather_packed_rows of kernels/linear.
void gather_rows(CpuBackend& backend, const GatherArgs& args);

// A row between four rows of an array, as bilinear interpolation places it.
struct MixedRow {
  // Upper left and right, lower left and right; the first is -1: the row is one that stands apart.
  int32_t corners[4] = {-1, -1, -1, -1};
  float across = 0, down = 0;  // weights of the right and of the lower ones

  static MixedRow of(int32_t row) { return {.corners = {row, row, row, row}}; }
};

struct MixArgs {
  const void* table = nullptr;  // [num_rows, dim], rows adjacent
  DType type = DType::kBFloat16;
  int64_t dim = 0;
  std::span<const MixedRow> rows;  // corners in [0, num_rows)
  float* out = nullptr;            // [rows.size(), dim], rows out_stride elements apart
  int64_t out_stride = 0;
};

// out[i]: between the four rows of the table that rows[i] names; exactly the first one where its
// weights are 0.
void mix_rows(CpuBackend& backend, const MixArgs& args);

}  // namespace espalier::kernels
