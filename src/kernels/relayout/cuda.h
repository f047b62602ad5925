// Weights of a checkpoint whose layout differs from what the GEMMs read, converted on the GPU.
// Thread-safe; pointers are borrowed device memory; requirements of streams as
// kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

// Matrices [rows, columns], one for each group, adjacent in `to`.
struct RelayoutArgs {
  enum class From : uint8_t {
    kTransposed,  // [columns, rows] of the same type
    kMxfp4,       // [rows, columns / 32] blocks of 16 bytes, low halves first, and a scale for each
                  // (OCP Microscaling formats 1.0: E2M1 times 2^(scale - 127))
  };
  From kind = From::kTransposed;
  DType type = DType::kBFloat16;  // of `to`: kBFloat16 or kFloat32
  const void* from = nullptr;
  int64_t from_group_stride = 0;    // elements of `from` between groups; unused for kMxfp4
  const uint8_t* scales = nullptr;  // kMxfp4: [groups, rows, columns / 32]
  void* to = nullptr;
  int32_t groups = 1;
  int32_t rows = 0;
  int32_t columns = 0;
  // In `from` the rows of gate and up alternate; in `to` all of gate comes first.
  bool interleaved = false;
};
Status relayout(const RelayoutArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
