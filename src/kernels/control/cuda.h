// Control vectors of rows: directions that are added to hidden states.
// Thread-safe; pointers are borrowed device memory; requirements of streams as
// kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"
#include "seams/control_use.h"
#include "tensor/dtype.h"

namespace espalier::kernels::cuda {

struct AddControlArgs {
  DType type = DType::kBFloat16;  // of x: kBFloat16 or kFloat32
  void* x = nullptr;              // [rows, dim], rows x_stride apart
  int64_t x_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t dim = 0;   // a multiple of 8
  int32_t layer = 0;
  const int32_t* tokens = nullptr;       // [rows]: of each row its token; null: row i is token i
  const int32_t* token_slots = nullptr;  // [tokens]; negative: the token has no slot
  const ControlUse* slots = nullptr;     // [slots]
  const float* vectors = nullptr;        // [vectors, num_layers, dim]
  int32_t num_layers = 0;
};
// x[i] += scale * vectors[index][layer] of the row's slot, in float32, rounded once; rows without a
// vector, or whose layers are others, stay as they are.
Status add_control(const AddControlArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
