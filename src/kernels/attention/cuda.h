// Attention over paged keys and values on the GPU: prefill, chunk, decode and any mixture of them
// in one call.
//
// Thread-safe; one workspace belongs to one stream. Pointers are borrowed device memory;
// requirements of streams as kernels/cuda/stream.h.
#pragma once

#include <cstddef>

#include "kernels/cuda/stream.h"
#include "seams/kv_view.h"

namespace espalier::kernels::cuda {

// One layer's keys and values: KvView for one layer, [page, page_size, kv_head, head_dim] by
// strides.
struct KvPlanes {
  KvType type = KvType::kBFloat16;
  void* k = nullptr;
  void* v = nullptr;
  int32_t page_size = 1;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  // In elements, as the two below; multiples of 16 bytes.
  int64_t page_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// A shared prefix segment: positions that several entries of one token share, in the same pages.
// Keys and values are read once for all of them (cascade attention, after Hydragen and FlashInfer).
// Segments of an entry are adjacent from position 0; positions behind the last one are read by the
// entry itself.
struct SharedSegment {
  int32_t begin = 0, end = 0;  // positions
  int32_t page_begin = 0;      // index in page_tables of an entry that has it
  int32_t first_member = 0, num_members = 0;
};
inline constexpr int32_t kSegmentsPerEntry = 4;  // at most

// The shared segments of a step. Null `segments`: nothing is shared, or nothing that is worth it.
struct SharedSegments {
  const int32_t* num_segments = nullptr;  // [1]: of this step, at most as many as entries
  const SharedSegment* segments = nullptr;
  const int32_t* members = nullptr;  // entries of segment 0, then of segment 1 ...; each entry at
                                     // most kSegmentsPerEntry times
  // [num_entries][kSegmentsPerEntry][2]: the entry's segments (-1: no more) and its index among
  // their members.
  const int32_t* memberships = nullptr;
  const int32_t* own_begin = nullptr;  // [num_entries]: the end of the entry's last segment, or 0
};

// The entries of a step, the same for all layers. Entries from the step's own number of entries to
// num_entries have no tokens: query_begin[i + 1] == query_begin[i]. A graph captured for
// num_entries entries thus runs any smaller number.
struct EntryArrays {
  const int32_t* query_begin = nullptr;  // [num_entries + 1], from 0 upwards: entry i's tokens
  const int32_t* prefix_len = nullptr;   // [num_entries]
  const int32_t* page_begin = nullptr;   // [num_entries]: first entry in page_tables
  const int32_t* page_tables = nullptr;
  // Host-side bounds that fix the grids; the step's own numbers may be smaller.
  int32_t num_entries = 0;
  int32_t num_tokens = 0;        // of all entries
  int32_t max_query_tokens = 0;  // of one entry: 1 for a decode step
  SharedSegments shared;         // used where shares_segments(), else ignored
};

// kv_rows[t]: the row of token t's key and value, page * page_size + index in page, and -1 for
// tokens of no entry. positions[t] = prefix_len + index in the entry. token_entries[t]: its entry,
// or -1. Each [num_tokens]; any may be null.
struct TokenRowsArgs {
  EntryArrays entries;
  int32_t page_size = 1;
  int32_t* kv_rows = nullptr;
  int32_t* positions = nullptr;
  int32_t* token_entries = nullptr;
};
Status token_rows(const TokenRowsArgs& args, const LaunchOptions& launch);

inline constexpr int32_t kMaxHeadDim = 576;  // latents of DeepSeek

struct AttentionShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;  // a multiple of 8, at most kMaxHeadDim; 64, 80, 96, 128 and 256 are fast
  int32_t page_size = 1;
  int32_t sliding_window = 0;  // a query at p sees (p - sliding_window, p]; 0: all
  DType type = DType::kBFloat16;
  // Whether keys and values are codes of e4m3, without scales, beside queries of bfloat16: for
  // heads of 64 and 128 on Hopper, or heads that no tensor-core kernel takes.
  bool kv_e4m3 = false;
  // With kv_e4m3: positions whose keys and values a step with prompts may widen to bfloat16, once
  // instead of for every tile of queries; 4 x num_kv_heads x head_dim bytes of workspace each.
  // Prompts beyond are read from their pages, with the same results.
  int32_t widened_positions = 0;
  // Above 0: each row's output depends on that row alone, bit for bit, whatever else is in the step
  // and however its entry was chunked; sums are split at multiples of fixed_split positions, and
  // shared segments are ignored. A multiple of 64, from fixed_split().
  int32_t fixed_split = 0;
  int32_t max_context = 0;  // with fixed_split: positions of an entry, at most
};

// The split for entries of such bounds: short enough to balance the work, and long enough that all
// partial results take no more than 2 GiB of workspace.
int32_t fixed_split(const AttentionShape& shape, int32_t max_entries, int32_t max_context);

// Whether shared segments are read once for attention of this shape on this device.
Result<bool> shares_segments(const AttentionShape& shape);

// Bytes of scratch that attention_plan() and attention() need for at most max_entries entries and
// max_tokens tokens in one step, 256-byte aligned. Layers may share it: they run one after the
// other.
Result<size_t> attention_workspace_bytes(const AttentionShape& shape, int32_t max_entries,
                                         int32_t max_tokens);

// Divides a step's work into equal parts from the lengths on the device: once for a step and shape,
// before its first attention(). Layers of another shape (a sliding window) have a plan and a
// workspace of their own.
Status attention_plan(const AttentionShape& shape, const EntryArrays& entries, void* workspace,
                      size_t workspace_bytes, const LaunchOptions& launch);

struct AttentionArgs {
  AttentionShape shape;
  EntryArrays entries;  // as given to attention_plan
  KvPlanes kv;          // the new tokens' keys and values are in the pages already
  // The new tokens' keys and values once more, as they are in the pages: [tokens, num_kv_heads,
  // head_dim], heads adjacent, tokens new_kv_stride apart. Adjacent rows are read faster than
  // pages. Null: read from the pages alone.
  const void* new_keys = nullptr;
  const void* new_values = nullptr;
  int64_t new_kv_stride = 0;  // as q_stride
  const void* q = nullptr;  // [tokens, num_heads, head_dim], heads adjacent, tokens q_stride apart
  int64_t q_stride = 0;     // of shape.type, as out; 16-byte aligned rows
  void* out = nullptr;      // the same shape; rows of tokens of no entry are left as they are
  int64_t out_stride = 0;
  float scale = 1.0f;    // of the scores, mostly 1 / sqrt(head_dim)
  float softcap = 0.0f;  // scores become softcap * tanh(score / softcap); 0: none
  // [num_heads] float32: attention sinks, a logit of each head that takes part in the sum of the
  // softmax and has no value; null: none.
  const float* sinks = nullptr;
  // Of tokens that see positions behind their own the last one, else -1: [num_tokens]. Such tokens
  // are few (rows of pictures) and computed apart, without tensor cores. Null: there are none.
  const int32_t* last_seen = nullptr;
  // Of latents (keys that are values): entries of more query tokens are left out, for
  // attention_expanded(); 0: none is.
  int32_t latent_tokens_max = 0;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  // For launches with PDL: everything enqueued up to the plan (the plan itself, entries, page
  // tables, shared segments, and keys and values at positions below each entry's prefix_len -
  // fresh_positions) is complete before this attention can start, however early; only what was
  // enqueued later (q, the new tokens' keys and values) is waited for. Cached keys are then
  // prefetched while the kernels before still run.
  bool prefetch_cached_kv = false;
  int32_t fresh_positions = 0;
};

// out = softmax(scale * q k^T, causal) v, for each entry by itself.
Status attention(const AttentionArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
