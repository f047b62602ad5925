// Weights drawn on the GPU from a seed, for benchmarks: the bits of models/weight_source.h's
// DummySource. Thread-safe; pointers are borrowed device memory; requirements of streams as
// kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

struct DrawArgs {
  DType type = DType::kBFloat16;  // kBFloat16 or kFloat32
  void* out = nullptr;            // [count]
  int64_t count = 0;
  // Which elements of the tensor these are: rows of `columns` elements, row_stride apart, from
  // element `first` on. All three 0: the first `count`.
  int64_t first = 0, columns = 0, row_stride = 0;
  uint64_t key = 0;  // of the tensor
  float centre = 0.0f;
  float deviation = 1.0f;
};
// out[i] = centre + deviation * z(key, element of i), z close to normal: the sum of four bytes, in
// +-3.45.
Status draw(const DrawArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
