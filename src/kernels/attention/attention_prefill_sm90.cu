// Prefill attention on Hopper: the tiles of attention_prefill.cu with wgmma, after FlashAttention 3
// (Shah et al. 2024).
// q [tokens, heads, head_dim], K and V in pages (the new tokens' also as rows), out as q; bfloat16,
// head_dim 64 and 128.
// Parallel: one persistent block on each multiprocessor takes tile after tile of 128 rows, longest
// first, from an atomic counter. Three warp groups: one producer, two consumers of 64 rows each
// that take turns at issuing their matmuls, so that one's softmax overlaps the other's matmuls.
// Pipeline: a ring buffer of three stages each of keys and values, 128 positions a stage
// (kv_pipeline_sm90.cuh); it runs across the ends of tiles, and the next tile's queries are loaded
// as soon as the last scores are done.
// Roof: tensor cores, 2,048 cycles for 128 rows by 128 keys. 617 TFLOP/s at 16,384 tokens, 32 heads
// of 128, on an H200: 96 % of cuDNN. History: docs/notes/attention_prefill_sm90.md.
#include <algorithm>

#include "kernels/attention/online_softmax_sm90.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

struct Tile {
  int entry, kv_head, tokens, query_begin;  // of this tile
  int first_position;                       // of its first token
  int key_begin, key_end;
  int blocks;                // 0: there are no more tiles
  int rows_from, first_row;  // from this position on, keys and values are rows beside the pages
};

// Tile records live as long as a warp may still read them: the tile in the consumers, and those of
// the next two key blocks.
constexpr int kTilesAhead = 4;

template <int DIM>
struct Shared {
  bf16 q[kTileRows * DIM];  // each 64-row half by itself
  KvPipeline<DIM> pipeline;
  Barrier q_full, q_empty;
  Tile tiles[kTilesAhead];
  int taken[2];
};

__device__ Tile tile_at(const AttentionArgs& args, const PlanView& plan, int index, int kv_head) {
  const EntryArrays& entries = args.entries;
  const int per_tile = kTileRows / (args.shape.num_heads / args.shape.num_kv_heads);
  Tile t;
  t.kv_head = kv_head;
  t.entry = bucket_of(plan.tile_begin, entries.num_entries, index);
  const int skipped = (index - plan.tile_begin[t.entry]) * per_tile;
  const int entry_begin = entries.query_begin[t.entry], prefix_len = entries.prefix_len[t.entry];
  t.query_begin = entry_begin + skipped;
  t.tokens = min(per_tile, entries.query_begin[t.entry + 1] - t.query_begin);
  t.first_position = prefix_len + skipped;
  t.key_begin = first_visible(t.first_position, args.shape.sliding_window);
  t.key_end = t.first_position + t.tokens;
  t.blocks = (t.key_end - t.key_begin + kStageKeys - 1) / kStageKeys;
  t.rows_from = kNothingNew;
  if (args.new_keys != nullptr) {
    t.rows_from = prefix_len;
    t.first_row = entry_begin;
  } else if (plan.widen_begin != nullptr &&
             plan.widen_begin[t.entry + 1] <= args.shape.widened_positions) {
    t.rows_from = first_visible(prefix_len, args.shape.sliding_window);
    t.first_row = plan.widen_begin[t.entry];
  }
  return t;
}

// The producer warp group: all its threads walk over the tiles together.
template <int DIM, typename KV>
struct Tiles {
  const AttentionArgs& args;
  const PlanView& plan;
  Shared<DIM>& shared;
  KvProducer<DIM, KV> producer;
  const int all;      // tiles of all kv heads
  int count = 0;      // tiles taken so far
  int following = 0;  // thread 0: the next one, requested for early
  const int32_t* pages = nullptr;
  int block = 0, blocks = 0;  // of the tile that is looked up
  KeyBlock key_block{};
  uint32_t q_parity = 1;

  __device__ Tiles(const AttentionArgs& a, const PlanView& p, const RowMaps& maps, Shared<DIM>& s)
      : args(a),
        plan(p),
        shared(s),
        producer(a.kv, maps, s.pipeline),
        all(p.header->num_tiles * a.shape.num_kv_heads),
        following(static_cast<int>(blockIdx.x)) {}

  // Takes the next tile; false: there are none left. An entry's last tiles have the most keys, so
  // they come first.
  __device__ bool take_tile() {
    if (threadIdx.x == 0) shared.taken[count % 2] = following;
    named_barrier_sync(kProducerBarrier, kWarpGroup);
    const int index = shared.taken[count % 2];
    if (index >= all) return false;
    if (threadIdx.x == 0)
      following = static_cast<int>(gridDim.x) + atomicAdd(&plan.header->tiles_taken, 1);
    const int heads = args.shape.num_kv_heads;
    const Tile tile = tile_at(args, plan, all / heads - 1 - index / heads, index % heads);
    if (threadIdx.x == 0) shared.tiles[count % kTilesAhead] = tile;
    key_block = {.pages = args.entries.page_tables + args.entries.page_begin[tile.entry],
                 .begin = tile.key_begin,
                 .end = tile.key_end,
                 .kv_head = tile.kv_head,
                 .new_begin = tile.rows_from,
                 .new_row = tile.first_row};
    block = 0;
    blocks = tile.blocks;
    ++count;
    return true;
  }

  struct Next : KvProducer<DIM, KV>::Lookup {
    bool exists, first;  // whether there is a block, and whether it is its tile's first
  };
  __device__ Next look_up() {
    Next next{};
    if (block == blocks && !take_tile()) return next;
    static_cast<typename KvProducer<DIM, KV>::Lookup&>(next) = producer.look_up(key_block);
    next.exists = true;
    next.first = block == 0;
    key_block.begin += kStageKeys;
    ++block;
    return next;
  }

  __device__ void wait_for_queries_room() {
    barrier_wait(shared.q_empty, q_parity);
    q_parity ^= 1;
  }

  __device__ void load_queries(int index) {
    constexpr int kVectors = DIM / 8;
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
    named_barrier_sync(kProducerBarrier, kWarpGroup);  // thread 0 has written the tile
    const Tile& tile = shared.tiles[index % kTilesAhead];
    const int rows = tile.tokens * group, query_begin = tile.query_begin;
    const int head = tile.kv_head * group;
    wait_for_queries_room();
#pragma unroll 4
    for (int i = threadIdx.x; i < kTileRows * kVectors; i += kWarpGroup) {
      const int row = i / kVectors, at = i % kVectors * 8;
      const bf16* from = static_cast<const bf16*>(args.q);
      if (row < rows)
        from +=
            (query_begin + row / group) * args.q_stride + int64_t{head + row % group} * DIM + at;
      copy_async(shared.q + row / 64 * 64 * DIM + swizzled(row % 64, at, 64), from, row < rows);
    }
    barrier_arrive_after_copies(shared.q_full);
    if (threadIdx.x == 0) barrier_arrive(shared.q_full);
  }

  __device__ void run() {
    int tile = 0;
    Next now = look_up(), after{};
    if (now.exists) {
      load_queries(tile++);
      auto source = producer.keys(now);
      after = look_up();
      while (now.exists) {
        const auto of_values = source;
        now = after;
        if (now.exists) {
          after = look_up();
          source = producer.keys(now);
        }
        producer.values(of_values);
        if (now.exists && now.first) load_queries(tile++);
      }
    }
    wait_for_queries_room();
    if (threadIdx.x == 0) {
      shared.tiles[tile % kTilesAhead].blocks = 0;
      barrier_arrive(shared.q_full);
      // The last block to finish resets both counters for the next launch.
      if (atomicAdd(&plan.header->blocks_done, 1) == static_cast<int>(gridDim.x) - 1)
        plan.header->tiles_taken = plan.header->blocks_done = 0;
    }
    barrier_arrive(shared.q_full);
  }
};

// Blocks of the tile that need no mask: its first token sees their last key, and its last token
// their first.
__device__ __forceinline__ Blocks blocks_of(const AttentionArgs& args, const Tile& tile) {
  const int window = args.shape.sliding_window;
  const int seen_by_all = tile.first_position + 1 - tile.key_begin;
  const int not_by_last = window <= 0 ? 0 : tile.key_end - window - tile.key_begin;
  return {
      .count = uniform(tile.blocks),
      .whole_begin = uniform(not_by_last <= 0 ? 0 : (not_by_last + kStageKeys - 1) / kStageKeys),
      .whole_end = uniform(seen_by_all / kStageKeys),
      .begin = uniform(tile.key_begin),
      .step = kStageKeys};
}

__device__ __forceinline__ Visible visible_of(const AttentionArgs& args, const Tile& tile,
                                              int half) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup;
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int window = args.shape.sliding_window;
  Visible seen;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = half * 64 + thread / 32 * 16 + i * 8 + thread % 32 / 4;
    const int position = tile.first_position + row / group;
    seen.last[i] = min(position, tile.key_end - 1);
    seen.first[i] = window > 0 ? position - window + 1 : 0;
  }
  return seen;
}

template <int DIM>
__device__ void write(const AttentionArgs& args, const Tile& tile,
                      const Rows<DIM, kStageKeys>& rows, int tile_half) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup, lane = thread % 32;
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = tile_half * 64 + thread / 32 * 16 + half * 8 + lane / 4;
    const float total = quad_sum(rows.sum[half]);
    if (row >= tile.tokens * group) continue;
    const int head = tile.kv_head * group + row % group;
    float factor = 1.0f / total;
    if (args.sinks != nullptr) {
      const float sink = args.sinks[head] * kLog2E, all = fmaxf(rows.largest[half], sink);
      const float left = exp2f(rows.largest[half] - all);
      factor = left / (total * left + exp2f(sink - all));
    }
    bf16* to = static_cast<bf16*>(args.out) + (tile.query_begin + row / group) * args.out_stride +
               int64_t{head} * DIM + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i)
      *reinterpret_cast<uint32_t*>(to + i * 8) =
          pack_bf16(rows.out[i * 4 + half * 2] * factor, rows.out[i * 4 + half * 2 + 1] * factor);
  }
}

// A consumer warp group: its half of each tile's rows.
template <int DIM, bool SOFTCAP>
__device__ void attend(const AttentionArgs& args, Shared<DIM>& shared, int half) {
  uint32_t parity = 0;
  StageSlot slot;
  if (half == 1) named_barrier_arrive(kTurnBarrier, 2 * kWarpGroup);
  for (int index = 0;; ++index) {
    barrier_wait(shared.q_full, parity);
    parity ^= 1;
    const Tile tile = shared.tiles[index % kTilesAhead];
    if (tile.blocks == 0) break;
    fence_async();
    Rows<DIM, kStageKeys> rows;
    rows.template run<true, true, SOFTCAP>(
        args, shared.pipeline, shared.q + half * 64 * DIM, slot, blocks_of(args, tile), 0, half,
        visible_of(args, tile, half), [&] { rows.release(shared.q_empty); });
    write<DIM>(args, tile, rows, half);
  }
  if (half == 0) named_barrier_sync(kTurnBarrier, 2 * kWarpGroup);
}

template <int DIM, bool SOFTCAP, typename KV>
__global__ void __launch_bounds__(kPipelineThreads, 1)
    prefill_sm90_kernel(const AttentionArgs args, const PlanView plan,
                        const __grid_constant__ RowMaps maps) {
  extern __shared__ char raw[];
  auto& shared =
      *reinterpret_cast<Shared<DIM>*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  release_next();
  if (threadIdx.x == 0) {
    barrier_init(shared.q_full, kWarpGroup + 1);
    barrier_init(shared.q_empty, 8);  // consumer warps
    shared.pipeline.init();
  }
  wait_for_previous();
  __syncthreads();
  const int warp_group = uniform(static_cast<int>(threadIdx.x) / kWarpGroup);
  if (warp_group == 0) {
    give_registers<88>();
    Tiles<DIM, KV>(args, plan, maps, shared).run();
  } else {
    take_registers<208>();
    attend<DIM, SOFTCAP>(args, shared, warp_group - 1);
  }
}

RowsBeside rows_beside(const AttentionArgs& args, const PlanView& plan) {
  if (plan.widen_begin == nullptr)
    return {.keys = args.new_keys,
            .values = args.new_values,
            .stride = args.new_kv_stride,
            .count = args.entries.num_tokens};
  return {.keys = plan.widened_k,
          .values = plan.widened_v,
          .stride = int64_t{args.shape.num_kv_heads} * args.shape.head_dim,
          .count = args.shape.widened_positions};
}

template <int DIM, bool SOFTCAP, typename KV>
Status start(const AttentionArgs& args, const PlanView& plan, int32_t multiprocessors,
             const LaunchOptions& launch) {
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int tiles = args.entries.num_tokens / tokens_per_tile(group) + args.entries.num_entries;
  constexpr size_t kBytes = sizeof(Shared<DIM>) + 1024;
  static_assert(kBytes <= 227 * 1024);
  ESP_RETURN_IF_ERROR(allow_shared("attention", prefill_sm90_kernel<DIM, SOFTCAP, KV>, kBytes));
  ESP_ASSIGN_OR_RETURN(const RowMaps maps, row_maps(args.kv, rows_beside(args, plan)));
  const int blocks = std::min(multiprocessors, tiles * args.shape.num_kv_heads);
  return launch_kernel("attention", prefill_sm90_kernel<DIM, SOFTCAP, KV>,
                       dim3(static_cast<unsigned>(blocks)), kPipelineThreads, kBytes, launch, args,
                       plan, maps);
}

}  // namespace

Status attention_prefill_sm90(const AttentionArgs& args, const PlanView& plan,
                              int32_t multiprocessors, const LaunchOptions& launch) {
  const auto go = [&]<int DIM, typename KV>() {
    return args.softcap > 0 ? start<DIM, true, KV>(args, plan, multiprocessors, launch)
                            : start<DIM, false, KV>(args, plan, multiprocessors, launch);
  };
  const auto of = [&]<typename KV>() {
    return args.shape.head_dim == 64 ? go.template operator()<64, KV>()
                                     : go.template operator()<128, KV>();
  };
  return args.shape.kv_e4m3 ? of.template operator()<uint8_t>() : of.template operator()<bf16>();
}

}  // namespace espalier::kernels::cuda
