// Attention of encoders on the GPU: sequences in which every row sees every row of its sequence, or
// some on either side, read from rows without pages.
//
// Thread-safe; pointers are borrowed device memory; requirements of streams as
// kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

inline constexpr int32_t kBidirectionalHeadDimMax = 128;

struct BidirectionalArgs {
  DType type = DType::kBFloat16;  // of all: kBFloat16 or kFloat32
  int32_t num_heads = 0;          // of queries, keys and values alike
  int32_t head_dim = 0;   // at most kBidirectionalHeadDimMax; multiples of 8 are fast, on Hopper 64
                          // and from 80 on the fastest where lengths are equal
  int32_t sequences = 0;  // 0 does nothing
  int32_t rows = 0;       // of a sequence; its rows are adjacent, and sequences too
  // Where sequences have lengths of their own, [sequences + 1], rising: the first row of each, and
  // the end of the last; `rows` then is the most that one has. Null: all have `rows`.
  const int32_t* begins = nullptr;
  // [sequences * rows, num_heads, head_dim], heads adjacent, rows `stride` apart; 16-byte aligned.
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t stride = 0;   // a multiple of 8, as out_stride
  void* out = nullptr;  // the same shape, rows out_stride apart; none of the three above
  int64_t out_stride = 0;
  float scale = 1.0f;  // of the scores, mostly 1 / sqrt(head_dim)
  int32_t reach = 0;   // rows that a row sees on either side of its own; 0: all of its sequence
};

// out = softmax(scale * q k^T) v of each sequence by itself. A row's bits depend on its sequence
// alone.
Status bidirectional_attention(const BidirectionalArgs& args, const LaunchOptions& launch);

// For bidirectional_attention(): the kernel for Hopper, for arguments that have been checked.
Status bidirectional_sm90(const BidirectionalArgs& args, int32_t multiprocessors,
                          const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
