// Low-rank additions to a GEMM's result (LoRA, Hu et al. 2021) on the GPU: y += scale (x A^T) B^T,
// where each row of a batch has an adapter of its own, or none. Two kernels: lora_shrink() leaves
// x A^T in a workspace, lora_expand() adds the rest to y. What the rows' adapters are is read from
// device memory, so a step with adapters is captured into a graph like any other.
//
// A row's bits do not depend on the rows beside it, on their number, or on how rows are arranged in
// tiles. Thread-safe; pointers are borrowed device memory; requirements of streams and strides as
// kernels/cuda/stream.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

inline constexpr int32_t kLoraPartsMax = 3;   // of a fused matrix: q, k and v
inline constexpr int32_t kLoraTileRows = 16;  // rows of one adapter that are computed together
inline constexpr int32_t kLoraRankUnit = 16;  // ranks are padded to a multiple of it

inline constexpr int32_t padded_lora_rank(int32_t rank) {
  return (rank + kLoraRankUnit - 1) / kLoraRankUnit * kLoraRankUnit;
}

// The factors of one adapter for one part of a matrix, of the activations' type and 16-byte
// aligned; elements beyond the adapter's own rank are zeros.
struct LoraPart {
  const void* a = nullptr;  // [rank, in_features]
  const void* b = nullptr;  // [out_features, rank]
  int32_t rank = 0;         // padded; 0: the adapter leaves this part as it is
  float scale = 1;
};

// Rows of one adapter.
struct LoraTile {
  const LoraPart* parts = nullptr;  // the adapter's, [matrices of the model, kLoraPartsMax]
  int32_t first = 0;                // rows in the tiles before this one
  int32_t num_rows = 0;
  int32_t rows[kLoraTileRows] = {};  // of x and y
};

// All rows of a step that have an adapter. No row is in two tiles.
struct LoraRows {
  const int32_t* num_tiles = nullptr;  // on the device, at most max_tiles
  const LoraTile* tiles = nullptr;
  int32_t max_tiles = 0;  // 0 does nothing
  int32_t max_rows = 0;   // of all tiles
};

// A matrix whose result adapters add to, the same for all of them. in_features, columns and
// out_features are multiples of 8.
struct LoraMatrix {
  struct Part {
    int32_t column = 0;  // of y
    int32_t out_features = 0;
  };
  int32_t index = 0;  // among the matrices of LoraTile::parts
  int32_t in_features = 0;
  int32_t part_count = 0;
  Part parts[kLoraPartsMax];
};

struct LoraArgs {
  DType type = DType::kBFloat16;  // of x, y and factors: kBFloat16 or kFloat32
  LoraMatrix matrix;
  LoraRows rows;
  const void* x = nullptr;  // rows x_stride apart; of bfloat16 rows are 16-byte aligned, as y's
  int64_t x_stride = 0;
  void* y = nullptr;
  int64_t y_stride = 0;
  int32_t rank_max = 0;        // padded, of all adapters
  float* workspace = nullptr;  // 16-byte aligned; the same for both kernels
  int64_t workspace_bytes = 0;
};
// x A^T to the workspace; y is not read.
Status lora_shrink(const LoraArgs& args, const LaunchOptions& launch);
// y += scale * workspace B^T; x is not read.
Status lora_expand(const LoraArgs& args, const LaunchOptions& launch);

// What both need for up to max_rows rows of this matrix.
int64_t lora_workspace_bytes(const LoraMatrix& matrix, int32_t max_rows, int32_t rank_max);

}  // namespace espalier::kernels::cuda
