// Attention of lanes with many rows on Hopper, for heads of 64 and 128: the tiles of cuda_tiles.cu
// with the matrix instruction of a whole warp group, after FlashAttention 3 (Shah et al. 2024).
//
// Operations and bytes as there. Three warp groups: one brings keys and values (page by page, so by
// ordinary asynchronous copies), 128 positions at a time; two multiply, 64 rows each.
// The rest is in cuda_rows.cuh.
//
// Measured at 16k tokens, 32 heads of 128: mma.sync tiles 174 TFLOP/s; this with pieces announced
// by the bringing threads, which had to wait for each to land, 409; announced by the copies
// themselves, 430; with offsets handed from lane to lane instead of through shared memory, 488 on a
// GPU whose products ran at 740 (66 % of them; before, 54 % of 806). A chunk of 512 after 32k: 534.
// Tried without effect: turns alone, since the assembler had moved the whole softmax behind the
// wait for the values' products (release_after() in cuda_rows.cuh keeps it before; at 4k 423 became
// 449). A branch while products run makes the assembler wait after each of them.
#include "kernels/attention/cuda_rows.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

template <int DIM>
struct Shared {
  bf16 q[kTileRows * DIM];  // each 64-row half by itself
  Ring<DIM> ring;
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
  t.blocks = (t.key_end - t.key_begin + kRingKeys - 1) / kRingKeys;
  return t;
}

// What this thread's rows see of the tile's j-th block.
__device__ __forceinline__ Seen seen_of(const AttentionArgs& args, const Tile& tile, int half,
                                        int j) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup;
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int window = args.shape.sliding_window;
  Seen seen{.begin = tile.key_begin + j * kRingKeys};
  // Whole blocks need no mask: the tile's first token sees the last key, and its last the first.
  const int last_token = tile.first_position + tile.tokens - 1;
  seen.whole = seen.begin + kRingKeys - 1 <= tile.first_position &&
               (window <= 0 || seen.begin >= last_token - window + 1);
  if (seen.whole) return seen;
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
__device__ void write(const AttentionArgs& args, const Tile& tile, const Rows<DIM, kRingKeys>& rows,
                      int tile_half) {
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

template <int DIM, bool SOFTCAP>
__global__ void __launch_bounds__(kRingThreads, 1)
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
  if (threadIdx.x == 0) shared.ring.init();
  constexpr int kEights = DIM / 8;
  for (int i = threadIdx.x; i < kTileRows * kEights; i += kRingThreads) {
    const int row = i / kEights, at = i % kEights * 8;
    const bool known = row < tile.tokens * group;
    const bf16* from = static_cast<const bf16*>(args.q);
    if (known)
      from += (tile.query_begin + row / group) * args.q_stride +
              int64_t{tile.kv_head * group + row % group} * DIM + at;
    copy_async(shared.q + row / 64 * 64 * DIM + swizzled(row % 64, at, 64), from, known);
  }
  copy_commit();
  copy_wait<0>();
  fence_async();
  __syncthreads();
  const int warp_group = static_cast<int>(threadIdx.x) / kWarpGroup;
  if (warp_group == 0) {
    give_registers<40>();
    const int32_t* pages = args.lanes.page_tables + args.lanes.page_begin[tile.lane];
    int begin = tile.key_begin - kRingKeys;
    bring<DIM>(args.kv, shared.ring, tile.blocks, [&] {
      begin += kRingKeys;
      return BlockPlace{pages, begin, tile.key_end, tile.kv_head};
    });
  } else {
    take_registers<232>();
    const int half = warp_group - 1;
    Rows<DIM, kRingKeys> rows;
    rows.template run<true, SOFTCAP>(args, shared.ring, shared.q + half * 64 * DIM, 0, tile.blocks,
                                     0, half, [&](int j) { return seen_of(args, tile, half, j); });
    write<DIM>(args, tile, rows, half);
  }
}

template <int DIM, bool SOFTCAP>
Status start(const AttentionArgs& args, const PlanView& plan, const LaunchOptions& launch) {
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int tiles = args.lanes.num_tokens / tokens_per_tile(group) + args.lanes.num_lanes;
  constexpr size_t kBytes = sizeof(Shared<DIM>) + 1024;
  ESP_RETURN_IF_ERROR(allow_shared("attention", hopper_kernel<DIM, SOFTCAP>, kBytes));
  return launch_kernel(
      "attention", hopper_kernel<DIM, SOFTCAP>,
      dim3(static_cast<unsigned>(args.shape.num_kv_heads), static_cast<unsigned>(tiles)),
      kRingThreads, kBytes, launch, args, plan);
}

}  // namespace

Status attention_hopper(const AttentionArgs& args, const PlanView& plan,
                        const LaunchOptions& launch) {
  if (args.softcap > 0)
    return args.shape.head_dim == 64 ? start<64, true>(args, plan, launch)
                                     : start<128, true>(args, plan, launch);
  return args.shape.head_dim == 64 ? start<64, false>(args, plan, launch)
                                   : start<128, false>(args, plan, launch);
}

}  // namespace espalier::kernels::cuda
