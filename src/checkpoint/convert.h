// Elements of a checkpoint's tensor as float32 or bf16, wherever their bytes start.
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

}  // namespace espalier
