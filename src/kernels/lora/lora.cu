// Low-rank additions to a GEMM's result, for rows with adapters of their own: shrink (x A^T into a
// workspace of float32) and expand (y += scale t B^T); bfloat16 by mma.sync, float32 by FMA.
// Parallel: a block takes a tile of up to 16 rows of one adapter; in shrink a chunk of the inputs
// (its four warps divide it) and one part of a fused matrix, in expand 256 outputs. Tiles are
// walked in strides of the grid, for their number is on the device alone.
// Order of sums: chunks depend on in_features alone and are added from the first to the last, be it
// in expand (few rows, a block for each chunk) or in shrink (many rows, one block for all). Expand
// splits t into two bfloat16, so t is not rounded.
// Pipeline: factors are fetched before wait_for_previous(), everything else after; shrink loads
// those of the next slice while one is multiplied, expand copies those of three tiles ahead.
// Roof: the factors' bytes where each row has its own adapter, else launches and the reading and
// writing of y. History: docs/notes/lora.md.
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/lora/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kLoraThreads = 128, kLoraWarps = kLoraThreads / 32;
constexpr int kSliceColumns = 128;  // inputs that a warp multiplies at a time
constexpr int kExpandColumns = 256, kWarpColumns = kExpandColumns / kLoraWarps;
constexpr int kTileElements = kLoraTileRows * kLoraRankUnit;
// A step of at most this many rows has a block for each chunk, which fills the GPU.
constexpr int32_t kSplitRows = 512;
// Of a grid, at most; blocks walk the tiles beyond.
constexpr int32_t kShrinkBlocks = 16, kExpandBlocks = 8;  // for each multiprocessor

// Inputs of a chunk: a multiple of what the four warps multiply at a time.
constexpr int32_t kChunkColumns = 1024;
constexpr int32_t num_chunks(int32_t in_features) {
  return (in_features + kChunkColumns - 1) / kChunkColumns;
}
constexpr int32_t num_sums(int32_t in_features, int32_t max_rows) {
  return max_rows <= kSplitRows ? num_chunks(in_features) : 1;
}

// The workspace: [part, sum, row, rank_max] float32, rows in the order of tiles. There is one sum
// for each chunk, or one of all.
struct LoraKernelArgs {
  LoraArgs args;
  int32_t sums = 0;
  int32_t chunks_per_sum = 0;

  __device__ float* at(int32_t part, int32_t sum, int32_t row) const {
    return args.workspace +
           ((int64_t{part} * sums + sum) * args.rows.max_rows + row) * args.rank_max;
  }
  __device__ LoraPart part_of(const LoraTile& tile, int32_t part) const {
    return tile.parts[args.matrix.index * kLoraPartsMax + part];
  }
};

// Fragments of 16 rows of a matrix [rows, columns] over kSliceColumns columns. Sums over columns
// have any order, so a lane takes eight neighbours of a row where mma.sync names pairs.
struct SliceFragments {
  uint4 words[kSliceColumns / 32][2];  // of rows lane / 4 and lane / 4 + 8

  // rows: of the lane, null where there is none.
  __device__ __forceinline__ void load(const bf16* const (&rows)[2], int column, int columns) {
#pragma unroll
    for (int i = 0; i < kSliceColumns / 32; ++i) {
      const int at = column + 32 * i + static_cast<int>(threadIdx.x) % 4 * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        words[i][half] = make_uint4(0, 0, 0, 0);
        if (rows[half] != nullptr && at < columns)
          words[i][half] = *reinterpret_cast<const uint4*>(rows[half] + at);
      }
    }
  }
};

__device__ __forceinline__ void multiply(const SliceFragments& x, const SliceFragments& a,
                                         float (&sums)[2][4]) {
#pragma unroll
  for (int i = 0; i < kSliceColumns / 32; ++i) {
    const uint4 top = x.words[i][0], bottom = x.words[i][1];
    const uint32_t first[4] = {top.x, bottom.x, top.y, bottom.y};
    const uint32_t second[4] = {top.z, bottom.z, top.w, bottom.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 factor = a.words[i][half];
      mma(sums[half], first, factor.x, factor.y);
      mma(sums[half], second, factor.z, factor.w);
    }
  }
}

// The block's sum of its warps' [16 rows, 16 ranks], two neighbours of a row for each thread.
__device__ __forceinline__ float2 add_warps(const float (&sums)[2][4],
                                            float (&scratch)[kLoraWarps][kTileElements]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* to = scratch[warp] + lane / 4 * kLoraRankUnit + half * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(to) = make_float2(sums[half][0], sums[half][1]);
    *reinterpret_cast<float2*>(to + 8 * kLoraRankUnit) = make_float2(sums[half][2], sums[half][3]);
  }
  __syncthreads();
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int w = 0; w < kLoraWarps; ++w) {
    const float2 part = *reinterpret_cast<const float2*>(scratch[w] + 2 * threadIdx.x);
    sum.x += part.x, sum.y += part.y;
  }
  __syncthreads();
  return sum;
}

// The sums of one warp over its slices of columns [first, end), the factors of the first one loaded
// before what the kernel in front wrote, those of each other one while the slice before is
// multiplied.
__device__ __forceinline__ void multiply_chunk(const bf16* const (&rows)[2],
                                               const bf16* const (&factors)[2], int first, int end,
                                               float (&sums)[2][4]) {
  constexpr int kStep = kLoraWarps * kSliceColumns;
  SliceFragments factor;
  factor.load(factors, first, end);
  wait_for_previous();
  for (int at = first; at < end; at += kStep) {
    SliceFragments x, next;
    x.load(rows, at, end);
    next.load(factors, at + kStep, end);
    multiply(x, factor, sums);
    factor = next;
  }
}

// Grid: tiles, sums, parts.
__global__ void __launch_bounds__(kLoraThreads)
    lora_shrink_bf16_kernel(const __grid_constant__ LoraKernelArgs p) {
  __shared__ __align__(16) float scratch[kLoraWarps][kTileElements];
  release_next();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int part_index = static_cast<int>(blockIdx.z), sum_index = static_cast<int>(blockIdx.y);
  const int columns = p.args.matrix.in_features;
  const int num_tiles = *p.args.rows.num_tiles;
  for (int i = static_cast<int>(blockIdx.x); i < num_tiles; i += static_cast<int>(gridDim.x)) {
    const LoraTile& tile = p.args.rows.tiles[i];
    const LoraPart part = p.part_of(tile, part_index);
    const auto row_of = [&](int row) -> const bf16* {
      if (row >= tile.num_rows) return nullptr;
      return static_cast<const bf16*>(p.args.x) + tile.rows[row] * p.args.x_stride;
    };
    const bf16* const rows[2] = {row_of(lane / 4), row_of(lane / 4 + 8)};
    for (int rank = 0; rank < part.rank; rank += kLoraRankUnit) {
      const bf16* const a = static_cast<const bf16*>(part.a) + int64_t{rank + lane / 4} * columns;
      const bf16* const factors[2] = {a, a + int64_t{8} * columns};
      float2 total = make_float2(0, 0);
      for (int c = 0; c < p.chunks_per_sum; ++c) {
        const int first = (sum_index * p.chunks_per_sum + c) * kChunkColumns;
        float sums[2][4] = {};
        multiply_chunk(rows, factors, first + warp * kSliceColumns,
                       min(first + kChunkColumns, columns), sums);
        const float2 sum = add_warps(sums, scratch);
        total = c == 0 ? sum : make_float2(total.x + sum.x, total.y + sum.y);
      }
      const int row = static_cast<int>(threadIdx.x) / 8, column = static_cast<int>(threadIdx.x) % 8;
      if (row < tile.num_rows)
        reinterpret_cast<float2*>(p.at(part_index, sum_index, tile.first + row) + rank)[column] =
            total;
    }
  }
  wait_for_previous();
}

// The part of a fused matrix that an expanding block adds to, and the block's first output there.
struct ExpandColumns {
  int part = 0, first = 0;

  __device__ explicit ExpandColumns(const LoraMatrix& matrix) {
    int block = static_cast<int>(blockIdx.y);
    for (;; ++part) {
      const int blocks = (matrix.parts[part].out_features + kExpandColumns - 1) / kExpandColumns;
      if (block < blocks || part + 1 == matrix.part_count) break;
      block -= blocks;
    }
    first = block * kExpandColumns;
  }
};

// scale * (x A^T) of a tile for ranks [rank, rank + 16) to t, by all threads of the block.
__device__ __forceinline__ void gather_sums(const LoraKernelArgs& p, const LoraTile& tile, int part,
                                            int rank, float scale, float (&t)[kTileElements]) {
  const int row = static_cast<int>(threadIdx.x) / 8, column = static_cast<int>(threadIdx.x) % 8;
  float2 total = make_float2(0, 0);
  if (row < tile.num_rows) {
    const float* from = p.at(part, 0, tile.first + row) + rank + 2 * column;
    const int64_t next = int64_t{p.args.rows.max_rows} * p.args.rank_max;
    total = *reinterpret_cast<const float2*>(from);
    for (int sum = 1; sum < p.sums; ++sum) {
      const float2 more = *reinterpret_cast<const float2*>(from + sum * next);
      total.x += more.x, total.y += more.y;
    }
  }
  *reinterpret_cast<float2*>(t + 2 * threadIdx.x) = make_float2(total.x * scale, total.y * scale);
}

// Two bfloat16 whose sum is the value but for 2^-17 of it, of each of two values.
__device__ __forceinline__ void split_pair(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack_bf16(x, y);
  low = pack_bf16(x - low_half(high), y - high_half(high));
}

// The factors of 64 outputs that a warp copies to shared memory, some tiles ahead: a stage has 16
// ranks of a tile. A tile whose adapter has nothing takes a stage too.
struct FactorStages {
  static constexpr int kStages = 4;
  bf16 values[kStages][kWarpColumns * kLoraRankUnit];
};

// What is copied next.
class FactorCopies {
 public:
  __device__ __forceinline__ FactorCopies(const LoraKernelArgs& p, FactorStages& stages,
                                          int part_index, int column, int num_tiles)
      : p_(p),
        stages_(stages),
        part_index_(part_index),
        column_(column),
        num_tiles_(num_tiles),
        tile_(static_cast<int>(blockIdx.x)) {
    find();
  }
  // To this stage, as a group of cp.async, and goes on.
  __device__ __forceinline__ void copy(int stage) {
    constexpr int kVectors = kWarpColumns * kLoraRankUnit / 8 / 32;  // of 16 bytes, for a lane
    const int end = p_.args.matrix.parts[part_index_].out_features;
    if (part_.rank > 0) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int vector = static_cast<int>(threadIdx.x) % 32 + 32 * i;
        const int output = column_ + vector / 2;
        const bf16* from = static_cast<const bf16*>(part_.b) +
                           int64_t{min(output, end - 1)} * part_.rank + rank_ + vector % 2 * 8;
        copy_async(stages_.values[stage] + vector * 8, from, output < end);
      }
    }
    copy_commit();
    rank_ += kLoraRankUnit;
    if (rank_ < part_.rank) return;
    rank_ = 0;
    tile_ += static_cast<int>(gridDim.x);
    find();
  }

 private:
  __device__ __forceinline__ void find() {
    part_.rank = 0;
    if (tile_ < num_tiles_) part_ = p_.part_of(p_.args.rows.tiles[tile_], part_index_);
  }

  const LoraKernelArgs& p_;
  FactorStages& stages_;
  const int part_index_, column_, num_tiles_;
  int tile_ = 0, rank_ = 0;
  LoraPart part_;
};

// Adds t B^T of 16 ranks. Matrix j of the four of a group of 32 outputs has such eight of them that
// a lane's results are eight neighbouring outputs of a row, those of matrix j at 2 j and behind it.
template <int GROUPS>
__device__ __forceinline__ void multiply_factors(const uint32_t (&high)[4],
                                                 const uint32_t (&low)[4], const bf16* factors,
                                                 float (&sums)[GROUPS][4][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4;
#pragma unroll
  for (int g = 0; g < GROUPS; ++g)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int output = 32 * g + row / 2 * 8 + 2 * j + row % 2;
      const uint2 factor =
          *reinterpret_cast<const uint2*>(factors + output * kLoraRankUnit + lane % 4 * 4);
      mma(sums[g][j], high, factor.x, factor.y);
      mma(sums[g][j], low, factor.x, factor.y);
    }
}

// scale * (x A^T) for ranks [rank, rank + 16), as mma.sync's operand in two bfloat16.
__device__ __forceinline__ void load_sums(const LoraKernelArgs& p, const LoraTile& tile,
                                          float scale, int part_index, int rank,
                                          uint32_t (&high)[4], uint32_t (&low)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t next = int64_t{p.args.rows.max_rows} * p.args.rank_max;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    float4 t = make_float4(0, 0, 0, 0);
    if (row < tile.num_rows) {
      const float* from = p.at(part_index, 0, tile.first + row) + rank + lane % 4 * 4;
      t = *reinterpret_cast<const float4*>(from);
#pragma unroll 4
      for (int sum = 1; sum < p.sums; ++sum) {
        const float4 more = *reinterpret_cast<const float4*>(from + sum * next);
        t.x += more.x, t.y += more.y, t.z += more.z, t.w += more.w;
      }
    }
    split_pair(t.x * scale, t.y * scale, high[half], low[half]);
    split_pair(t.z * scale, t.w * scale, high[half + 2], low[half + 2]);
  }
}

// The eight elements of y that a lane adds to, of each of its two rows and of each group of 32
// outputs; loaded before their sums are known.
struct ExpandResult {
  static constexpr int kGroups = kWarpColumns / 32;
  bf16* rows[2];  // null: no such row
  Eight<bf16> before[2][kGroups];

  __device__ __forceinline__ void load(const LoraArgs& args, const LoraTile& tile, int y_column,
                                       int left) {
    const int lane = static_cast<int>(threadIdx.x) % 32, own = lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      rows[half] = nullptr;
      if (row >= tile.num_rows) continue;
      rows[half] = static_cast<bf16*>(args.y) + tile.rows[row] * args.y_stride + y_column + own;
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        if (32 * g + own < left) before[half][g].load(rows[half] + 32 * g);
    }
  }
  __device__ __forceinline__ void add(const float (&sums)[kGroups][4][4], int left) const {
    const int own = static_cast<int>(threadIdx.x) % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (rows[half] == nullptr) continue;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (32 * g + own >= left) continue;
        float values[8];
        before[half][g].unpack(values);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] += sums[g][i / 2][2 * half + i % 2];
        store8(rows[half] + 32 * g, values);
      }
    }
  }
};

__device__ __forceinline__ void multiply_factors(const uint32_t (&high)[4],
                                                 const uint32_t (&low)[4], const uint2& factor,
                                                 float (&sums)[4]) {
  mma(sums, high, factor.x, factor.y);
  mma(sums, low, factor.x, factor.y);
}

// Grid: tiles, blocks of outputs. A warp has 64 outputs and needs no other warp.
__global__ void __launch_bounds__(kLoraThreads, 4)
    lora_expand_bf16_kernel(const __grid_constant__ LoraKernelArgs p) {
  __shared__ __align__(16) FactorStages factors[kLoraWarps];
  constexpr int kStages = FactorStages::kStages;
  release_next();
  const ExpandColumns block(p.args.matrix);
  const LoraMatrix::Part place = p.args.matrix.parts[block.part];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int column = block.first + warp * kWarpColumns, left = place.out_features - column;
  const int num_tiles = left > 0 ? *p.args.rows.num_tiles : 0;
  FactorStages& own = factors[warp];
  FactorCopies copies(p, own, block.part, column, num_tiles);
  for (int stage = 0; stage < kStages - 1; ++stage) copies.copy(stage);
  wait_for_previous();
  int stage = 0;
  for (int i = static_cast<int>(blockIdx.x); i < num_tiles; i += static_cast<int>(gridDim.x)) {
    const LoraTile& tile = p.args.rows.tiles[i];
    const LoraPart part = p.part_of(tile, block.part);
    ExpandResult result;
    result.load(p.args, tile, place.column + column, left);
    float sums[ExpandResult::kGroups][4][4] = {};
    int rank = 0;
    do {
      uint32_t high[4], low[4];
      load_sums(p, tile, part.scale, block.part, rank, high, low);
      copy_wait<kStages - 2>();
      __syncwarp();
      copies.copy((stage + kStages - 1) % kStages);
      multiply_factors(high, low, own.values[stage], sums);
      stage = (stage + 1) % kStages;
      rank += kLoraRankUnit;
    } while (rank < part.rank);
    if (part.rank > 0) result.add(sums, left);
  }
  copy_wait<0>();
  wait_for_previous();
}

// Grid: tiles, sums, parts. A warp has one (row, rank) pair at a time.
__global__ void __launch_bounds__(kLoraThreads)
    lora_shrink_f32_kernel(const __grid_constant__ LoraKernelArgs p) {
  release_next();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int part_index = static_cast<int>(blockIdx.z), sum_index = static_cast<int>(blockIdx.y);
  const int columns = p.args.matrix.in_features;
  const int num_tiles = *p.args.rows.num_tiles;
  for (int i = static_cast<int>(blockIdx.x); i < num_tiles; i += static_cast<int>(gridDim.x)) {
    const LoraTile& tile = p.args.rows.tiles[i];
    const LoraPart part = p.part_of(tile, part_index);
    for (int pair = warp; pair < tile.num_rows * part.rank; pair += kLoraWarps) {
      const int row = pair / part.rank, rank = pair % part.rank;
      const float* x = static_cast<const float*>(p.args.x) + tile.rows[row] * p.args.x_stride;
      const float* a = static_cast<const float*>(part.a) + int64_t{rank} * columns;
      float total = 0;
      for (int c = 0; c < p.chunks_per_sum; ++c) {
        const int first = (sum_index * p.chunks_per_sum + c) * kChunkColumns;
        float sum = 0;
        for (int at = first + lane; at < min(first + kChunkColumns, columns); at += 32)
          sum += x[at] * a[at];
        total += warp_sum(sum);
      }
      if (lane == 0) p.at(part_index, sum_index, tile.first + row)[rank] = total;
    }
  }
}

// Grid: tiles, blocks of outputs.
__global__ void __launch_bounds__(kLoraThreads)
    lora_expand_f32_kernel(const __grid_constant__ LoraKernelArgs p) {
  __shared__ __align__(16) float t[kTileElements];
  release_next();
  wait_for_previous();
  const ExpandColumns block(p.args.matrix);
  const LoraMatrix::Part place = p.args.matrix.parts[block.part];
  const int num_tiles = *p.args.rows.num_tiles;
  for (int i = static_cast<int>(blockIdx.x); i < num_tiles; i += static_cast<int>(gridDim.x)) {
    const LoraTile& tile = p.args.rows.tiles[i];
    const LoraPart part = p.part_of(tile, block.part);
    for (int rank = 0; rank < part.rank; rank += kLoraRankUnit) {
      gather_sums(p, tile, block.part, rank, part.scale, t);
      __syncthreads();
      const int end = min(block.first + kExpandColumns, place.out_features);
      for (int o = block.first + static_cast<int>(threadIdx.x); o < end; o += kLoraThreads) {
        const float* b = static_cast<const float*>(part.b) + int64_t{o} * part.rank + rank;
        for (int row = 0; row < tile.num_rows; ++row) {
          float sum = 0;
          for (int r = 0; r < kLoraRankUnit; ++r) sum += t[row * kLoraRankUnit + r] * b[r];
          static_cast<float*>(p.args.y)[tile.rows[row] * p.args.y_stride + place.column + o] += sum;
        }
      }
      __syncthreads();
    }
  }
}

Status check_lora(const LoraArgs& args) {
  const LoraMatrix& m = args.matrix;
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "lora: F16 is not supported");
  bool fits = m.in_features > 0 && m.in_features % 8 == 0 && m.part_count >= 1 &&
              m.part_count <= kLoraPartsMax && args.rank_max % kLoraRankUnit == 0;
  for (int32_t i = 0; fits && i < m.part_count; ++i)
    fits = m.parts[i].column % 8 == 0 && m.parts[i].out_features > 0 &&
           m.parts[i].out_features % 8 == 0;
  if (!fits)
    return invalid_argument(
        "lora: a matrix of {} inputs in {} parts, rank {}; sizes must be multiples of 8 and the "
        "rank of {}",
        m.in_features, m.part_count, args.rank_max, kLoraRankUnit);
  if (args.type == DType::kBFloat16 && (args.x_stride % 8 != 0 || args.y_stride % 8 != 0 ||
                                        !aligned(args.x, 16) || !aligned(args.y, 16)))
    return invalid_argument("lora: rows of x and y must be 16-byte aligned");
  const int64_t needed = lora_workspace_bytes(m, args.rows.max_rows, args.rank_max);
  if (args.workspace_bytes < needed)
    return invalid_argument("lora: the workspace has {} bytes, but {} are needed",
                            args.workspace_bytes, needed);
  return {};
}

LoraKernelArgs kernel_args(const LoraArgs& args) {
  const int32_t sums = num_sums(args.matrix.in_features, args.rows.max_rows);
  return {.args = args, .sums = sums, .chunks_per_sum = num_chunks(args.matrix.in_features) / sums};
}

// Blocks over tiles, with `others` blocks for each, within so many for each multiprocessor.
Result<unsigned> blocks_of_tiles(const LoraRows& rows, int32_t others, int32_t blocks) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const int32_t most = traits.num_multiprocessors * blocks / others;
  return static_cast<unsigned>(std::clamp(rows.max_tiles, 1, std::max(1, most)));
}

}  // namespace

int64_t lora_workspace_bytes(const LoraMatrix& matrix, int32_t max_rows, int32_t rank_max) {
  const int64_t split_rows = std::min(max_rows, kSplitRows);
  const int64_t rows =
      std::max<int64_t>(max_rows, split_rows * num_sums(matrix.in_features, kSplitRows));
  return matrix.part_count * rows * rank_max * static_cast<int64_t>(sizeof(float));
}

Status lora_shrink(const LoraArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_lora(args));
  if (args.rows.max_tiles == 0) return {};
  const LoraKernelArgs p = kernel_args(args);
  ESP_ASSIGN_OR_RETURN(const unsigned tiles,
                       blocks_of_tiles(args.rows, p.sums * args.matrix.part_count, kShrinkBlocks));
  const dim3 grid(tiles, static_cast<unsigned>(p.sums),
                  static_cast<unsigned>(args.matrix.part_count));
  return launch_kernel(
      "lora_shrink",
      args.type == DType::kBFloat16 ? lora_shrink_bf16_kernel : lora_shrink_f32_kernel, grid,
      kLoraThreads, 0, launch, p);
}

Status lora_expand(const LoraArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_lora(args));
  if (args.rows.max_tiles == 0) return {};
  int32_t blocks = 0;
  for (int32_t i = 0; i < args.matrix.part_count; ++i)
    blocks += (args.matrix.parts[i].out_features + kExpandColumns - 1) / kExpandColumns;
  ESP_ASSIGN_OR_RETURN(const unsigned tiles, blocks_of_tiles(args.rows, blocks, kExpandBlocks));
  return launch_kernel(
      "lora_expand",
      args.type == DType::kBFloat16 ? lora_expand_bf16_kernel : lora_expand_f32_kernel,
      dim3(tiles, static_cast<unsigned>(blocks)), kLoraThreads, 0, launch, kernel_args(args));
}

}  // namespace espalier::kernels::cuda
