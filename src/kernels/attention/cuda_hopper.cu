// Attention of lanes with many rows on Hopper, for heads of 64 and 128: the tiles of cuda_tiles.cu
// with the matrix instruction of a whole warp group, after FlashAttention 3 (Shah et al. 2024).
//
// Operations and bytes as there. Three warp groups: one brings keys and values (page by page, so by
// ordinary asynchronous copies), 128 positions at a time; two multiply, 64 rows each.
// The next block's scores are computed while this block's values are weighted, and the softmax of
// one overlaps the products of the other:
//
//    scores(0); softmax(0)
//    for each block:  start scores(j + 1); start out += weights(j) values(j)
//                     wait for the scores; softmax(j + 1); wait for the values; scale out
//
// The copies of a piece (keys or values of a block) announce themselves when they land, and who
// multiplies makes them visible to the matrix instruction, so the group that brings never waits for
// memory. Keys come a block before their values (keys 0, keys 1, values 0, keys 2 ...).
//
// Measured at 16k tokens, 32 heads of 128: mma.sync tiles 174 TFLOP/s; this with pieces announced
// by the bringing threads, which had to wait for each to land, 409.
#include "kernels/attention/cuda_tile.cuh"
#include "kernels/attention/cuda_wgmma.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kKeys = 128;  // positions of a block
constexpr int kKeyStages = 3, kValueStages = 2;
constexpr int kGroup = 128;  // threads of a warp group
constexpr int kThreads = 3 * kGroup;

template <int DIM>
struct Shared {
  bf16 q[kTileRows * DIM];  // each 64-row half by itself
  bf16 k[kKeyStages][kKeys * DIM];
  bf16 v[kValueStages][kKeys * DIM];
  int64_t offsets[3][kKeys];
  Barrier k_full[kKeyStages], k_empty[kKeyStages], v_full[kValueStages], v_empty[kValueStages];
};

struct Tile {
  int lane, kv_head, tokens, query_begin;  // of this tile
  int first_position;                      // of its first token
  int key_begin, key_end, blocks;
};

__device__ Tile tile_at(const AttentionArgs& args, const PlanView& plan, int index, int kv_head) {
  const LaneArrays& lanes = args.lanes;
  const int per_tile = kTileRows / (args.shape.num_heads / args.shape.num_kv_heads);
  Tile t;
  t.kv_head = kv_head;
  t.lane = lane_with(plan.tile_begin, lanes.num_lanes, index);
  const int skipped = (index - plan.tile_begin[t.lane]) * per_tile;
  t.query_begin = lanes.query_begin[t.lane] + skipped;
  t.tokens = min(per_tile, lanes.query_begin[t.lane + 1] - t.query_begin);
  t.first_position = lanes.prefix_len[t.lane] + skipped;
  t.key_begin = first_seen(t.first_position, args.shape.sliding_window);
  t.key_end = t.first_position + t.tokens;
  t.blocks = (t.key_end - t.key_begin + kKeys - 1) / kKeys;
  return t;
}

// The warp group that brings keys and values.
template <int DIM>
__device__ void bring(const AttentionArgs& args, const Tile& tile, Shared<DIM>& shared) {
  constexpr int kEights = DIM / 8, kRowsAtOnce = kGroup / kEights;
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  const int32_t* pages = args.lanes.page_tables + args.lanes.page_begin[tile.lane];
  const int row0 = thread / kEights, at = thread % kEights * 8;
  const auto position_of = [&](int block) {  // that this thread looks up
    return min(tile.key_begin + block * kKeys + thread, tile.key_end - 1);
  };
  const auto copy = [&](bf16* to, const void* plane, int block) {
    const int begin = tile.key_begin + block * kKeys;
#pragma unroll 4
    for (int row = row0; row < kKeys; row += kRowsAtOnce)
      copy_async(to + swizzled(row, at, kKeys),
                 static_cast<const bf16*>(plane) + shared.offsets[block % 3][row] + at,
                 begin + row < tile.key_end);
  };
  int page = kv_page(args.kv, pages, position_of(0));
  const auto keys = [&](int block) {
    // The buffer was last read for the values of block - 3, a barrier ago.
    shared.offsets[block % 3][thread] = kv_offset(args.kv, page, position_of(block), tile.kv_head);
    part_sync(1, kGroup);
    if (block + 1 < tile.blocks) page = kv_page(args.kv, pages, position_of(block + 1));
    const int stage = block % kKeyStages;
    barrier_wait(shared.k_empty[stage], (block / kKeyStages & 1) ^ 1);
    copy(shared.k[stage], args.kv.k, block);
    barrier_arrive_after_copies(shared.k_full[stage]);
  };
  keys(0);
  for (int block = 0; block < tile.blocks; ++block) {
    if (block + 1 < tile.blocks) keys(block + 1);
    const int stage = block % kValueStages;
    barrier_wait(shared.v_empty[stage], (block / kValueStages & 1) ^ 1);
    copy(shared.v[stage], args.kv.v, block);
    barrier_arrive_after_copies(shared.v_full[stage]);
  }
}

// A warp group that multiplies: 64 rows.
template <int DIM>
struct Rows {
  float out[DIM / 2];  // [column / 8][row half][2]
  float scores[kKeys / 2];
  uint32_t weights[kKeys / 16][4];
  float largest[2], sum[2];

  __device__ void run(const AttentionArgs& args, const Tile& tile, Shared<DIM>& shared, int half) {
    const bf16* q = shared.q + half * 64 * DIM;
#pragma unroll
    for (float& value : out) value = 0;
    largest[0] = largest[1] = kNone;
    sum[0] = sum[1] = 0;
    float keep[2];
    start_scores(shared, q, 0);
    wgmma_wait<0>();
    pin(scores);
    release(shared.k_empty[0]);
    softmax(args, tile, half, 0, keep);
    to_weights();
    for (int block = 0; block + 1 < tile.blocks; ++block) {
      start_scores(shared, q, block + 1);
      start_values(shared, block);
      wgmma_wait<1>();
      pin(scores);
      release(shared.k_empty[(block + 1) % kKeyStages]);
      softmax(args, tile, half, block + 1, keep);
      wgmma_wait<0>();
      pin(out);
      release(shared.v_empty[block % kValueStages]);
#pragma unroll
      for (int i = 0; i < DIM / 2; ++i) out[i] *= keep[i / 2 % 2];
      to_weights();
    }
    start_values(shared, tile.blocks - 1);
    wgmma_wait<0>();
    pin(out);
    write(args, tile, half);
  }

  __device__ static void release(Barrier& empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
  }

  __device__ void start_scores(Shared<DIM>& shared, const bf16* q, int block) {
    const int stage = block % kKeyStages;
    barrier_wait(shared.k_full[stage], block / kKeyStages & 1);
    fence_async();
    pin(scores);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < DIM; k += 16)
      wgmma_scores(scores, matrix_descriptor(q + k / 64 * 64 * 64 + k % 64, 16),
                   matrix_descriptor(shared.k[stage] + k / 64 * kKeys * 64 + k % 64, 16), k > 0);
    wgmma_commit();
  }

  __device__ void start_values(Shared<DIM>& shared, int block) {
    const int stage = block % kValueStages;
    barrier_wait(shared.v_full[stage], block / kValueStages & 1);
    fence_async();
    pin(out);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kKeys; k += 16)
      wgmma_values(out, weights[k / 16], matrix_descriptor(shared.v[stage] + k * 64, kKeys * 128));
    wgmma_commit();
  }

  // Scores become weights (still as floats), largest and sum move on; keep: what is left of the
  // sums before.
  __device__ void softmax(const AttentionArgs& args, const Tile& tile, int tile_half, int block,
                          float (&keep)[2]) {
    const int thread = static_cast<int>(threadIdx.x) % kGroup, lane = thread % 32;
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
    const int window = args.shape.sliding_window;
    const int begin = tile.key_begin + block * kKeys;
    const float scale = args.scale * kLog2E;
    if (args.softcap > 0) {
#pragma unroll
      for (float& score : scores)
        score = args.softcap * tanhf(score * args.scale / args.softcap) / args.scale;
    }
    // Whole blocks need no mask: the tile's first token sees the last key, and its last the first.
    const int last_token = tile.first_position + tile.tokens - 1;
    const bool whole = begin + kKeys - 1 <= tile.first_position && begin + kKeys <= tile.key_end &&
                       (window <= 0 || begin >= last_token - window + 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!whole) {
        const int row = tile_half * 64 + thread / 32 * 16 + half * 8 + lane / 4;
        const int last = tile.first_position + row / group;
        const int first = window > 0 ? last - window + 1 : 0;
#pragma unroll
        for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int position = begin + i * 8 + lane % 4 * 2 + j;
            if (position > last || position < first || position >= tile.key_end)
              scores[i * 4 + half * 2 + j] = kNone;
          }
      }
      float best = kNone;
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i)
        best = fmaxf(best, fmaxf(scores[i * 4 + half * 2], scores[i * 4 + half * 2 + 1]));
      best = fmaxf(largest[half], quad_max(best) * scale);
      const float base = best == kNone ? 0.0f : best;
      keep[half] = exp2_fast(largest[half] - base);
      largest[half] = best;
      float added = 0;
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& score = scores[i * 4 + half * 2 + j];
          score = exp2_fast(fmaf(score, scale, -base));
          added += score;
        }
      sum[half] = sum[half] * keep[half] + added;
    }
  }

  __device__ void to_weights() {
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)  // row half j % 2, keys 8 * (j / 2) on
        weights[i][j] = pack_bf16(scores[(2 * i + j / 2) * 4 + j % 2 * 2],
                                  scores[(2 * i + j / 2) * 4 + j % 2 * 2 + 1]);
  }

  __device__ void write(const AttentionArgs& args, const Tile& tile, int tile_half) {
    const int thread = static_cast<int>(threadIdx.x) % kGroup, lane = thread % 32;
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_half * 64 + thread / 32 * 16 + half * 8 + lane / 4;
      const float total = quad_sum(sum[half]);
      if (row >= tile.tokens * group) continue;
      const int head = tile.kv_head * group + row % group;
      float factor = 1.0f / total;
      if (args.sinks != nullptr) {
        const float sink = args.sinks[head] * kLog2E, all = fmaxf(largest[half], sink);
        const float left = exp2f(largest[half] - all);
        factor = left / (total * left + exp2f(sink - all));
      }
      bf16* to = static_cast<bf16*>(args.out) + (tile.query_begin + row / group) * args.out_stride +
                 int64_t{head} * DIM + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < DIM / 8; ++i)
        *reinterpret_cast<uint32_t*>(to + i * 8) =
            pack_bf16(out[i * 4 + half * 2] * factor, out[i * 4 + half * 2 + 1] * factor);
    }
  }
};

template <int DIM>
__global__ void __launch_bounds__(kThreads, 1)
    hopper_kernel(const AttentionArgs args, const PlanView plan) {
  extern __shared__ char raw[];
  auto& shared =
      *reinterpret_cast<Shared<DIM>*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  release_next();
  wait_for_previous();
  // The last tiles of a lane have the most keys: first come, first served.
  const int index = plan.header->num_tiles - 1 - static_cast<int>(blockIdx.y);
  if (index < 0) return;
  const Tile tile = tile_at(args, plan, index, static_cast<int>(blockIdx.x));
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  if (threadIdx.x == 0) {
    for (Barrier& full : shared.k_full) barrier_init(full, kGroup);
    for (Barrier& full : shared.v_full) barrier_init(full, kGroup);
    for (Barrier& empty : shared.k_empty) barrier_init(empty, 8);  // warps that multiply
    for (Barrier& empty : shared.v_empty) barrier_init(empty, 8);
    barrier_init_done();
  }
  constexpr int kEights = DIM / 8;
  for (int i = threadIdx.x; i < kTileRows * kEights; i += kThreads) {
    const int row = i / kEights, at = i % kEights * 8;
    uint4 value{};
    if (row < tile.tokens * group)
      value = *reinterpret_cast<const uint4*>(
          static_cast<const bf16*>(args.q) + (tile.query_begin + row / group) * args.q_stride +
          int64_t{tile.kv_head * group + row % group} * DIM + at);
    *reinterpret_cast<uint4*>(shared.q + row / 64 * 64 * DIM + swizzled(row % 64, at, 64)) = value;
  }
  fence_async();
  __syncthreads();
  const int warp_group = static_cast<int>(threadIdx.x) / kGroup;
  if (warp_group == 0) {
    give_registers<40>();
    bring<DIM>(args, tile, shared);
  } else {
    take_registers<232>();
    Rows<DIM> rows;
    rows.run(args, tile, shared, warp_group - 1);
  }
}

template <int DIM>
Status start(const AttentionArgs& args, const PlanView& plan, const LaunchOptions& launch) {
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int tiles = args.lanes.num_tokens / tokens_per_tile(group) + args.lanes.num_lanes;
  constexpr size_t kBytes = sizeof(Shared<DIM>) + 1024;
  ESP_RETURN_IF_ERROR(allow_shared("attention", hopper_kernel<DIM>, kBytes));
  return launch_kernel(
      "attention", hopper_kernel<DIM>,
      dim3(static_cast<unsigned>(args.shape.num_kv_heads), static_cast<unsigned>(tiles)), kThreads,
      kBytes, launch, args, plan);
}

}  // namespace

Status attention_hopper(const AttentionArgs& args, const PlanView& plan,
                        const LaunchOptions& launch) {
  return args.shape.head_dim == 64 ? start<64>(args, plan, launch) : start<128>(args, plan, launch);
}

}  // namespace espalier::kernels::cuda
