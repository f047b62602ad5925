// The plan of a step's attention: how its work is divided among blocks, and the layout of the
// workspace. Internal to kernels/attention. Plain data; the workspace belongs to the caller.
//
// Entries whose rows (query tokens x group) fit into one tile of 16 use split KV: all their (entry,
// kv head, block of 16 positions) form one sequence of work items, and block c of a fixed grid
// takes items [c * chunk, (c + 1) * chunk), so the blocks' shares are equal at any skew of lengths.
// An (entry, kv head) that falls to several blocks is merged by the last of them to finish:
//
//   work items:  | entry 0, head 0     | entry 0, head 1     | entry 1 ...
//   blocks:      |    c = 0    |    c = 1    |    c = 2    |
//                              ^ entry 0, head 0 has two partial results: slot 1 of c = 0 and
//                                slot 0 of c = 1
//
// So a block has at most two partial results: of its first span (slot 0) and of its last (slot 1).
#pragma once

// Shared prefix segments (cuda.h) are computed before, by a kernel of their own: each (segment, kv
// head, tile of up to kTileRows rows) has a work item for each kSegmentBlock positions, divided in
// the same way. The first partial result of a tile goes to the rows of its members, the one with
// which a block continues a tile goes to rows of the block. The entries' own partial results then
// take them in.
//
// With shape.fixed_split (attention_deterministic.cu) a work item is an (entry, split, kv head) of
// an entry of one token, in this order, and each has a partial result.
//
// All other entries use tiles of kTileRows rows, each over all its keys.

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention/cuda.h"

namespace espalier::kernels::cuda {

inline constexpr int kDecodeRows = 16;     // rows of a tile of the decode kernel
inline constexpr int kWorkPositions = 16;  // positions of a work item
inline constexpr int kKeyBlock = 64;       // windows and fixed splits begin at multiples of it
inline constexpr int kTileRows = 128;      // rows of a tile of the prefill and cascade kernels
inline constexpr int kMinChunk = 8;        // work items that a block takes at least

inline constexpr int kSegmentBlock = 128;  // positions of a work item of a shared segment

struct PlanHeader {
  int32_t num_work_items = 0;
  int32_t chunk = 0;  // work items of a block
  int32_t num_tiles = 0;
  int32_t cascade_chunk = 1;  // work items of a block of the cascade kernel
  // Counters of attention_prefill_sm90: tiles taken beyond the first of each block, and blocks that
  // are done. Both are 0 between launches.
  int32_t tiles_taken = 0, blocks_done = 0;
  int32_t widened_rows = 0;
};

// Where a block of the decode kernel begins: everything it must know, in one read.
struct alignas(16) DecodeStart {
  int32_t work = 0, work_end = 0, chunk = 0;
  int32_t entry = 0, entry_work = 0;  // the entry's first work item
  int32_t blocks = 0;                 // work items of a kv head of the entry
  int32_t query_begin = 0, tokens = 0, prefix_len = 0, page_begin = 0;
  int32_t own_begin = 0;  // positions before it lie in shared segments
};

// Where a block of the cascade kernel begins.
struct CascadeStart {
  int32_t work = 0, work_end = 0;
  int32_t segment = 0, segment_work = 0;  // the segment's first work item
};

// Where an entry finds the partial results of one of its shared segments.
struct EntrySegment {
  int32_t blocks = 0;         // work items of a tile; 0: the entry has no more segments
  int32_t work = 0;           // its tile's first work item, for kv head 0
  int32_t work_per_head = 0;  // to the next head's tile
  int32_t tile_row = 0;       // its first row in the tile
  int32_t member = 0;         // in SharedSegments::members
  int32_t chunk = 1;          // PlanHeader::cascade_chunk
};

// Device pointers into a workspace.
struct PlanView {
  PlanHeader* header = nullptr;
  DecodeStart* starts = nullptr;  // [blocks]
  int32_t* work_begin = nullptr;  // [num_entries + 1]: prefix sums of work items
  int32_t* tile_begin = nullptr;  // [num_entries + 1]: prefix sums of tiles
  int32_t* arrived =
      nullptr;  // [num_entries * kv_heads]: partial results that are done; 0 between launches
  // [2 * blocks][kDecodeRows] rows; with fixed_split [work items][group].
  float* partial_out = nullptr;   // [rows][head_dim]
  float2* partial_sum = nullptr;  // [rows]: largest score, sum (base 2)
  // Of the shared segments; null where the shape has none.
  int32_t* segment_work_begin =
      nullptr;  // [num_entries + 1]: prefix sums of work items over segments
  CascadeStart* cascade_starts = nullptr;  // [cascade_blocks]
  EntrySegment* entry_segments = nullptr;  // [num_entries][kSegmentsPerEntry]
  // [num_entries * kSegmentsPerEntry * heads + cascade_blocks * kTileRows] rows: of members, then
  // of blocks.
  float* segment_out = nullptr;   // [rows][head_dim]
  float2* segment_sum = nullptr;  // [rows]
  int64_t continued_rows = 0;     // the first row of blocks
  int32_t cascade_blocks = 0;
  // Of shapes with widened_positions, else null. Entry i's rows are [widen_begin[i],
  // widen_begin[i + 1]), from the first position that it sees on; none beyond widened_positions.
  int32_t* widen_begin = nullptr;  // [num_entries + 1]: prefix sums of positions
  void* widened_k = nullptr;  // [widened_positions][num_kv_heads][head_dim] bfloat16; widened_v too
  void* widened_v = nullptr;
  size_t bytes = 0;
};
PlanView plan_view(const AttentionShape& shape, int32_t num_entries, const DeviceTraits& traits,
                   void* workspace);

// Blocks of the decode kernel: as many as the GPU holds at once. Of e4m3 a multiprocessor holds
// kCodeBlocks: half the bytes a step leave half the time to hide its latencies.
inline constexpr int kCodeBlocks = 3;
int32_t decode_blocks(const AttentionShape& shape, const DeviceTraits& traits);

// Whether the tensor-core kernels support the shape; other shapes go to attention_generic().
bool tensor_core_shape(const AttentionShape& shape, const DeviceTraits& traits);

// Whether the kernels with Hopper's own instructions (wgmma, TMA) support it.
bool sm90_shape(const AttentionShape& shape, const DeviceTraits& traits);

inline int tokens_per_tile(int group) { return kTileRows / group; }

Status attention_decode(const AttentionArgs& args, const PlanView& plan, int32_t blocks,
                        const LaunchOptions& launch);
Status attention_prefill(const AttentionArgs& args, const PlanView& plan,
                         const LaunchOptions& launch);
// Fills widened_k and widened_v; before attention_prefill_sm90().
Status attention_widen(const AttentionArgs& args, const PlanView& plan, int32_t multiprocessors,
                       const LaunchOptions& launch);
// As attention_prefill(), with Hopper's own instructions, for heads of 64 and 128 on sm_90.
Status attention_prefill_sm90(const AttentionArgs& args, const PlanView& plan,
                              int32_t multiprocessors, const LaunchOptions& launch);
// Attention over the entries' shared segments, into segment_out and segment_sum; runs before
// attention_decode().
Status attention_cascade(const AttentionArgs& args, const PlanView& plan,
                         const LaunchOptions& launch);
// Row-invariant results (shape.fixed_split).
Status attention_deterministic(const AttentionArgs& args, const PlanView& plan,
                               int32_t multiprocessors, const LaunchOptions& launch);
Status attention_generic(const AttentionArgs& args, const LaunchOptions& launch);
// Of tokens with a last_seen alone. REQUIRES: args.last_seen.
Status attention_ahead(const AttentionArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
