// Attention over pages on the GPU: prefill, chunk, decode and any mixture of them in one call.
#pragma once

#include <cstddef>

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

// One layer's keys and values: what KvView says, for one layer.
struct KvPlanes {
  DType type = DType::kBFloat16;  // kBFloat16 or kFloat32
  void* k = nullptr;
  void* v = nullptr;
  int32_t page_size = 1;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t page_stride = 0;  // in elements, as the two below; multiples of 8
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// A run of positions that several entries of one token share, in the same pages: it is read once
// for all of them (cascade attention, after Hydragen and FlashInfer). Runs of an entry follow each
// other from position 0 without a gap; what is behind the last one the entry reads by itself.
struct SharedSegment {
  int32_t begin = 0, end = 0;  // positions
  int32_t page_begin = 0;      // first entry in page_tables of an entry that has it
  int32_t first_member = 0, num_members = 0;
};
inline constexpr int32_t kSegmentsPerEntry = 4;  // at most

// All in device memory; null runs: nothing is shared, or nothing that is worth it.
struct SharedSegments {
  const int32_t* num_segments = nullptr;  // [1]: of this step, at most as many as entries
  const SharedSegment* segments = nullptr;
  const int32_t* members =
      nullptr;  // entries: those of run 0, of run 1 ...; at most kSegmentsPerEntry each
  // [num_entries][kSegmentsPerEntry][2]: the entry's runs (-1: no more) and its place among their
  // members.
  const int32_t* memberships = nullptr;
  const int32_t* own_begin = nullptr;  // [num_entries]: the end of the entry's last run, or 0
};

// The entries of a step, in device memory; the same for all layers. Entries from the step's number
// of entries to num_entries are entries without tokens: query_begin[i + 1] == query_begin[i]. A
// graph that was captured for num_entries entries so runs any smaller number.
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

// kv_rows[t]: where token t's key and value go, page * page_size + row, and -1 for tokens of no
// entry. positions[t] = prefix_len + index in the entry. token_entries[t]: its entry, or -1. Each
// [num_tokens]; any may be null.
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
  // More than 0: each row's output depends on that row alone, bit for bit, whatever else is in the
  // step and however its entry came in steps; sums are cut at multiples of so many positions, and
  // nothing that entries share is read once for several. A multiple of 64: fixed_split().
  int32_t fixed_split = 0;
  int32_t max_context = 0;  // with fixed_split: positions of an entry, at most
};

// Positions between the cuts for entries of such bounds: short enough to share out, few enough that
// the parts of all of them take no more than 2 GiB of workspace.
int32_t fixed_split(const AttentionShape& shape, int32_t max_entries, int32_t max_context);

// Whether runs that entries share are read once for attention of this shape on this device.
Result<bool> shares_segments(const AttentionShape& shape);

// Bytes of scratch that plan() and attention() need for at most this many entries and tokens in one
// step, 256-byte aligned. Layers may share it: they run one after the other.
Result<size_t> attention_workspace_bytes(const AttentionShape& shape, int32_t max_entries,
                                         int32_t max_tokens);

// Cuts a step's work into equal parts from the lengths on the device: once for a step and shape,
// before its first attention(); layers with another shape (a sliding window) have a plan and a
// workspace of their own.
Status attention_plan(const AttentionShape& shape, const EntryArrays& entries, void* workspace,
                      size_t workspace_bytes, const LaunchOptions& launch);

struct AttentionArgs {
  AttentionShape shape;
  EntryArrays entries;  // as given to attention_plan
  KvPlanes kv;          // the new tokens' keys and values are in the pages already
  // The new tokens' keys and values once more, as they are in the pages: [tokens, num_kv_heads,
  // head_dim], heads adjacent, tokens new_kv_stride apart. Rows that lie one after the other are
  // read faster than pages. Null: from the pages alone.
  const void* new_keys = nullptr;
  const void* new_values = nullptr;
  int64_t new_kv_stride = 0;  // as q_stride
  const void* q = nullptr;  // [tokens, num_heads, head_dim], heads adjacent, tokens q_stride apart
  int64_t q_stride = 0;     // of shape.type, as out; 16-byte aligned rows
  void* out = nullptr;      // the same shape; rows of tokens of no entry are left as they are
  int64_t out_stride = 0;
  float scale = 1.0f;    // of the scores, mostly 1 / sqrt(head_dim)
  float softcap = 0.0f;  // scores become softcap * tanh(score / softcap); 0: none
  // [num_heads] float32: a logit of each head that takes part in the sum of the softmax and has no
  // value; null: none.
  const float* sinks = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  // For launches with PDL: all that was enqueued up to the plan, and so the plan, entries, tables
  // and keys and values at positions below each entry's prefix_len, has ended before this attention
  // can start, early as it may; only what was enqueued later (q, the new tokens' keys and values)
  // is waited for. So cached keys are asked for while the kernels before still run.
  bool prefetch_cached_kv = false;
};

// out = softmax(scale * q k^T, causal) v, for each entry by itself.
Status attention(const AttentionArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
