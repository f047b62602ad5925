// Grouped GEMM on Hopper: y = x W^T (+ bias), each expert's rows by its own matrix, with the
// permutation of rows in the loads and the gated activation in the epilogue.
// x [tokens, in] by the plan's pairs (gate and up) or [pairs, in] in the order of slots (down), W
// [experts, out, in], y [pairs, out] or, with an activation, [pairs, out / 2]; bfloat16, or x and W
// e4m3 with scales of rows, by which the epilogue multiplies, or of 128 inputs of a row of x and
// 128 x 128 of W, by which a stage's sums of 128 rows of W are on their way to those of the tile.
// Parallel: persistent clusters of two blocks. A tile is 128 rows by 256 rows of W (with an
// activation 128 of gate and the same 128 of up); two consumer warp groups have 64 rows each. The
// two blocks have two tiles of one expert and the same rows of W, of which each fetches half for
// both (SM-to-SM multicast); an expert's last odd tile is cut along the outputs instead.
// Pipeline: four stages of 128 bytes a row, W (and x in the order of slots) by TMA, gathered rows
// by cp.async; it runs across the ends of tiles.
// Roof: tensor cores from about 100 rows an expert on, below it memory, each chosen expert's matrix
// once. L2 gives 128 rows + 128 rows of W for 128 x 256 sums, 128 operations a byte. History:
// docs/notes/grouped_gemm_sm90.md.
#include <type_traits>

#include "kernels/activation/activation.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tensor_copy.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/quantize_rows.h"
#include "kernels/moe/expert_tiles.cuh"
#include "kernels/moe/grouped_gemm_sm90.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kWarpGroup = 128;           // threads
constexpr int kThreads = 3 * kWarpGroup;  // a producer group, two consumer groups
constexpr int kConsumerWarps = 8;
constexpr int kBlocks = 2;  // of a cluster
constexpr int kTileRows = 128, kHalfOutputs = 128, kGroupRows = 64;
constexpr int kTileOutputs = 2 * kHalfOutputs;  // rows of W of a tile
constexpr int kDepthBytes = 128;                // inputs of a stage: the swizzle's width
constexpr int kStages = 4;
constexpr uint32_t kRowsBytes = kTileRows * kDepthBytes;
constexpr uint32_t kHalfBytes = kHalfOutputs * kDepthBytes;
constexpr uint32_t kStageBytes = kRowsBytes + 2 * kHalfBytes;

// T: of x and W, bf16, uint8_t for codes of e4m3, or BlockCode for those with scales of blocks.
struct BlockCode {
  uint8_t bits;
};
template <typename T>
constexpr bool kIsCodes = sizeof(T) == 1;
template <typename T>
constexpr int kDepth = kDepthBytes / static_cast<int>(sizeof(T));  // inputs of a stage

struct Params {
  const char* x;
  int64_t x_stride_bytes;
  const float* x_scales;       // of codes: [rows of x]
  const float* weight_scales;  // of codes: [groups, out_features]
  int64_t x_scale_stride;      // of blocks: from 128 inputs to the next
  int32_t scale_rows;          // of blocks: of each group
  int32_t scale_stride;        // from one of those to the next
  const int32_t* begins;       // [groups + 1]
  const int32_t* pairs;
  int32_t pairs_per_row;
  const bf16* bias;  // [groups, out_features], or none
  bf16* y;
  int64_t y_stride;
  int32_t groups, in_bytes, out_features;  // in_bytes: of a row of x
  int32_t columns;                         // of y
  int32_t column_tiles;                    // of y's columns
  int32_t steps;                           // stages of a tile
  Activation activation;
  float limit;
};

struct Shared {
  // x [128] and W [256] rows of kDepthBytes, swizzled
  alignas(1024) char stages[kStages][kStageBytes];
  Barrier full[kStages], empty[kStages];
  ExpertTiles experts;
};

// --- what clusters need ---

// Arrives at the barrier that lies at the same place in block `rank` of the cluster. It releases no
// writes (a release to the cluster is a fence of all memory, about a microsecond): what it passes
// on is that wgmma has read a stage.
__device__ __forceinline__ void arrive_in(const Barrier& barrier, int rank) {
  ESP_HOPPER_ASM(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier_address(barrier)),
      "r"(rank)
      : "memory");
}
// Copies a box to the same place in both blocks, whose own barriers count the bytes.
__device__ __forceinline__ void copy_box_to_both(void* to, const CUtensorMap& map, int input,
                                                 int row, int group, Barrier& full) {
  ESP_HOPPER_ASM(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(input), "r"(row), "r"(group), "r"(barrier_address(full)),
      "h"(static_cast<uint16_t>(3))
      : "memory");
}

// --- the division of the work ---

// What a block computes: rows [first, first + rows) of y, the columns of column_tile.
struct Tile {
  int group, first, rows, column_tile;
  bool shares;  // the other block has other rows of the same expert and the same columns
  bool writes;  // false: the columns are the other block's or do not exist
};

// Walks over the tiles of a cluster's block. Items of a pair of tiles stand one behind the other,
// half of the columns with the pair's first tile, half with its second.
class Tiles {
 public:
  __device__ Tiles(const Params& p, const Shared& shared)
      : p_(p),
        shared_(shared),
        rank_(cluster_rank()),
        half_((p.column_tiles + 1) / 2),
        count_(shared.experts.tiles[p.groups] * half_),
        item_(static_cast<int>(blockIdx.x) / kBlocks) {}

  __device__ bool next(Tile& tile) {
    for (; item_ < count_; item_ += static_cast<int>(gridDim.x) / kBlocks) {
      if (!decode(tile)) continue;
      item_ += static_cast<int>(gridDim.x) / kBlocks;
      return true;
    }
    return false;
  }

 private:
  // False: an odd number of column tiles leaves the item empty.
  __device__ bool decode(Tile& tile) const {
    const int unit = item_ / half_, part = item_ % half_;
    tile.group = bucket_of(shared_.experts.tiles, p_.groups, unit);
    const int index = unit - shared_.experts.tiles[tile.group];
    const int tiles = shared_.experts.tiles[tile.group + 1] - shared_.experts.tiles[tile.group];
    tile.shares = (index ^ 1) < tiles;
    const int row_tile = tile.shares ? (index & ~1) + rank_ : index;
    const int column = tile.shares ? (index & 1) * half_ + part : part * kBlocks + rank_;
    tile.writes = column < p_.column_tiles;
    tile.column_tile = min(column, p_.column_tiles - 1);
    tile.first = shared_.experts.begins[tile.group] + row_tile * kTileRows;
    tile.rows = min(kTileRows, shared_.experts.begins[tile.group + 1] - tile.first);
    return tile.writes || !tile.shares;
  }

  const Params& p_;
  const Shared& shared_;
  const int rank_, half_, count_;
  int item_;
};

// --- the producer ---

template <typename T, bool GATED>
struct Producer {
  const Params& p;
  Shared& shared;
  const CUtensorMap& weights_map;
  const CUtensorMap& x_map;
  PipelineState<kStages> pipeline;

  // The first row of W of one half of a tile.
  __device__ int weights_row(const Tile& tile, int half) const {
    if constexpr (GATED) return half * p.columns + tile.column_tile * kHalfOutputs;
    return tile.column_tile * kTileOutputs + half * kHalfOutputs;
  }

  // One thread: this block's share of W and, where rows are not gathered, x.
  __device__ void copy_by_tma(const Tile& tile, int input) {
    char* stage = shared.stages[pipeline.stage];
    Barrier& full = shared.full[pipeline.stage];
    barrier_expect(full, 2 * kHalfBytes + (GATED ? 0 : kRowsBytes));
    if constexpr (!GATED) copy_box(stage, x_map, input, tile.first, full);
    if (tile.shares) {
      const int half = cluster_rank();
      copy_box_to_both(stage + kRowsBytes + half * kHalfBytes, weights_map, input,
                       weights_row(tile, half), tile.group, full);
      return;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      copy_box(stage + kRowsBytes + half * kHalfBytes, weights_map, input, weights_row(tile, half),
               tile.group, full);
  }

  // A thread copies 16 bytes of each of eight rows, 16 rows apart.
  static constexpr int kCopies = 8, kRowStep = 16;

  __device__ void gather(Tile& tile, Tiles& tiles) {
    const int thread = static_cast<int>(threadIdx.x);
    const int part = thread % 8, row0 = thread / 8;
    const uint32_t to = static_cast<uint32_t>(row0 * 128 + (part ^ row0 % 8) * 16);
    while (tiles.next(tile)) {
      uint32_t offsets[kCopies];  // in units of 16 bytes: 32 bits reach 64 GiB
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int row = min(row0 + i * kRowStep, tile.rows - 1);
        const int64_t token = p.pairs[tile.first + row] / p.pairs_per_row;
        offsets[i] = static_cast<uint32_t>(token * p.x_stride_bytes / 16 + part);
      }
      for (int step = 0; step < p.steps; ++step) {
        barrier_wait(shared.empty[pipeline.stage], pipeline.parity ^ 1);
        if (thread == 0) copy_by_tma(tile, step * kDepth<T>);
        const uint32_t stage = shared_address(shared.stages[pipeline.stage]) + to;
        const bool known = step * kDepthBytes + part * 16 < p.in_bytes;
#pragma unroll
        for (int i = 0; i < kCopies; ++i)  // rows that the tile lacks stay what they were
          if (row0 + i * kRowStep < tile.rows)
            copy_async(stage + static_cast<uint32_t>(i * kRowStep * kDepthBytes),
                       p.x + (known ? (uint64_t{offsets[i]} + step * 8) * 16 : 0), known);
        barrier_arrive_after_copies(shared.full[pipeline.stage]);
        pipeline.advance();
      }
    }
  }

  __device__ void run(Tiles& tiles) {
    Tile tile;
    if constexpr (GATED) {
      gather(tile, tiles);
    } else if (threadIdx.x == 0) {
      while (tiles.next(tile)) {
        for (int step = 0; step < p.steps; ++step) {
          barrier_wait(shared.empty[pipeline.stage], pipeline.parity ^ 1);
          copy_by_tma(tile, step * kDepth<T>);
          pipeline.advance();
        }
      }
    }
  }
};

// --- the consumers ---

// Lets the producers of both blocks refill the stage, once all warps of both have called it.
__device__ __forceinline__ void release_stage(Shared& shared, int stage) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();
  if (lane < kBlocks) arrive_in(shared.empty[stage], lane);
}

// The sums of 64 rows by 256 rows of W. A warp group without rows only passes the stages on.
template <typename T, bool GATED>
__device__ void multiply(const Params& p, Shared& shared, PipelineState<kStages>& pipeline,
                         int group, bool has_rows, float (&sums)[kTileOutputs / 2]) {
  int released = -1;  // the stage that the multiplication in flight reads
  for (int step = 0; step < p.steps; ++step) {
    barrier_wait(shared.full[pipeline.stage], pipeline.parity);
    if (has_rows) {
      if constexpr (GATED) fence_async();  // what cp.async wrote becomes visible to wgmma
      const char* x = shared.stages[pipeline.stage] + group * kGroupRows * kDepthBytes;
      const char* w = shared.stages[pipeline.stage] + kRowsBytes;
      pin(sums);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kDepthBytes; i += 32) {
        const uint64_t rows = matrix_descriptor(x + i, 16), matrix = matrix_descriptor(w + i, 16);
        if constexpr (kIsCodes<T>)
          wgmma_e4m3(sums, rows, matrix, step > 0 || i > 0);
        else
          wgmma_scores(sums, rows, matrix, step > 0 || i > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
    }
    if (released >= 0) release_stage(shared, released);
    released = pipeline.stage;
    pipeline.advance();
  }
  wgmma_wait<0>();
  pin(sums);
  release_stage(shared, released);
}

// The scales of one stage: of the lane's two rows of x, and of W's two halves.
struct StageScales {
  float rows[2], halves[2];
};

// Walks over the stages' scales of a tile, of which the next are in flight.
template <bool GATED>
class ScaleWalk {
 public:
  // first_row: of the warp, in the tile.
  __device__ ScaleWalk(const Params& p, const Tile& tile, int first_row) : p_(p) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = tile.first + min(first_row + half * 8 + lane / 4, tile.rows - 1);
      x_[half] = p.x_scales + (GATED ? p.pairs[slot] / p.pairs_per_row : slot);
      const int output = GATED ? half * p.columns + tile.column_tile * kHalfOutputs
                               : tile.column_tile * kTileOutputs + half * kHalfOutputs;
      const int row = min(output / kScaleBlock, p.scale_rows - 1);
      w_[half] = p.weight_scales + (int64_t{tile.group} * p.scale_rows + row) * p.scale_stride;
    }
  }
  __device__ StageScales at(int step) const {
    StageScales out;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      out.rows[half] = x_[half][step * p_.x_scale_stride];
      out.halves[half] = w_[half][step];
    }
    return out;
  }

 private:
  const Params& p_;
  const float *x_[2], *w_[2];
};

// As multiply(), of codes with scales of blocks, of which a stage is one.
template <bool GATED>
__device__ void multiply_blocks(const Params& p, Shared& shared, PipelineState<kStages>& pipeline,
                                const Tile& tile, int group, float (&sums)[kTileOutputs / 2]) {
  constexpr int kHalf = kTileOutputs / 4;  // sums of a half
  const bool has_rows = group * kGroupRows < tile.rows;
  const int warp = static_cast<int>(threadIdx.x) % kWarpGroup / 32;
  const ScaleWalk<GATED> walk(p, tile, has_rows ? group * kGroupRows + warp * 16 : 0);
#pragma unroll
  for (int i = 0; i < 2 * kHalf; ++i) sums[i] = 0;
  StageScales scales = walk.at(0);
  for (int step = 0; step < p.steps; ++step) {
    const StageScales next = walk.at(min(step + 1, p.steps - 1));
    barrier_wait(shared.full[pipeline.stage], pipeline.parity);
    if (has_rows) {
      if constexpr (GATED) fence_async();  // what cp.async wrote becomes visible to wgmma
      const char* x = shared.stages[pipeline.stage] + group * kGroupRows * kDepthBytes;
      const char* w = shared.stages[pipeline.stage] + kRowsBytes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float part[kHalf];
        pin(part);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < kDepthBytes; i += 32)
          wgmma_e4m3(part, matrix_descriptor(x + i, 16),
                     matrix_descriptor(w + half * kHalfBytes + i, 16), i > 0);
        wgmma_commit();
        const float of[2] = {scales.rows[0] * scales.halves[half],
                             scales.rows[1] * scales.halves[half]};
        wgmma_wait<0>();
        pin(part);
#pragma unroll
        for (int i = 0; i < kHalf; ++i) sums[half * kHalf + i] += part[i] * of[i / 2 % 2];
      }
    }
    release_stage(shared, pipeline.stage);
    pipeline.advance();
    scales = next;
  }
}

// Turns four words of each lane of a quad, word j of lane i becoming word i of lane j.
__device__ __forceinline__ void transpose_quad(uint32_t (&words)[4]) {
  const int lane = static_cast<int>(threadIdx.x);
  const bool odd = (lane & 1) != 0, upper = (lane & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? words[i] : words[i + 1], 1);
    (odd ? words[i] : words[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0u, upper ? words[i] : words[i + 2], 2);
    (upper ? words[i] : words[i + 2]) = got;
  }
}

// A lane has two adjacent columns of every eight, in rows lane / 4 and lane / 4 + 8 of its warp's
// 16; it writes all eight of every fourth eight.
template <bool GATED>
struct Writer {
  const Params& p;
  const Tile& tile;
  int first_row;  // of the warp, in the tile
  static constexpr int kEights = (GATED ? kHalfOutputs : kTileOutputs) / 8;

  // Calls apply(output, sums + 4 i) for each two adjacent outputs of the lane, whose sums in its
  // upper and its lower row those four are; output: counted over all groups.
  template <typename Apply>
  __device__ __forceinline__ void for_outputs(const Apply& apply) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int eight = 0; eight < kTileOutputs / 8; ++eight) {
      const int local = tile.column_tile * kEights * 8 + eight % kEights * 8 + lane % 4 * 2;
      if (local >= p.columns) continue;
      apply(int64_t{tile.group} * p.out_features + eight / kEights * p.columns + local, eight * 4);
    }
  }

  // Of codes: the scale of each row of x and of W.
  __device__ void apply_scales(float (&sums)[kTileOutputs / 2]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float of_rows[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = tile.first + min(first_row + half * 8 + lane / 4, tile.rows - 1);
      of_rows[half] = p.x_scales[GATED ? p.pairs[slot] / p.pairs_per_row : slot];
    }
    for_outputs([&](int64_t output, int at) {
      const float2 scales = *reinterpret_cast<const float2*>(p.weight_scales + output);
      sums[at] *= of_rows[0] * scales.x, sums[at + 1] *= of_rows[0] * scales.y;
      sums[at + 2] *= of_rows[1] * scales.x, sums[at + 3] *= of_rows[1] * scales.y;
    });
  }

  __device__ void add_bias(float (&sums)[kTileOutputs / 2]) const {
    for_outputs([&](int64_t output, int at) {
      const uint32_t word = *reinterpret_cast<const uint32_t*>(p.bias + output);
      sums[at] += low_half(word), sums[at + 1] += high_half(word);
      sums[at + 2] += low_half(word), sums[at + 3] += high_half(word);
    });
  }

  template <Activation ACTIVATION>
  __device__ __forceinline__ uint32_t word(const float (&sums)[kTileOutputs / 2], int at) const {
    if constexpr (GATED) {
      const int up = kTileOutputs / 4 + at;
      return pack_bf16(activated<ACTIVATION>(sums[at], sums[up], p.limit),
                       activated<ACTIVATION>(sums[at + 1], sums[up + 1], p.limit));
    }
    return pack_bf16(sums[at], sums[at + 1]);
  }

  template <Activation ACTIVATION>
  __device__ void write(const float (&sums)[kTileOutputs / 2]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first_column = tile.column_tile * kEights * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8 + lane / 4;
      bf16* y = p.y + int64_t{tile.first + row} * p.y_stride;
#pragma unroll
      for (int eight = 0; eight < kEights; eight += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = word<ACTIVATION>(sums, (eight + i) * 4 + half * 2);
        transpose_quad(words);
        const int column = first_column + (eight + lane % 4) * 8;
        if (row < tile.rows && column < p.columns)
          *reinterpret_cast<uint4*>(y + column) =
              make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
};

template <typename T, bool GATED>
__device__ void consume(const Params& p, Shared& shared, Tiles& tiles) {
  const int group = static_cast<int>(threadIdx.x) / kWarpGroup - 1;
  const int warp = static_cast<int>(threadIdx.x) % kWarpGroup / 32;
  PipelineState<kStages> pipeline;
  Tile tile;
  float sums[kTileOutputs / 2];
  while (tiles.next(tile)) {
    const bool has_rows = group * kGroupRows < tile.rows;
    if constexpr (std::is_same_v<T, BlockCode>)
      multiply_blocks<GATED>(p, shared, pipeline, tile, group, sums);
    else
      multiply<T, GATED>(p, shared, pipeline, group, has_rows, sums);
    if (!has_rows || !tile.writes) continue;
    const Writer<GATED> writer{p, tile, group * kGroupRows + warp * 16};
    if constexpr (std::is_same_v<T, uint8_t>) writer.apply_scales(sums);
    if (p.bias != nullptr) writer.add_bias(sums);
    if (!GATED || p.activation == Activation::kSilu)
      writer.template write<Activation::kSilu>(sums);
    else if (p.activation == Activation::kGeluTanh)
      writer.template write<Activation::kGeluTanh>(sums);
    else
      writer.template write<Activation::kClampedSwiglu>(sums);
  }
}

template <typename T, bool GATED>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_gemm_sm90_kernel(const __grid_constant__ CUtensorMap weights_map,
                             const __grid_constant__ CUtensorMap x_map, const Params p) {
  extern __shared__ char raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  release_next();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      // The thread that expects TMA's bytes, and those whose copies have landed.
      barrier_init(shared.full[i], GATED ? 1 + kWarpGroup : 1);
      barrier_init(shared.empty[i], kBlocks * kConsumerWarps);
    }
    barrier_init_done();
  }
  wait_for_previous();
  divide_experts<kTileRows, kThreads>(p.begins, p.groups, shared.experts);
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  Tiles tiles(p, shared);
  if (threadIdx.x < kWarpGroup) {
    give_registers<40>();
    Producer<T, GATED> producer{p, shared, weights_map, x_map, {}};
    producer.run(tiles);
  } else {
    take_registers<232>();
    consume<T, GATED>(p, shared, tiles);
  }
  // The other block still copies to this one and arrives at its barriers.
  cluster_arrive();
  cluster_wait();
}

template <typename T, bool GATED>
Status start(const GroupedArgs& args, const DeviceTraits& traits, const LaunchOptions& launch) {
  constexpr auto kSize = static_cast<uint64_t>(sizeof(T));
  constexpr CUtensorMapDataType kType =
      kIsCodes<T> ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  constexpr auto kBox = static_cast<uint32_t>(kDepth<T>);
  const auto in = static_cast<uint64_t>(args.in_features);
  CUtensorMap weights{}, x{};
  ESP_RETURN_IF_ERROR(encode_tensor_map<3>(
      "grouped linear", weights, args.weights,
      {in, static_cast<uint64_t>(args.out_features), static_cast<uint64_t>(args.num_groups)},
      {in * kSize, static_cast<uint64_t>(args.weights_stride) * kSize}, {kBox, kHalfOutputs, 1},
      kType));
  if (!GATED)
    ESP_RETURN_IF_ERROR(encode_tensor_map<2>(
        "grouped linear", x, args.x, {in, static_cast<uint64_t>(args.num_pairs)},
        {static_cast<uint64_t>(args.x_stride) * kSize}, {kBox, kTileRows}, kType));
  const int32_t columns = GATED ? args.out_features / 2 : args.out_features;
  const int32_t tile_columns = GATED ? kHalfOutputs : kTileOutputs;
  const Params params{.x = static_cast<const char*>(args.x),
                      .x_stride_bytes = args.x_stride * static_cast<int64_t>(kSize),
                      .x_scales = args.x_scales,
                      .weight_scales = args.weight_scales,
                      .x_scale_stride = args.x_scale_stride,
                      .scale_rows = static_cast<int32_t>(scale_blocks(args.out_features)),
                      .scale_stride = static_cast<int32_t>(block_scale_stride(args.in_features)),
                      .begins = args.plan->begins,
                      .pairs = args.plan->pairs,
                      .pairs_per_row = args.pairs_per_row,
                      .bias = static_cast<const bf16*>(args.bias),
                      .y = static_cast<bf16*>(args.y),
                      .y_stride = args.y_stride,
                      .groups = args.num_groups,
                      .in_bytes = args.in_features * static_cast<int32_t>(kSize),
                      .out_features = args.out_features,
                      .columns = columns,
                      .column_tiles = (columns + tile_columns - 1) / tile_columns,
                      .steps = (args.in_features + kDepth<T> - 1) / kDepth<T>,
                      .activation = args.activation.value_or(Activation::kSilu),
                      .limit = args.limit};
  auto* kernel = grouped_gemm_sm90_kernel<T, GATED>;
  constexpr size_t kBytes = sizeof(Shared) + 1024;
  ESP_RETURN_IF_ERROR(allow_shared("grouped linear", kernel, kBytes));
  const auto blocks = static_cast<unsigned>(traits.num_multiprocessors / kBlocks * kBlocks);
  return launch_clusters("grouped linear", kernel, dim3(blocks), kThreads, kBlocks, kBytes, launch,
                         weights, x, params);
}

}  // namespace

bool grouped_gemm_sm90_supports(const GroupedArgs& args, const DeviceTraits& traits) {
  const bool gathers = args.pairs_per_row > 0;
  const bool codes = args.weight_scales != nullptr;
  // Of codes every row has the same order of sums whatever the number of rows.
  return traits.compute_capability == 90 && tensor_map_encoder() != nullptr &&
         args.type == DType::kBFloat16 && args.plan != nullptr && (codes || !args.row_invariant) &&
         gathers == args.activation.has_value() && args.num_groups <= kMaxExperts &&
         args.out_features % (gathers ? 16 : 8) == 0 && args.y_stride % 8 == 0 &&
         (args.in_features | args.x_stride | args.weights_stride) % (codes ? 16 : 8) == 0 &&
         (!args.block_scales || !gathers || args.out_features / 2 % kScaleBlock == 0) &&
         aligned(args.x, 16) && aligned(args.weights, 16) && aligned(args.y, 16) &&
         aligned(args.bias, 4) && aligned(args.weight_scales, 8);
}

Status grouped_gemm_sm90(const GroupedArgs& args, const DeviceTraits& traits,
                         const LaunchOptions& launch) {
  if (args.block_scales)
    return args.activation ? start<BlockCode, true>(args, traits, launch)
                           : start<BlockCode, false>(args, traits, launch);
  if (args.weight_scales != nullptr)
    return args.activation ? start<uint8_t, true>(args, traits, launch)
                           : start<uint8_t, false>(args, traits, launch);
  return args.activation ? start<bf16, true>(args, traits, launch)
                         : start<bf16, false>(args, traits, launch);
}

}  // namespace espalier::kernels::cuda
