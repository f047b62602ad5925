// Attention of a step's query tokens over the pages of their entries, on the CPU: prefill, chunk
// and decode are the same operation. Each call runs in parallel on the back end's pool; arguments
// are borrowed for the call.
//
// Exactness: the result of a query (one token, one head) depends on that query, on its position and
// on the keys and values at positions up to its own; not on the batch, the chunking, the page size
// or the number of threads. Keys are processed in blocks of kAttentionBlock absolute positions;
// long contexts are split among threads at multiples of kAttentionSplit, and the partial results
// are combined from the first to the last.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/backend.h"
#include "seams/forward_batch.h"
#include "seams/kv_view.h"

namespace espalier::kernels {

inline constexpr int32_t kAttentionBlock = 64;
inline constexpr int32_t kAttentionSplit = 1024;

struct AttentionArgs {
  // [tokens, heads, head_dim] float32, heads adjacent, tokens stride elements apart, in the order
  // of the batch. Query head h reads key/value head h / (heads / kv_heads).
  const float* q = nullptr;
  int64_t q_stride = 0;
  float* out = nullptr;  // the same shape; not q itself
  int64_t out_stride = 0;
  int32_t heads = 0;  // a multiple of the layer's num_kv_heads

  std::span<const BatchEntry> entries;
  std::span<const PageId> page_tables;  // the batch's; BatchEntry::page_begin indexes it
  // Of each entry of page_tables where the page begins, in elements from either plane's begin:
  // pages need not lie in one block of memory. page_tables is not read then. Empty: by page_stride.
  std::span<const int64_t> page_offsets;
  const KvView* kv = nullptr;  // head_dim at most 512; check_kv_layer() holds
  int32_t layer = 0;

  float scale = 1.0f;          // of the scores, mostly 1 / sqrt(head_dim)
  int32_t sliding_window = 0;  // a query at p sees positions (p - sliding_window, p]; 0: all
  // Of each entry its own in place of that, [entries]; empty: all entries have that one.
  std::span<const int32_t> windows;
  float softcap = 0.0f;  // scores become softcap * tanh(score / softcap); 0: none
  // [heads] float32 or null: attention sinks (gpt-oss), a score of each head that takes its share
  // of every softmax and has no value. It is neither scaled nor capped.
  const float* sinks = nullptr;

  int32_t window_of(size_t entry) const {
    return windows.empty() ? sliding_window : windows[entry];
  }
};

// out = softmax(scale * q k^T, causal) v for each entry by itself. REQUIRES: the new tokens' keys
// and values are in the pages (kv_append). The V plane may be the K plane (latent attention).
void attention(CpuBackend& backend, const AttentionArgs& args);

namespace reference {
void attention(const AttentionArgs& args);
}  // namespace reference

}  // namespace espalier::kernels
