// Attention of encoders on Hopper: contract in bidirectional.h. bfloat16, heads of 64, and of 80 to
// 128 that arrive widened with zeros to 128. Parallel: as latent_prefill_sm90.cu, without counters,
// since all tiles have the same work: a persistent block takes every gridDim-th tile of 128 rows of
// one head and sequence. Pipeline: one thread issues all copies by TMA, three stages each of keys
// and values. The tensor maps have sequences as a dimension, so rows behind a sequence's end arrive
// as zeros. Roof: tensor cores, 1,024 cycles for 128 rows by 128 keys of 64 elements; tiles and
// blocks of a sequence are whole, so of 577 rows 81 % of the work counts.
#include <algorithm>

#include "kernels/attention/bidirectional.h"
#include "kernels/attention/online_softmax_sm90.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

struct Maps {
  CUtensorMap q, k, v;
};

__device__ __forceinline__ void copy_rows(void* to, const CUtensorMap& map, int column, int head,
                                          int row, int sequence, Barrier& full) {
  ESP_HOPPER_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(head), "r"(row), "r"(sequence), "r"(barrier_address(full))
      : "memory");
}

template <int DIM>
struct Shared {
  bf16 q[kTileRows * DIM];  // each 64-row half by itself
  KvPipeline<DIM> pipeline;
  Barrier q_full, q_empty;
};

struct Tile {
  int head, sequence, row;  // its first
};

// Tiles of one head and sequence follow each other, so its keys and values stay in L2.
__device__ Tile tile_at(const BidirectionalArgs& args, int index) {
  const int tiles = (args.rows + kTileRows - 1) / kTileRows;
  const int of_head = index / tiles;
  return {.head = of_head % args.num_heads,
          .sequence = of_head / args.num_heads,
          .row = index % tiles * kTileRows};
}
__host__ __device__ int num_tiles(const BidirectionalArgs& args) {
  return (args.rows + kTileRows - 1) / kTileRows * args.num_heads * args.sequences;
}

// The thread that issues all copies.
template <int DIM>
struct Producer {
  const BidirectionalArgs& args;
  const Maps& maps;
  Shared<DIM>& shared;
  StageSlot keys, values;
  uint32_t q_parity = 1;

  __device__ void load_queries(const Tile& tile) {
    barrier_wait(shared.q_empty, q_parity);
    q_parity ^= 1;
    barrier_expect(shared.q_full, sizeof(shared.q));
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int at = 0; at < DIM; at += 64)
        copy_rows(shared.q + half * 64 * DIM + at * 64, maps.q, at, tile.head, tile.row + half * 64,
                  tile.sequence, shared.q_full);
  }

  __device__ void load(const CUtensorMap& map, const Tile& tile, int row, bf16* to, Barrier& full,
                       Barrier& empty, uint32_t parity) {
    barrier_wait(empty, parity ^ 1);
    barrier_expect(full, kStageKeys * DIM * 2);
#pragma unroll
    for (int at = 0; at < DIM; at += 64)
      copy_rows(to + at * kStageKeys, map, at, tile.head, row, tile.sequence, full);
  }
  __device__ void load_keys(const Tile& tile, int row) {
    KvPipeline<DIM>& p = shared.pipeline;
    const int stage = keys.stage;
    load(maps.k, tile, row, p.k[stage], p.k_full[stage], p.k_empty[stage], keys.parity);
    keys.template advance<kStages>();
  }
  __device__ void load_values(const Tile& tile, int row) {
    KvPipeline<DIM>& p = shared.pipeline;
    const int stage = values.stage;
    load(maps.v, tile, row, p.v[stage], p.v_full[stage], p.v_empty[stage], values.parity);
    values.template advance<kStages>();
  }

  // Keys go one block ahead of their values: keys 0, keys 1, values 0, keys 2 ...
  __device__ void run() {
    const int all = num_tiles(args);
    Tile tile_before{};
    int row_before = -1;
    for (int index = static_cast<int>(blockIdx.x); index < all;
         index += static_cast<int>(gridDim.x)) {
      const Tile tile = tile_at(args, index);
      for (int row = 0; row < args.rows; row += kStageKeys) {
        load_keys(tile, row);
        if (row_before >= 0) load_values(tile_before, row_before);
        if (row == 0) load_queries(tile);
        tile_before = tile;
        row_before = row;
      }
    }
    if (row_before >= 0) load_values(tile_before, row_before);
  }
};

template <int DIM>
__device__ void write(const BidirectionalArgs& args, const Tile& tile,
                      const Rows<DIM, kStageKeys>& rows, int tile_half) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup, lane = thread % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = tile.row + tile_half * 64 + thread / 32 * 16 + half * 8 + lane / 4;
    const float factor = 1.0f / quad_sum(rows.sum[half]);
    if (row >= args.rows) continue;
    bf16* to = static_cast<bf16*>(args.out) +
               (int64_t{tile.sequence} * args.rows + row) * args.out_stride +
               int64_t{tile.head} * args.head_dim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i)
      if (i * 8 < args.head_dim)
        *reinterpret_cast<uint32_t*>(to + i * 8) =
            pack_bf16(rows.out[i * 4 + half * 2] * factor, rows.out[i * 4 + half * 2 + 1] * factor);
  }
}

// A consumer warp group: its half of each tile's rows.
template <int DIM>
__device__ void attend(const BidirectionalArgs& args, Shared<DIM>& shared, int half) {
  AttentionArgs of_softmax;
  of_softmax.scale = args.scale;
  const Blocks blocks{.count = uniform((args.rows + kStageKeys - 1) / kStageKeys),
                      .whole_begin = 0,
                      .whole_end = uniform(args.rows / kStageKeys),
                      .begin = 0,
                      .step = kStageKeys};
  const Visible seen{.first = {0, 0}, .last = {args.rows - 1, args.rows - 1}};
  const int all = num_tiles(args);
  uint32_t parity = 0;
  StageSlot slot;
  if (half == 1) named_barrier_arrive(kTurnBarrier, 2 * kWarpGroup);
  for (int index = static_cast<int>(blockIdx.x); index < all;
       index += static_cast<int>(gridDim.x)) {
    barrier_wait(shared.q_full, parity);
    parity ^= 1;
    Rows<DIM, kStageKeys> rows;
    rows.template run<true, true, false>(of_softmax, shared.pipeline, shared.q + half * 64 * DIM,
                                         slot, blocks, 0, half, seen,
                                         [&] { rows.release(shared.q_empty); });
    write<DIM>(args, tile_at(args, index), rows, half);
  }
  if (half == 0) named_barrier_sync(kTurnBarrier, 2 * kWarpGroup);
}

template <int DIM>
__global__ void __launch_bounds__(kPipelineThreads, 1)
    bidirectional_sm90_kernel(const __grid_constant__ BidirectionalArgs args,
                              const __grid_constant__ Maps maps) {
  extern __shared__ char raw[];
  auto& shared =
      *reinterpret_cast<Shared<DIM>*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  release_next();
  if (threadIdx.x == 0) {
    barrier_init(shared.q_full, 1);
    barrier_init(shared.q_empty, 8);  // consumer warps
    for (auto& stage : shared.pipeline.k_copied)
      for (uint8_t& copied : stage) copied = 0;
    for (auto& stage : shared.pipeline.v_copied)
      for (uint8_t& copied : stage) copied = 0;
    shared.pipeline.init(1);
  }
  wait_for_previous();
  __syncthreads();
  const int warp_group = uniform(static_cast<int>(threadIdx.x) / kWarpGroup);
  if (warp_group == 0) {
    give_registers<88>();
    if (threadIdx.x == 0) Producer<DIM>{args, maps, shared}.run();
  } else {
    take_registers<208>();
    attend<DIM>(args, shared, warp_group - 1);
  }
}

// Rows of a head in boxes of `box` rows and 64 elements.
Status make_map(const BidirectionalArgs& args, const void* data, uint32_t box, CUtensorMap& map) {
  const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(elements) * 2; };
  const auto dim = static_cast<uint64_t>(args.head_dim);
  const auto heads = static_cast<uint64_t>(args.num_heads);
  const auto rows = static_cast<uint64_t>(args.rows);
  return encode_tensor_map<4>(
      "attention of encoders", map, data, {dim, heads, rows, static_cast<uint64_t>(args.sequences)},
      {bytes(args.head_dim), bytes(args.stride), bytes(args.stride * args.rows)}, {64, 1, box, 1});
}

template <int DIM>
Status start(const BidirectionalArgs& args, int32_t multiprocessors, const LaunchOptions& launch) {
  Maps maps{};
  ESP_RETURN_IF_ERROR(make_map(args, args.q, 64, maps.q));
  ESP_RETURN_IF_ERROR(make_map(args, args.k, kStageKeys, maps.k));
  ESP_RETURN_IF_ERROR(make_map(args, args.v, kStageKeys, maps.v));
  constexpr size_t kBytes = sizeof(Shared<DIM>) + 1024;
  static_assert(kBytes <= 227 * 1024);
  ESP_RETURN_IF_ERROR(
      allow_shared("attention of encoders", bidirectional_sm90_kernel<DIM>, kBytes));
  const int blocks = std::min(multiprocessors, num_tiles(args));
  return launch_kernel("attention of encoders", bidirectional_sm90_kernel<DIM>,
                       dim3(static_cast<unsigned>(blocks)), kPipelineThreads, kBytes, launch, args,
                       maps);
}

}  // namespace

Status bidirectional_sm90(const BidirectionalArgs& args, int32_t multiprocessors,
                          const LaunchOptions& launch) {
  return args.head_dim == 64 ? start<64>(args, multiprocessors, launch)
                             : start<128>(args, multiprocessors, launch);
}

}  // namespace espalier::kernels::cuda
