// Elements of a checkpoint's tensor as float32 or bf16, wherever their bytes start and whatever
// their format: the one way in which loaders of all back ends decode weights. Pure functions;
// thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "checkpoint/safetensors.h"

namespace espalier {

// Elements [first, first + out.size()) in row-major order. Exact for the types that `dtype` names;
// a reader's elements as it computes them. REQUIRES: tensor.readable(), the range lies inside.
void copy_as_float(const CheckpointTensor& tensor, int64_t first, std::span<float> out);

// The same rounded to bf16 (nearest, ties to even); exact for BF16.
void copy_as_bfloat16(const CheckpointTensor& tensor, int64_t first, std::span<BFloat16> out);

// A rectangle of a tensor seen as a matrix, whose columns are the last extent and whose rows are
// all others.
struct TensorSlice {
  int64_t first_row = 0, rows = 0;
  int64_t first_column = 0, columns = 0;

  static TensorSlice whole(std::span<const int64_t> shape);
  int64_t num_elements() const { return rows * columns; }
};

// The slice's elements, row-major, as `type` (kFloat32, else bf16) to out: num_elements() of them,
// wherever they start. REQUIRES: as above.
void copy_slice(const CheckpointTensor& tensor, const TensorSlice& slice, DType type,
                std::byte* out);

}  // namespace espalier
