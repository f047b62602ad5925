// Rotary embedding of rows that go to no pages: the queries and keys of an encoder of pictures,
// whose rows have places in a grid. Thread-safe; pointers are borrowed device memory; requirements
// of streams as kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

inline constexpr int32_t kPlacedRopeDimMax = 256;

struct PlacedRopeArgs {
  DType type = DType::kBFloat16;  // kBFloat16 or kFloat32
  void* x = nullptr;              // [rows, heads, head_dim], heads adjacent; rotated in place
  int64_t x_stride = 0;           // between rows
  int32_t rows = 0;               // 0 does nothing
  int32_t heads = 0;
  int32_t head_dim = 0;    // at most kPlacedRopeDimMax
  int32_t rotary_dim = 0;  // even; element i turns with i + rotary_dim / 2, those behind stay
  // [rows, 3]: pairs below section_ends[0] turn by the first component, those below section_ends[1]
  // by the second, others by the third.
  const int32_t* places = nullptr;
  int32_t section_ends[2] = {};
  const float* frequencies = nullptr;  // angle per place of each pair, [rotary_dim / 2]
};
// (a, b) -> (a cos - b sin, b cos + a sin) for each pair, in float32, rounded once.
Status placed_rope(const PlacedRopeArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
