// Latent attention of prompts on Hopper, keys and values expanded: contract in latent_prefill.h.
// q 128 + 64, k 128 + 64 (the last 64 shared by all heads), v 128 elements a head; bfloat16.
// Parallel: as attention_prefill_sm90.cu; a tile is 128 query tokens of one head, and the heads
// that run at once are few, so that their keys and values stay in L2.
// Pipeline: one thread issues all copies by TMA, two stages each of keys and values.
// Roof: tensor cores, 2,560 cycles for 128 rows by 128 keys.
#include <algorithm>

#include "kernels/attention/latent_prefill.h"
#include "kernels/attention/online_softmax_sm90.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kNope = 128, kRope = 64, kQueryDim = kNope + kRope, kValueDim = 128;
constexpr int kLatent = 512;
constexpr int kHeadsAtOnce = 4;
constexpr int kTilesAhead = 4;  // tile records that may still be read

using LatentRows = Rows<kQueryDim, kStageKeys, kValueDim, 2>;

struct Maps {
  CUtensorMap q_nope, q_rope, keys_values, k_rope;
};

struct Tile {
  int head, tokens, query_begin;  // of this tile
  int first_position;             // of its first token
  int row_begin;                  // of its entry
  int blocks;                     // of keys; 0: there are no more tiles
};

struct Shared {
  bf16 q[kTileRows * kQueryDim];  // each 64-row half by itself
  LatentRows::Pipeline pipeline;
  Barrier q_full, q_empty;
  Tile tiles[kTilesAhead];
};

__device__ int num_tiles(const ExpandedAttentionArgs& args) {
  return args.plan.tile_begin[args.entries.num_entries];
}

// Tile `index` in the order of work: heads in groups, within a group the last tiles, which have the
// most keys, first.
__device__ Tile tile_at(const ExpandedAttentionArgs& args, int index, int tiles, int group) {
  const EntryArrays& entries = args.entries;
  const int in_group = index % (tiles * group), at = tiles - 1 - in_group / group;
  const int entry = bucket_of(args.plan.tile_begin, entries.num_entries, at);
  const int skipped = (at - args.plan.tile_begin[entry]) * kTileRows;
  Tile tile;
  tile.head = index / (tiles * group) * group + in_group % group;
  tile.query_begin = entries.query_begin[entry] + skipped;
  tile.tokens = min(kTileRows, entries.query_begin[entry + 1] - tile.query_begin);
  tile.first_position = entries.prefix_len[entry] + skipped;
  tile.row_begin = args.plan.row_begin[entry];
  tile.blocks = (tile.first_position + tile.tokens + kStageKeys - 1) / kStageKeys;
  return tile;
}

// The thread that issues all copies.
struct Producer {
  const ExpandedAttentionArgs& args;
  const Maps& maps;
  Shared& shared;
  StageSlot keys, values;
  uint32_t q_parity = 1;

  __device__ void load_queries(const Tile& tile) {
    barrier_wait(shared.q_empty, q_parity);
    q_parity ^= 1;
    barrier_expect(shared.q_full, sizeof(shared.q));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bf16* to = shared.q + half * 64 * kQueryDim;
      const int token = tile.query_begin + half * 64;
#pragma unroll
      for (int at = 0; at < kNope; at += 64)
        copy_box(to + at * 64, maps.q_nope, at, tile.head, token, shared.q_full);
      copy_box(to + kNope * 64, maps.q_rope, 0, tile.head, token, shared.q_full);
    }
  }

  __device__ void load_keys(int head, int row) {
    LatentRows::Pipeline& pipeline = shared.pipeline;
    barrier_wait(pipeline.k_empty[keys.stage], keys.parity ^ 1);
    Barrier& full = pipeline.k_full[keys.stage];
    bf16* to = pipeline.k[keys.stage];
    barrier_expect(full, sizeof(pipeline.k[0]));
#pragma unroll
    for (int at = 0; at < kNope; at += 64)
      copy_box(to + at * kStageKeys, maps.keys_values, at, head, row, full);
    copy_box(to + kNope * kStageKeys, maps.k_rope, 0, row, full);
    keys.advance<2>();
  }

  __device__ void load_values(int head, int row) {
    LatentRows::Pipeline& pipeline = shared.pipeline;
    barrier_wait(pipeline.v_empty[values.stage], values.parity ^ 1);
    Barrier& full = pipeline.v_full[values.stage];
    barrier_expect(full, sizeof(pipeline.v[0]));
#pragma unroll
    for (int at = 0; at < kValueDim; at += 64)
      copy_box(pipeline.v[values.stage] + at * kStageKeys, maps.keys_values, kNope + at, head, row,
               full);
    values.advance<2>();
  }

  // Keys go one block ahead of their values: keys 0, keys 1, values 0, keys 2 ...
  __device__ void run() {
    const int tiles = num_tiles(args), all = tiles * args.num_heads;
    const int group = args.num_heads % kHeadsAtOnce == 0 ? kHeadsAtOnce : 1;
    int count = 0, head_before = 0, row_before = -1;
    for (int index = static_cast<int>(blockIdx.x); index < all; ++count) {
      const Tile tile = tile_at(args, index, tiles, group);
      index = static_cast<int>(gridDim.x) + atomicAdd(args.plan.counters, 1);
      shared.tiles[count % kTilesAhead] = tile;
      for (int block = 0; block < tile.blocks; ++block) {
        const int row = tile.row_begin + block * kStageKeys;
        load_keys(tile.head, row);
        if (row_before >= 0) load_values(head_before, row_before);
        if (block == 0) load_queries(tile);
        head_before = tile.head;
        row_before = row;
      }
    }
    if (row_before >= 0) load_values(head_before, row_before);
    barrier_wait(shared.q_empty, q_parity);
    shared.tiles[count % kTilesAhead].blocks = 0;
    barrier_arrive(shared.q_full);
    // The last block to finish resets both counters for the next launch.
    if (atomicAdd(args.plan.counters + 1, 1) == static_cast<int>(gridDim.x) - 1)
      args.plan.counters[0] = args.plan.counters[1] = 0;
  }
};

__device__ void write(const ExpandedAttentionArgs& args, const Tile& tile, const LatentRows& rows,
                      int tile_half) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup, lane = thread % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = tile_half * 64 + thread / 32 * 16 + half * 8 + lane / 4;
    const float factor = 1.0f / quad_sum(rows.sum[half]);
    if (row >= tile.tokens) continue;
    bf16* to = static_cast<bf16*>(args.out) + (tile.query_begin + row) * args.out_stride +
               int64_t{tile.head} * kValueDim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kValueDim / 8; ++i)
      *reinterpret_cast<uint32_t*>(to + i * 8) =
          pack_bf16(rows.out[i * 4 + half * 2] * factor, rows.out[i * 4 + half * 2 + 1] * factor);
  }
}

// A consumer warp group: its half of each tile's rows.
__device__ void attend(const ExpandedAttentionArgs& args, Shared& shared, int half) {
  AttentionArgs of_softmax;
  of_softmax.scale = args.scale;
  const int row = half * 64 + static_cast<int>(threadIdx.x) % kWarpGroup / 32 * 16 +
                  static_cast<int>(threadIdx.x) % 32 / 4;
  uint32_t parity = 0;
  StageSlot slot;
  if (half == 1) named_barrier_arrive(kTurnBarrier, 2 * kWarpGroup);
  for (int index = 0;; ++index) {
    barrier_wait(shared.q_full, parity);
    parity ^= 1;
    const Tile tile = shared.tiles[index % kTilesAhead];
    if (tile.blocks == 0) break;
    const Blocks blocks{.count = uniform(tile.blocks),
                        .whole_begin = 0,
                        .whole_end = uniform((tile.first_position + 1) / kStageKeys),
                        .begin = 0,
                        .step = kStageKeys};
    const int last = tile.first_position + tile.tokens - 1;
    const Visible seen{
        .first = {0, 0},
        .last = {min(tile.first_position + row, last), min(tile.first_position + row + 8, last)}};
    LatentRows rows;
    rows.run<true, true, false>(of_softmax, shared.pipeline, shared.q + half * 64 * kQueryDim, slot,
                                blocks, 0, half, seen, [&] { rows.release(shared.q_empty); });
    write(args, tile, rows, half);
  }
  if (half == 0) named_barrier_sync(kTurnBarrier, 2 * kWarpGroup);
}

__global__ void __launch_bounds__(kPipelineThreads, 1)
    latent_prefill_sm90_kernel(const __grid_constant__ ExpandedAttentionArgs args,
                               const __grid_constant__ Maps maps) {
  extern __shared__ char raw[];
  auto& shared =
      *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
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
    if (threadIdx.x == 0) Producer{args, maps, shared}.run();
  } else {
    take_registers<208>();
    attend(args, shared, warp_group - 1);
  }
}

// Prefix sums over the entries, by one warp.
__global__ void __launch_bounds__(32)
    plan_kernel(const EntryArrays entries, const ExpandedPlan plan) {
  release_next();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x);
  int rows = 0, tiles = 0;  // before the entries of this round
  for (int first = 0; first < entries.num_entries; first += 32) {
    const int entry = first + lane;
    int row_sum = 0, tile_sum = 0;
    if (entry < entries.num_entries) {
      const int tokens = entries.query_begin[entry + 1] - entries.query_begin[entry];
      row_sum = static_cast<int>(expanded_rows(entries.prefix_len[entry], tokens));
      tile_sum = row_sum == 0 ? 0 : (tokens + kTileRows - 1) / kTileRows;
    }
    const int own_rows = row_sum, own_tiles = tile_sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int more_rows = __shfl_up_sync(~0u, row_sum, step);
      const int more_tiles = __shfl_up_sync(~0u, tile_sum, step);
      if (lane >= step) row_sum += more_rows, tile_sum += more_tiles;
    }
    if (entry < entries.num_entries) {
      plan.row_begin[entry] = rows + row_sum - own_rows;
      plan.tile_begin[entry] = tiles + tile_sum - own_tiles;
    }
    rows += __shfl_sync(~0u, row_sum, 31);
    tiles += __shfl_sync(~0u, tile_sum, 31);
  }
  if (lane != 0) return;
  plan.row_begin[entries.num_entries] = rows;
  plan.tile_begin[entries.num_entries] = tiles;
  plan.counters[0] = plan.counters[1] = 0;
}

constexpr int kGatherWarps = 8;

// One warp a row, 16 bytes a lane.
__global__ void __launch_bounds__(kGatherWarps * 32) gather_kernel(const GatherLatentsArgs args) {
  release_next();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x) * kGatherWarps + static_cast<int>(threadIdx.x) / 32;
  const EntryArrays& entries = args.entries;
  if (row >= args.rows) return;
  const int entry = bucket_of(args.plan.row_begin, entries.num_entries, row);
  const int position = row - args.plan.row_begin[entry];
  const int tokens = entries.query_begin[entry + 1] - entries.query_begin[entry];
  const int vectors = args.kv.head_dim / 8;
  const uint4* from = nullptr;
  if (position < entries.prefix_len[entry] + tokens) {
    const int page = kv_page(args.kv, entries.page_tables + entries.page_begin[entry], position);
    from = reinterpret_cast<const uint4*>(static_cast<const bf16*>(args.kv.k) +
                                          kv_offset(args.kv, page, position, 0));
  }
  uint4* to = static_cast<uint4*>(args.out) + int64_t{row} * vectors;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < vectors; i += 32)
    to[i] = from == nullptr ? make_uint4(0, 0, 0, 0) : from[i];
}

Result<Maps> make_maps(const ExpandedAttentionArgs& args) {
  Maps maps{};
  const auto heads = static_cast<uint64_t>(args.num_heads);
  const auto tokens = static_cast<uint64_t>(args.entries.num_tokens);
  const auto rows = static_cast<uint64_t>(args.rows);
  const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(elements) * 2; };
  constexpr uint64_t kHead = kNope + kValueDim;
  ESP_RETURN_IF_ERROR(
      encode_tensor_map<3>("latent attention", maps.q_nope, args.q_nope, {kNope, heads, tokens},
                           {bytes(args.q_nope_head), bytes(args.q_nope_stride)}, {64, 1, 64}));
  ESP_RETURN_IF_ERROR(
      encode_tensor_map<3>("latent attention", maps.q_rope, args.q_rope, {kRope, heads, tokens},
                           {bytes(args.q_rope_head), bytes(args.q_rope_stride)}, {64, 1, 64}));
  ESP_RETURN_IF_ERROR(encode_tensor_map<3>("latent attention", maps.keys_values, args.keys_values,
                                           {kHead, heads, rows}, {kHead * 2, kHead * heads * 2},
                                           {64, 1, kStageKeys}));
  ESP_RETURN_IF_ERROR(encode_tensor_map<2>("latent attention", maps.k_rope, args.k_rope,
                                           {kRope, rows}, {bytes(args.k_rope_stride)},
                                           {64, kStageKeys}));
  return maps;
}

Status check(const ExpandedAttentionArgs& args) {
  const bool vectors =
      args.q_nope_stride % 8 == 0 && args.q_nope_head % 8 == 0 && args.q_rope_stride % 8 == 0 &&
      args.q_rope_head % 8 == 0 && args.k_rope_stride % 8 == 0 && args.out_stride % 8 == 0 &&
      aligned(args.q_nope, 16) && aligned(args.q_rope, 16) && aligned(args.keys_values, 16) &&
      aligned(args.k_rope, 16) && aligned(args.out, 16);
  if (!vectors)
    return invalid_argument(
        "latent attention: every array must start at 16 bytes, with strides of multiples of 8");
  return {};
}

}  // namespace

Result<bool> expands_latents(const LatentHead& head, int32_t rank, DType type) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  return traits.compute_capability == 90 && type == DType::kBFloat16 && head.nope_dim == kNope &&
         head.rope_dim == kRope && head.value_dim == kValueDim && rank == kLatent &&
         tensor_map_encoder() != nullptr;
}

Status plan_expanded(const EntryArrays& entries, const ExpandedPlan& plan,
                     const LaunchOptions& launch) {
  return launch_kernel("plan of latent attention", plan_kernel, dim3(1), 32, 0, launch, entries,
                       plan);
}

Status gather_latents(const GatherLatentsArgs& args, const LaunchOptions& launch) {
  if (args.rows == 0) return {};
  const int blocks = (args.rows + kGatherWarps - 1) / kGatherWarps;
  return launch_kernel("gathering of latents", gather_kernel, dim3(static_cast<unsigned>(blocks)),
                       kGatherWarps * 32, 0, launch, args);
}

Status attention_expanded(const ExpandedAttentionArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check(args));
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  ESP_ASSIGN_OR_RETURN(const Maps maps, make_maps(args));
  constexpr size_t kBytes = sizeof(Shared) + 1024;
  static_assert(kBytes <= 227 * 1024);
  ESP_RETURN_IF_ERROR(allow_shared("latent attention", latent_prefill_sm90_kernel, kBytes));
  const int tiles = args.entries.num_tokens / kTileRows + args.entries.num_entries;
  const int blocks = std::min(traits.num_multiprocessors, tiles * args.num_heads);
  return launch_kernel("latent attention", latent_prefill_sm90_kernel,
                       dim3(static_cast<unsigned>(blocks)), kPipelineThreads, kBytes, launch, args,
                       maps);
}

}  // namespace espalier::kernels::cuda
