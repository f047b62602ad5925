// How a step's attention is cut up, and where that lies in the workspace. Inside kernels/attention.
//
// Entries whose rows (query tokens x group) fit into one tile of 16 go by split KV: all their
// (entry, kv head, block of 16 positions) stand in one line of units, and block c of a fixed grid
// takes units [c * chunk, (c + 1) * chunk), so the parts are equal at any skew. A (entry, kv head)
// that falls to several blocks is put together by the last of them to finish:
//
//    units:   | entry 0, head 0     | entry 0, head 1     | entry 1 ...
//    blocks:  |    c = 0    |    c = 1    |    c = 2    |
//                           ^ entry 0, head 0 has two parts: slot 1 of c = 0, slot 0 of c = 1
//
// So a block has at most two parts that are not whole: its first (slot 0) and its last (slot 1).
// Runs that entries share (cuda.h) go before, by a kernel of their own: each (run, kv head, tile of
// up to kTileRows rows) has a unit for each kSharedBlock positions, cut up in the same way. An
// item's first part goes to the rows of its members, the part with which a block continues an item
// to rows of the block. The entries' own parts then take them in.
//
// With shape.fixed_split (cuda_fixed.cu) a unit is a (entry, split, kv head) of an entry of one
// token, in this order, and each has a part.
//
// All other entries go by tiles of kTileRows rows, each over all its keys.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention/cuda.h"

namespace espalier::kernels::cuda {

inline constexpr int kSplitRows = 16;   // rows of a tile of the split kernel
inline constexpr int kSplitUnit = 16;   // positions of a unit
inline constexpr int kSplitBlock = 64;  // windows and fixed splits begin at multiples of it
inline constexpr int kTileRows = 128;   // rows of a tile of the other
inline constexpr int kMinChunk = 8;     // units that a block takes at least

inline constexpr int kSharedBlock = 128;  // positions of a unit of a shared run

struct PlanHeader {
  int32_t num_units = 0;
  int32_t chunk = 0;  // units of a block
  int32_t num_tiles = 0;
  int32_t shared_chunk = 1;  // units of a block of the shared runs' kernel
  // Of the tiles' blocks: how often one took another tile, and how many are done with it. 0 between
  // launches.
  int32_t tiles_taken = 0, blocks_done = 0;
};

// Where a block of the split kernel begins: all it must know in one read.
struct alignas(16) SplitStart {
  int32_t unit = 0, unit_end = 0, chunk = 0;
  int32_t entry = 0, entry_unit = 0;  // the entry's first unit
  int32_t blocks = 0;                 // units of a kv head of the entry
  int32_t query_begin = 0, tokens = 0, prefix_len = 0, page_begin = 0;
  int32_t own_begin = 0;  // positions before it are in shared runs
};

// Where a block of the shared runs' kernel begins.
struct SharedStart {
  int32_t unit = 0, unit_end = 0;
  int32_t run = 0, run_unit = 0;  // the run's first unit
};

// Where an entry finds what a shared run gave for it.
struct EntrySegment {
  int32_t blocks = 0;          // of an item; 0: the entry has no more runs
  int32_t unit = 0;            // its item's first one, for kv head 0
  int32_t units_per_head = 0;  // to the next head's item
  int32_t tile_row = 0;        // its first row in the tile
  int32_t member = 0;          // in SharedSegments::members
  int32_t chunk = 1;           // PlanHeader::shared_chunk
};

// Device pointers into a workspace.
struct PlanView {
  PlanHeader* header = nullptr;
  SplitStart* starts = nullptr;   // [blocks]
  int32_t* unit_begin = nullptr;  // [num_entries + 1]: prefix sums of units
  int32_t* tile_begin = nullptr;  // [num_entries + 1]: prefix sums of tiles
  int32_t* arrived = nullptr;  // [num_entries * kv_heads]: parts that are done; 0 between launches
  // [2 * blocks][kSplitRows] rows; with fixed_split [units][group].
  float* part_out = nullptr;   // [rows][head_dim]
  float2* part_sum = nullptr;  // [rows]: largest score, sum (base 2)
  // Of the shared runs; null where the shape has none.
  int32_t* run_unit_begin = nullptr;       // [num_entries + 1]: prefix sums of units over runs
  SharedStart* shared_starts = nullptr;    // [shared_blocks]
  EntrySegment* entry_segments = nullptr;  // [num_entries][kSegmentsPerEntry]
  // [num_entries * kSegmentsPerEntry * heads + shared_blocks * kTileRows] rows: of members, then of
  // blocks.
  float* shared_out = nullptr;   // [rows][head_dim]
  float2* shared_sum = nullptr;  // [rows]
  int64_t continued_rows = 0;    // the first row of blocks
  int32_t shared_blocks = 0;
  size_t bytes = 0;
};
PlanView plan_view(const AttentionShape& shape, int32_t num_entries, const DeviceTraits& traits,
                   void* workspace);

// Blocks of the split kernel: as many as the GPU holds at once.
int32_t split_blocks(const AttentionShape& shape, const DeviceTraits& traits);

// Whether the tensor cores' kernels know the shape; the rest goes to attention_any().
bool fast_shape(const AttentionShape& shape, const DeviceTraits& traits);

// Whether the kernels with Hopper's own instructions know it.
bool hopper_shape(const AttentionShape& shape, const DeviceTraits& traits);

inline int tokens_per_tile(int group) { return kTileRows / group; }

Status attention_split(const AttentionArgs& args, const PlanView& plan, int32_t blocks,
                       const LaunchOptions& launch);
Status attention_tiles(const AttentionArgs& args, const PlanView& plan,
                       const LaunchOptions& launch);
// The same tiles with Hopper's own instructions, for heads of 64 and 128 on sm_90.
Status attention_hopper(const AttentionArgs& args, const PlanView& plan, int32_t multiprocessors,
                        const LaunchOptions& launch);
// What entries share, into the plan's shared_out and shared_sum; before attention_split().
Status attention_shared(const AttentionArgs& args, const PlanView& plan,
                        const LaunchOptions& launch);
// Rows that depend on themselves alone (shape.fixed_split).
Status attention_fixed(const AttentionArgs& args, const PlanView& plan, int32_t multiprocessors,
                       const LaunchOptions& launch);
Status attention_any(const AttentionArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
