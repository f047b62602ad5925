// What lies between the qkv GEMM and attention, in one kernel: norms of q and k per head, rotary
// embedding, and the new keys and values into their pages, rounded to the pages' type (of e4m3,
// values beyond 448 become 448). Thread-safe; pointers are borrowed
// device memory; requirements of streams as kernels/cuda/stream.h.
#pragma once

#include "kernels/attention/cuda.h"
#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

struct QkRopeAppendArgs {
  DType type = DType::kBFloat16;  // of q, k, v and the norms' weights; kv.type is the pages'
  void* q = nullptr;              // [tokens, num_heads, head_dim], heads adjacent; rotated in place
  int64_t q_stride = 0;           // between tokens
  const void* k = nullptr;        // [tokens, kv.num_kv_heads, head_dim]; not changed
  int64_t k_stride = 0;
  // The new keys once more, as they are in the pages: [tokens, ...] with the layout of k, and may
  // be k itself; null: not written. Tokens without a page are left out.
  void* new_keys = nullptr;
  const void* v = nullptr;  // null: keys are values too, and have one plane
  int64_t v_stride = 0;
  int32_t tokens = 0;
  int32_t num_heads = 0;

  const void* q_norm = nullptr;  // [head_dim], RMSNorm of each head before rotation; null: none
  const void* k_norm = nullptr;
  float norm_offset = 0;  // added to each of their weights: 1 where they lie around 0 (Gemma)
  float epsilon = 1e-6f;

  const int32_t* positions = nullptr;  // [tokens]
  // Where positions have three components (M-RoPE), [tokens, 3], instead of `positions`: pairs
  // below section_ends[0] turn by the first, those below section_ends[1] by the second, others by
  // the third. Null: all turn by one position.
  const int32_t* places = nullptr;
  int32_t section_ends[2] = {};
  // Pairs take turns instead: 3 i + 1 below section_ends[0] turn by the second component, 3 i + 2
  // below section_ends[1] by the third, others by the first.
  bool interleaved_sections = false;
  // Angle per position of each rotated pair, [rotary_dim / 2] float32 (models/rope_table.h); null:
  // no rotation. Cosine and sine are multiplied by attention_factor.
  const float* frequencies = nullptr;
  int32_t rotary_begin = 0;  // the first element of a head that is rotated
  int32_t rotary_dim = 0;    // even; up to the end of a head at most
  float attention_factor = 1.0f;
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)

  KvPlanes kv;
  const int32_t* kv_rows = nullptr;  // [tokens]: page * page_size + row; -1: nowhere
};

// head_dim: a multiple of 8, at most kMaxHeadDim.
Status qk_rope_append(const QkRopeAppendArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
