// The functions that differ between instruction sets: leaf functions that work on one thread, on
// plain pointers. Each file that fills a table is compiled with its own flags, so nothing here may
// have an inline function (a linker could keep the copy of the wrong file).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/block_format.h"

namespace espalier::kernels {

// A unit is a tile of two panels of 16 outputs: what a GEMM computes at a time. See PackedMatrix.
inline constexpr int64_t kUnitOutputs = 32;
// Rows of activations are prepared in groups of this many (the height of an AMX tile).
inline constexpr int64_t kRowGroup = 16;
// How far ahead of its reads a GEMM prefetches quantised weights.
inline constexpr int64_t kPrefetchBytes = 2048;

struct LinearTask {
  const std::byte* weights;  // unit after unit
  size_t unit_bytes;
  int64_t in_features;
  int64_t padded_in;
  int64_t out_features;
  bool gate_up;

  const float* x;    // float32 weights: the activations themselves
  int64_t x_stride;  // in elements
  const void*
      prepared;  // bfloat16 weights: what prepare_bf16 made of them; quantised: prepare_blocks
  int64_t prepared_stride;  // in bytes; quantised weights alone
  int64_t rows;

  float* y;
  int64_t y_stride;
  const float* bias;
  bool accumulate;
};

// Outputs of units [unit_begin, unit_end), all rows. scratch: kLinearScratchBytes of this thread.
using LinearFn = void (*)(const LinearTask& task, int64_t unit_begin, int64_t unit_end,
                          void* scratch);
inline constexpr size_t kLinearScratchBytes = size_t{1} << 20;

// Rounds rows [row_begin, row_end) to bfloat16 in the layout that the linear_bf16 beside it reads.
// prepared: room for rows rounded up to kRowGroup, padded_in columns of prepared_bytes each.
using PrepareFn = void (*)(const float* x, int64_t x_stride, int64_t row_begin, int64_t row_end,
                           int64_t in_features, int64_t padded_in, void* prepared);

// The queries of one entry under some of its key/value heads, over positions [begin, end) of their
// context. Rows are counted by key/value head, then token, then head of the group.
struct AttentionTile {
  const float* q;  // [tokens, kv_heads, group, head_dim], tokens q_stride apart
  int64_t q_stride;
  float* out;  // the same shape
  int64_t out_stride;
  int64_t kv_heads;
  int64_t tokens;
  int64_t group;
  int64_t head_dim;
  int64_t first_position;  // of token 0; the others follow
  int64_t begin, end;      // begin: a multiple of kAttentionBlock; end: at most the last one's + 1

  const void* k;  // the planes, at the first of these heads
  const void* v;
  bool bf16;
  const int32_t* page_table;
  const int64_t* page_offsets;  // in place of page_table, in elements; or null
  int64_t page_size;
  int64_t page_stride;
  int64_t token_stride;
  int64_t head_stride;

  float scale;
  int64_t sliding_window;
  float softcap;
  const float* sinks;  // [kv_heads, group], or null

  // Where the tile is one split of a context that several threads share: the partial result instead
  // of `out`, [rows] records of attention_state(head_dim) floats. Else null.
  float* state;
};
// Largest score, sum of weights, and room that keeps the values behind them aligned.
inline constexpr int64_t kAttentionStateHeader = 16;
// kv_heads * tokens * group at most, unless kv_heads and tokens are 1.
inline constexpr int64_t kAttentionTileRows = 64;

// From this many rows on, quantised weights are multiplied by AMX tiles where the processor has
// them.
inline constexpr int64_t kBlockTileRows = 5;

struct CpuTable {
  LinearFn linear_f32;
  LinearFn linear_bf16;
  PrepareFn prepare_bf16;
  int64_t prepared_bytes;  // an element

  // By BlockFormat. padded_in of prepare_blocks is a multiple of 256; a row takes 3 / 2 padded_in
  // bytes (block_layout.h).
  LinearFn linear_blocks[kNumBlockFormats];
  PrepareFn prepare_blocks;
  // Null, or the function that replaces prepare_blocks from kBlockTileRows rows on; the rows are
  // rounded up to kRowGroup and take as much room.
  PrepareFn prepare_block_tiles = nullptr;

  void (*rms_norm)(const float* x, const float* weight, float epsilon, int64_t dim, float* y);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon,
                     int64_t dim, float* y);
  // up may be null: ones.
  void (*silu_mul)(const float* gate, const float* up, float* y, int64_t count);
  void (*gelu_mul)(const float* gate, const float* up, float* y, int64_t count);
  void (*clamped_swiglu)(const float* gate, const float* up, float limit, float* y, int64_t count);
  void (*add_scaled)(float* y, const float* x, float factor, int64_t count);
  void (*softcap)(float* y, float cap, int64_t count);
  void (*add)(float* y, const float* x, int64_t count);
  void (*scale)(float* y, float factor, int64_t count);
  void (*rope_half)(float* x, const float* cos, const float* sin, int64_t half);
  void (*to_bf16)(const float* from, uint16_t* to, int64_t count);
  void (*from_bf16)(const uint16_t* from, float* to, int64_t count);

  void (*attention)(const AttentionTile& tile, float* scratch);
  int64_t (*attention_state)(int64_t head_dim);  // floats of one row's state
  // Floats of scratch for a tile of `rows` = kv_heads * tokens * group.
  int64_t (*attention_scratch)(int64_t rows, int64_t head_dim);
  // Combines the partial results of one row, first to last, `stride` floats apart, into
  // out[head_dim]. The first one is overwritten. sink: the row's head's, or null.
  void (*attention_combine)(float* states, int64_t stride, int64_t parts, int64_t head_dim,
                            const float* sink, float* out);

  float (*max)(const float* x, int64_t count);                     // NaNs left out; -inf of none
  double (*sum_exp)(const float* x, float offset, int64_t count);  // sum of exp(x - offset)
  // The first index from `begin` on whose value is above `bound`, or count.
  int64_t (*find_above)(const float* x, int64_t begin, int64_t count, float bound);

  // t[r] = scale * x[0, count) a[r]; rows of a `stride` elements apart.
  using LoraShrinkFn = void (*)(const float* x, const void* a, int64_t stride, int64_t count,
                                int64_t ranks, float scale, float* t);
  // y[o] += sum over r of t[r] b[r, o]; rows of b `stride` elements apart.
  using LoraExpandFn = void (*)(const float* t, const void* b, int64_t stride, int64_t ranks,
                                int64_t count, float* y);
  LoraShrinkFn lora_shrink_f32, lora_shrink_bf16;
  LoraExpandFn lora_expand_f32, lora_expand_bf16;
};

// One for each file that CMake compiles for the processor's family.
extern const CpuTable kPlainTable;
extern const CpuTable kNeonTable;
extern const CpuTable kAvx2Table;
extern const CpuTable kAvx512Table;

// What the instruction sets after AVX-512, and after NEON, replace.
extern const LinearFn kLinearBlocksNeonDot[kNumBlockFormats];
extern const LinearFn kLinearAvx512Bf16;
extern const PrepareFn kPrepareAvx512Bf16;
extern const LinearFn kLinearBlocksVnni[kNumBlockFormats];
extern const LinearFn kLinearBlocksAmx[kNumBlockFormats];
extern const PrepareFn kPrepareBlocksAmx;
extern const LinearFn kLinearAmx;
extern const PrepareFn kPrepareAmx;

}  // namespace espalier::kernels
