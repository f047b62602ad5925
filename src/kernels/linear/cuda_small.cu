// y = x W^T for 1 to 16 rows on Hopper: a stream of the weights through the tensor cores.
//
// Bytes: the weights, 2 x out x in; all else is small. At 4.5 TB/s a layer of the Llama-3.1-8B
// shape is qkv 11.1, o 7.4, gate and up 51.7, down 25.8 us, the head 231 us. Operations: 2 x rows x
// out x in, at 16 rows 16 a byte, a twelfth of what the tensor cores could do meanwhile.
//
// A tile is 16 outputs (8 of gate and the same 8 of up with SiLU) by all inputs; a block takes one
// tile after another. One warp asks the copy engine for pieces of 16 rows x 512 inputs, as many
// ahead as shared memory holds (80 KiB and more a multiprocessor in flight), and begins before
// wait_for_previous(): the weights are nobody's output. Eight warps multiply, each 64 inputs of a
// piece. The order of a sum is free as long as both sides agree, so a lane's 16-byte reads go
// straight to the tensor cores: in row g (lane / 4) lane t (lane % 4) takes inputs 8t .. 8t+7 of
// 32, and they play k = 2t, 2t+1, 2t+8, 2t+9 of two products of 16.
//
//        inputs of a block of 32:  0-7     8-15    16-23   24-31
//        row g of the weights:     lane 0  lane 1  lane 2  lane 3    (and row g + 8 likewise)
//
// x stays in shared memory. Where it has no room, a cluster of 2 to 8 blocks shares a tile: each
// has a part of the inputs, and they add up each other's sums. Sums of the warps meet in shared
// memory, two buffers by turns, so one barrier a tile. With the same split a row's result depends
// on that row and the weights alone.
//
// Tried before: the same products from registers, 8 x 32 bytes ahead a thread, 64 KiB a
// multiprocessor: 3.2 TB/s (a warp has six scoreboards, so fewer loads are really in flight).
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/linear/cuda_small.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kWarps = 8;  // that multiply
constexpr int kMathThreads = kWarps * 32;
constexpr int kThreads = kMathThreads + 32;
constexpr int kTile = 16;                 // outputs of a tile, as the tensor cores see it
constexpr int kPiece = 512;               // inputs of a piece
constexpr int kPiecePitch = kPiece + 32;  // rows of a piece start half a line apart
constexpr int kPieceBytes = kTile * kPiecePitch * 2;
constexpr int kMostPieces = 8, kFewPieces = 4;  // ahead

struct Params {
  const bf16* x;
  int64_t x_stride;
  const bf16* weights;
  void* y;
  int64_t y_stride;
  const bf16* bias;
  const bf16* residual;
  const bf16* norm_weight;
  float norm_epsilon;
  int rows, in, out, num_tiles;
  int x_pitch;  // of x in shared memory, elements
  int pieces_ahead;
  int split;  // blocks of a cluster, which share the inputs
  bool float_out;
};

struct Barriers {
  Barrier full[kMostPieces], empty[kMostPieces];
  Barrier summed[2];  // all blocks of the cluster have their sums of a tile
};

// Shared memory: pieces, sums [2][warp][output][row], x [rows][x_pitch], barriers.
template <int ROW_TILES>
struct Shared {
  static constexpr int kRows = 8 * ROW_TILES;
  static constexpr int kSums = kWarps * kTile * kRows;
  bf16* pieces;
  float* sums;
  bf16* x;
  Barriers* barriers;
  float (*scratch)[kWarps];  // [rows], over sums, before them

  __device__ Shared(char* at, const Params& p) {
    pieces = reinterpret_cast<bf16*>(at);
    at += p.pieces_ahead * kPieceBytes;
    sums = reinterpret_cast<float*>(at);
    scratch = reinterpret_cast<float(*)[kWarps]>(at);
    at += 2 * kSums * 4;
    x = reinterpret_cast<bf16*>(at);
    at += p.rows * p.x_pitch * 2;
    barriers = reinterpret_cast<Barriers*>(at);
  }
};

// This block's part of the inputs, in pieces, and its tiles.
struct Part {
  int piece_begin, piece_end, tile_begin, tile_stride;

  __device__ Part(const Params& p, uint32_t rank) {
    const int pieces = (p.in + kPiece - 1) / kPiece;
    const int r = static_cast<int>(rank);
    piece_begin = pieces * r / p.split;
    piece_end = pieces * (r + 1) / p.split;
    tile_begin = static_cast<int>(blockIdx.x) / p.split;
    tile_stride = static_cast<int>(gridDim.x) / p.split;
  }
};

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Row `row` of a tile as a row of the weights; -1 where there is none.
template <bool SILU>
__device__ __forceinline__ int weight_row(const Params& p, int tile, int row) {
  if (!SILU) return tile * kTile + row < p.out ? tile * kTile + row : -1;
  const int out = tile * 8 + row % 8;
  return row < 8 ? out : p.out + out;
}

// The warp that asks for the weights.
template <int ROW_TILES, bool SILU>
__device__ void fetch_weights(const Params& p, const Shared<ROW_TILES>& shared, const Part& part) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int slot = 0;
  uint32_t parity = 1;  // a fresh barrier's phase before the first counts as complete
  for (int tile = part.tile_begin; tile < p.num_tiles; tile += part.tile_stride) {
    const int row = lane < kTile ? weight_row<SILU>(p, tile, lane) : -1;
    const int known = __popc(__ballot_sync(~0u, row >= 0));
    const bf16* from = p.weights + static_cast<int64_t>(row) * p.in;
    for (int piece = part.piece_begin; piece < part.piece_end; ++piece) {
      const uint32_t bytes = static_cast<uint32_t>(min(kPiece, p.in - piece * kPiece)) * 2;
      Barrier& full = shared.barriers->full[slot];
      barrier_wait(shared.barriers->empty[slot], parity);
      if (lane == 0) barrier_expect(full, bytes * static_cast<uint32_t>(known));
      __syncwarp();
      if (row >= 0)
        bulk_copy(shared.pieces + slot * (kPieceBytes / 2) + lane * kPiecePitch,
                  from + piece * kPiece, bytes, full);
      if (++slot == p.pieces_ahead) slot = 0, parity ^= 1;
    }
  }
}

// This block's part of x into shared memory as it is, or normed as rms_norm() does it (rounded to
// bfloat16). A norm's sum is over all inputs.
template <int ROW_TILES>
__device__ void stage_rows(const Params& p, const Shared<ROW_TILES>& shared, const Part& part) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int begin = part.piece_begin * kPiece / 8;
  const int end = min(part.piece_end * kPiece, p.in) / 8;
  const bool norm = p.norm_weight != nullptr;
  const int from = norm ? 0 : begin, to = norm ? p.in / 8 : end;
  for (int row = 0; row < p.rows; ++row) {
    float sum = 0;
    for (int c = from + static_cast<int>(threadIdx.x); c < to; c += kMathThreads) {
      const uint4 raw = *reinterpret_cast<const uint4*>(p.x + row * p.x_stride + c * 8);
      if (c >= begin && c < end)
        *reinterpret_cast<uint4*>(shared.x + row * p.x_pitch + (c - begin) * 8) = raw;
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (uint32_t word : words)
        sum += low_half(word) * low_half(word) + high_half(word) * high_half(word);
    }
    if (!norm) continue;
    sum = warp_sum(sum);
    if (lane == 0) shared.scratch[row][warp] = sum;
  }
  part_sync(1, kMathThreads);
  if (!norm) return;
  for (int row = 0; row < p.rows; ++row) {
    const float sum = warp_sum(lane < kWarps ? shared.scratch[row][lane] : 0.0f);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(p.in) + p.norm_epsilon);
    for (int c = begin + static_cast<int>(threadIdx.x); c < end; c += kMathThreads) {
      float value[8], weight[8];
      bf16* at = shared.x + row * p.x_pitch + (c - begin) * 8;
      load8(at, value);
      load8(p.norm_weight + c * 8, weight);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = value[i] * scale * weight[i];
      store8(at, value);
    }
  }
  part_sync(1, kMathThreads);
}

__device__ __forceinline__ void write_out(const Params& p, int row, int out, float value) {
  const int64_t at = row * p.y_stride + out;
  if (p.residual != nullptr) value += __bfloat162float(p.residual[at]);
  if (p.float_out)
    static_cast<float*>(p.y)[at] = value;
  else
    static_cast<bf16*>(p.y)[at] = __float2bfloat16_rn(value);
}

// Sums of a tile, [warp][output][row] in each block of the cluster, become outputs: this block's
// share of them. `turn` moves the work from warp to warp.
template <int ROW_TILES, bool SILU>
__device__ __forceinline__ void finish_tile(const Params& p, const float* sums, int tile,
                                            uint32_t rank, int turn) {
  constexpr int kRows = 8 * ROW_TILES;
  constexpr int kOutputs = SILU ? 8 : 16;
  const int first = (static_cast<int>(threadIdx.x) + turn * 32) % kMathThreads;
  for (int i = first * p.split + static_cast<int>(rank); i < kOutputs * p.rows;
       i += kMathThreads * p.split) {
    const int output = i % kOutputs, row = i / kOutputs, out = tile * kOutputs + output;
    if (out >= p.out) continue;
    float value = 0, up = 0;
    for (int r = 0; r < p.split; ++r) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float* at = sums + (w * kTile + output) * kRows + row;
        if (p.split == 1) {
          value += at[0];
          if (SILU) up += at[8 * kRows];
        } else {
          value += cluster_load(at, static_cast<uint32_t>(r));
          if (SILU) up += cluster_load(at + 8 * kRows, static_cast<uint32_t>(r));
        }
      }
    }
    if (p.bias != nullptr) {
      value += __bfloat162float(p.bias[out]);
      if (SILU) up += __bfloat162float(p.bias[p.out + out]);
    }
    write_out(p, row, out, SILU ? silu(value) * up : value);
  }
}

// One warp's 64 inputs of a piece.
template <int ROW_TILES>
__device__ __forceinline__ void multiply_piece(const Params& p, const bf16* piece, const bf16* x,
                                               int k_left, float (&acc)[ROW_TILES][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = t * 8; k < 64; k += 32) {
    uint4 top{}, bottom{}, xs[ROW_TILES] = {};
    if (k < k_left) {
      top = *reinterpret_cast<const uint4*>(piece + g * kPiecePitch + k);
      bottom = *reinterpret_cast<const uint4*>(piece + (g + 8) * kPiecePitch + k);
#pragma unroll
      for (int r = 0; r < ROW_TILES; ++r)
        if (r * 8 + g < p.rows)
          xs[r] = *reinterpret_cast<const uint4*>(x + (r * 8 + g) * p.x_pitch + k);
    }
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
      mma(acc[r], top.x, bottom.x, top.y, bottom.y, xs[r].x, xs[r].y);
      mma(acc[r], top.z, bottom.z, top.w, bottom.w, xs[r].z, xs[r].w);
    }
  }
}

// The warps that multiply.
template <int ROW_TILES, bool SILU>
__device__ void multiply(const Params& p, const Shared<ROW_TILES>& shared, const Part& part,
                         uint32_t rank) {
  constexpr int kRows = Shared<ROW_TILES>::kRows, kSums = Shared<ROW_TILES>::kSums;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  int slot = 0, turn = 0;
  uint32_t parity = 0;
  for (int tile = part.tile_begin; tile < p.num_tiles; tile += part.tile_stride, ++turn) {
    float acc[ROW_TILES][4] = {};
    for (int piece = part.piece_begin; piece < part.piece_end; ++piece) {
      barrier_wait(shared.barriers->full[slot], parity);
      multiply_piece<ROW_TILES>(p, shared.pieces + slot * (kPieceBytes / 2) + warp * 64,
                                shared.x + (piece - part.piece_begin) * kPiece + warp * 64,
                                p.in - piece * kPiece - warp * 64, acc);
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.barriers->empty[slot]);
      if (++slot == p.pieces_ahead) slot = 0, parity ^= 1;
    }
    float* sums = shared.sums + turn % 2 * kSums;
    float* mine = sums + warp * kTile * kRows;
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
      const int row = r * 8 + 2 * t;
      *reinterpret_cast<float2*>(mine + g * kRows + row) = make_float2(acc[r][0], acc[r][1]);
      *reinterpret_cast<float2*>(mine + (g + 8) * kRows + row) = make_float2(acc[r][2], acc[r][3]);
    }
    if (p.split == 1) {
      part_sync(1, kMathThreads);
    } else {
      __syncwarp();
      if (lane < p.split) barrier_arrive_at(shared.barriers->summed[turn % 2], lane);
      barrier_wait_cluster(shared.barriers->summed[turn % 2], turn / 2 % 2);
    }
    finish_tile<ROW_TILES, SILU>(p, sums, tile, rank, turn);
  }
}

template <int ROW_TILES, bool SILU>
__global__ void __launch_bounds__(kThreads, 2) small_linear_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const Shared<ROW_TILES> shared(raw, p);
  const uint32_t rank = p.split > 1 ? cluster_rank() : 0;
  const Part part(p, rank);
  release_next();
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.pieces_ahead; ++i) {
      barrier_init(shared.barriers->full[i], 1);
      barrier_init(shared.barriers->empty[i], kWarps);
    }
    for (Barrier& summed : shared.barriers->summed) barrier_init(summed, kWarps * p.split);
    barrier_init_done();
  }
  __syncthreads();
  if (p.split > 1) cluster_sync();
  if (threadIdx.x >= kMathThreads) {
    fetch_weights<ROW_TILES, SILU>(p, shared, part);
  } else {
    wait_for_previous();
    stage_rows<ROW_TILES>(p, shared, part);
    multiply<ROW_TILES, SILU>(p, shared, part, rank);
  }
  if (p.split > 1) {  // nobody leaves while another may read his sums
    __syncthreads();
    cluster_sync();
  }
}

// How a product of this shape is laid out; blocks of a cluster 0 where it does not fit at all.
struct Plan {
  int split = 0, pieces_ahead = 0, x_pitch = 0;
  size_t bytes = 0;
};

// With this split in so much shared memory, if that leaves `pieces` ahead.
Plan plan_with(const LinearArgs& args, int split, size_t room, int pieces) {
  const int all_pieces = (args.in_features + kPiece - 1) / kPiece;
  if (split > all_pieces) return {};
  const size_t sums = size_t{2} * kWarps * kTile * (args.rows > 8 ? 16 : 8) * 4;
  Plan plan{.split = split, .x_pitch = (all_pieces + split - 1) / split * kPiece + 32};
  const size_t fixed = sums + static_cast<size_t>(args.rows * plan.x_pitch) * 2 + sizeof(Barriers);
  if (fixed + static_cast<size_t>(pieces) * kPieceBytes > room) return {};
  plan.pieces_ahead = std::min(static_cast<int>((room - fixed) / kPieceBytes), kMostPieces);
  plan.bytes = fixed + static_cast<size_t>(plan.pieces_ahead) * kPieceBytes;
  return plan;
}

Plan plan_for(const LinearArgs& args, const DeviceTraits& traits) {
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  // Best with room for the next kernel's block beside this one; else with many pieces ahead.
  for (const int split : {1, 2})
    if (const Plan plan = plan_with(args, split, most / 2 - 1024, kFewPieces); plan.split > 0)
      return plan;
  for (const int pieces : {6, 2})
    for (const int split : {1, 2, 4, 8})
      if (const Plan plan = plan_with(args, split, most, pieces); plan.split > 0) return plan;
  return {};
}

template <int ROW_TILES, bool SILU>
Status start(const Params& params, int blocks, size_t bytes, const LaunchOptions& launch) {
  const auto kernel = small_linear_kernel<ROW_TILES, SILU>;
  ESP_RETURN_IF_ERROR(allow_shared("linear", kernel, bytes));
  return launch_clusters("linear", kernel, dim3(static_cast<unsigned>(blocks)), kThreads, bytes,
                         static_cast<unsigned>(params.split), launch, params);
}

}  // namespace

bool small_linear_takes(const LinearArgs& args, const DeviceTraits& traits) {
  return traits.compute_capability >= 90 && args.type == DType::kBFloat16 &&
         args.rows <= kSmallRows && args.in_features % 8 == 0 && args.out_features % 8 == 0 &&
         args.x_stride % 8 == 0 && aligned(args.x, 16) && aligned(args.weights, 16) &&
         (args.norm_weight == nullptr || aligned(args.norm_weight, 16)) &&
         plan_for(args, traits).split > 0;
}

Status small_linear(const LinearArgs& args, const DeviceTraits& traits,
                    const LaunchOptions& launch) {
  const int outputs = args.silu_mul ? 8 : 16;
  const Plan plan = plan_for(args, traits);
  const Params params{.x = static_cast<const bf16*>(args.x),
                      .x_stride = args.x_stride,
                      .weights = static_cast<const bf16*>(args.weights),
                      .y = args.y,
                      .y_stride = args.y_stride,
                      .bias = static_cast<const bf16*>(args.bias),
                      .residual = static_cast<const bf16*>(args.residual),
                      .norm_weight = static_cast<const bf16*>(args.norm_weight),
                      .norm_epsilon = args.norm_epsilon,
                      .rows = args.rows,
                      .in = args.in_features,
                      .out = args.out_features,
                      .num_tiles = (args.out_features + outputs - 1) / outputs,
                      .x_pitch = plan.x_pitch,
                      .pieces_ahead = plan.pieces_ahead,
                      .split = plan.split,
                      .float_out = args.out_type == DType::kFloat32};
  const int blocks =
      std::min(params.num_tiles, traits.num_multiprocessors / plan.split) * plan.split;
  if (args.rows > 8)
    return args.silu_mul ? start<2, true>(params, blocks, plan.bytes, launch)
                         : start<2, false>(params, blocks, plan.bytes, launch);
  return args.silu_mul ? start<1, true>(params, blocks, plan.bytes, launch)
                       : start<1, false>(params, blocks, plan.bytes, launch);
}

}  // namespace espalier::kernels::cuda
