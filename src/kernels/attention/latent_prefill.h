// Multi-head latent attention of prompts with expanded keys and values (DeepSeek's form before
// absorption): each head's keys and values are computed from the latents for a step and attended
// to by Hopper's tensor cores, with 3.4 times fewer operations than on latents. Entries of fewer
// than kExpandedTokens query tokens stay with attention(), which reads latents.
//
// A step's expanded rows are the cached and new positions of its long entries, entry after entry,
// each from a multiple of kExpandedAlignment on. A layer runs gather_latents(), a GEMM with the
// matrix [heads, nope + value, rank] of the checkpoint (kv_b), and attention_expanded(), for as
// many heads at a time as there is memory for.
//
// Thread-safe. Pointers are borrowed device memory; requirements of streams as
// kernels/cuda/stream.h.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda.h"

namespace espalier::kernels::cuda {

inline constexpr int32_t kExpandedTokens = 32;
inline constexpr int32_t kExpandedAlignment = 128;

// Expanded rows of an entry; 0: it stays with attention().
constexpr int64_t expanded_rows(int64_t prefix_len, int64_t query_tokens) {
  if (query_tokens < kExpandedTokens) return 0;
  return (prefix_len + query_tokens + kExpandedAlignment - 1) / kExpandedAlignment *
         kExpandedAlignment;
}

// Elements of a head: of its query and key without and with rotation, and of its value.
struct LatentHead {
  int32_t nope_dim = 0, rope_dim = 0, value_dim = 0;
};
// Whether this device runs attention_expanded() for such heads and latents of `rank` elements.
Result<bool> expands_latents(const LatentHead& head, int32_t rank, DType type);

// Device arrays of a step, from plan_expanded().
struct ExpandedPlan {
  int32_t* row_begin = nullptr;   // [max_entries + 1]: each entry's first expanded row
  int32_t* tile_begin = nullptr;  // [max_entries + 1]: the same of tiles of 128 query tokens
  int32_t* counters = nullptr;    // [2]: 0 between launches; zeroed by plan_expanded()
};

// Once for a step, before its first layer.
Status plan_expanded(const EntryArrays& entries, const ExpandedPlan& plan,
                     const LaunchOptions& launch);

// out [rows, latent_dim]: the latents of every expanded row, read from the pages; rows of no
// position are zeros. latent_dim: kv.head_dim.
struct GatherLatentsArgs {
  EntryArrays entries;
  ExpandedPlan plan;
  KvPlanes kv;
  int32_t rows = 0;  // of all entries together
  void* out = nullptr;
};
Status gather_latents(const GatherLatentsArgs& args, const LaunchOptions& launch);

// out = softmax(scale * (q_nope k_nope + q_rope k_rope), causal) v, for every long entry by itself
// and heads [0, num_heads) of what the pointers name. All bfloat16, strides in elements, rows
// 16-byte aligned.
struct ExpandedAttentionArgs {
  EntryArrays entries;
  ExpandedPlan plan;
  int32_t num_heads = 0;
  // [tokens, num_heads, nope_dim ...] and [tokens, num_heads, rope_dim ...], heads *_head apart.
  const void* q_nope = nullptr;
  const void* q_rope = nullptr;
  int64_t q_nope_stride = 0, q_nope_head = 0, q_rope_stride = 0, q_rope_head = 0;
  int32_t rows = 0;                   // of all entries together
  const void* keys_values = nullptr;  // [rows, num_heads, nope_dim + value_dim]
  const void* k_rope = nullptr;       // [rows, rope_dim], k_rope_stride apart
  int64_t k_rope_stride = 0;
  void* out =
      nullptr;  // [tokens, num_heads, value_dim]; tokens of other entries are left as they are
  int64_t out_stride = 0;
  float scale = 1.0f;
};
Status attention_expanded(const ExpandedAttentionArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
