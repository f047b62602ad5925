// Attention of decode lanes over the runs of positions that they share: keys and values are read
// once for all lanes of a run, whose queries (members x group) are the rows of one product.
//
// Bytes: 4 x head_dim x kv_heads a position in bfloat16, once for each tile of up to 128 rows (the
// tiles of a run follow each other closely, so all but the first read from the second-level cache);
// and each row's partial result, 4 x head_dim, once out and once in. Operations: 4 x head_dim a row
// and position, so 64 rows (16 members, groups of 4) ask 300 TFLOP/s for each 4.65 TB/s: memory
// decides up to about 128 rows, the tensor cores beyond.
//
// One block on each multiprocessor takes an equal piece of the line of units (cuda_plan.h). One
// warp group brings, two multiply: 64 rows each of all positions where a tile has more than 64
// rows, else the same rows of half the positions each, put together at the end. Copies run on
// through the ends of items.
//
// Measured on an H200 that reads 4.65 TB/s: 512 lanes of 2,304 positions of which groups of 16
// share 2,048: 250 us for both kernels, of which about 86 here, where each lane by itself takes
// 1,089; predicted 173 by bytes. 256 lanes that all share 1,024 of 1,152: 93 (227). What is missing
// is mostly in the lanes' own parts, whose 4,096 pieces of 256 positions each begin with a chain of
// latencies.
#include "kernels/attention/online_softmax_sm90.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

template <int DIM>
struct Shared {
  bf16 q[kTileRows * DIM];  // each 64-row half by itself
  Ring<DIM> ring;
  float largest[64], sum[64];  // of one group's rows, for the other
};

// A place in the line of units.
struct Cursor {
  const AttentionArgs& args;
  int unit, unit_end;
  int index, index_unit;  // of the run, and its first unit
  SharedSegment run;
  int per_tile, blocks, tiles;  // members of a tile; units of an item, items of a kv head
  int kv_head, tile, block;

  __device__ Cursor(const AttentionArgs& a, const SharedStart& start)
      : args(a),
        unit(start.unit),
        unit_end(start.unit_end),
        index(start.run),
        index_unit(start.run_unit),
        per_tile(kTileRows / (a.shape.num_heads / a.shape.num_kv_heads)) {
    load_run();
    const int done = unit - index_unit;
    kv_head = done / (blocks * tiles);
    tile = done / blocks % tiles;
    block = done % blocks;
  }
  __device__ void load_run() {
    run = args.entries.shared.segments[index];
    blocks = (run.end - run.begin + kSharedBlock - 1) / kSharedBlock;
    tiles = (run.num_members + per_tile - 1) / per_tile;
  }
  // REQUIRES that the item has so many blocks left.
  __device__ void advance(int count) {
    unit += count;
    block += count;
    if (block < blocks) return;
    block = 0;
    if (++tile < tiles) return;
    tile = 0;
    if (++kv_head < args.shape.num_kv_heads) return;
    kv_head = 0;
    index_unit += blocks * tiles * args.shape.num_kv_heads;
    ++index;
    if (unit < unit_end) load_run();
  }
};

template <int DIM>
__device__ void load_queries(const AttentionArgs& args, const Cursor& at, int rows, bf16* q) {
  constexpr int kEights = DIM / 8;
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int32_t* members =
      args.entries.shared.members + at.run.first_member + at.tile * at.per_tile;
  const int thread = static_cast<int>(threadIdx.x) - kWarpGroup;
  const int all = rows > 64 ? kTileRows : 64;
#pragma unroll 4
  for (int i = thread; i < all * kEights; i += 2 * kWarpGroup) {
    const int row = i / kEights, column = i % kEights * 8;
    const bf16* from = static_cast<const bf16*>(args.q);
    if (row < rows)
      from += args.entries.query_begin[members[row / group]] * args.q_stride +
              int64_t{at.kv_head * group + row % group} * DIM + column;
    copy_async(q + row / 64 * 64 * DIM + swizzled(row % 64, column, 64), from, row < rows);
  }
  copy_commit();
  copy_wait<0>();
}

// Where the rows of a part go.
struct PartRows {
  int64_t first;
  int group, stride;  // row r: first + r / group * stride + r % group
  __device__ int64_t at(int row) const { return first + row / group * stride + row % group; }
};

__device__ PartRows part_rows(const AttentionArgs& args, const PlanView& plan, const Cursor& at,
                              int unit_begin) {
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  if (at.block > 0 && at.unit == unit_begin)  // continues what the block before began
    return {plan.continued_rows + int64_t{blockIdx.x} * kTileRows, group, group};
  const int64_t member = at.run.first_member + at.tile * at.per_tile;
  return {(member * args.shape.num_kv_heads + at.kv_head) * group, group, args.shape.num_heads};
}

template <int DIM, int KEYS>
__device__ void write_part(const PlanView& plan, const PartRows& to, int rows, int first_row,
                           const Rows<DIM, KEYS>& from) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup, lane = thread % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + thread / 32 * 16 + half * 8 + lane / 4;
    const float sum = quad_sum(from.sum[half]);
    if (row >= rows) continue;
    const int64_t at = to.at(row);
    float* out = plan.shared_out + at * DIM + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i)
      *reinterpret_cast<float2*>(out + i * 8) =
          make_float2(from.out[i * 4 + half * 2], from.out[i * 4 + half * 2 + 1]);
    if (lane % 4 == 0) plan.shared_sum[at] = make_float2(from.largest[half], sum);
  }
}

// `count` blocks of a run for a group that has KEYS positions of each, the first from `begin` on.
template <int KEYS>
__device__ __forceinline__ Blocks blocks_of(const SharedSegment& run, int begin, int count) {
  const int whole = run.end - begin < KEYS ? 0 : (run.end - begin - KEYS) / kRingKeys + 1;
  return {.count = uniform(count),
          .whole_begin = 0,
          .whole_end = uniform(whole),
          .begin = uniform(begin),
          .step = kRingKeys};
}
__device__ __forceinline__ Seen seen_of(const SharedSegment& run) {
  return {.first = {0, 0}, .last = {run.end - 1, run.end - 1}};
}

// Up to 64 rows: each group has half of each block's positions. The second hands its sums to the
// first, thread by thread, in two halves, through what a larger tile has its other queries in.
template <int DIM, bool SOFTCAP>
__device__ void attend_few(const AttentionArgs& args, const PlanView& plan, const Cursor& at,
                           const PartRows& to, int rows_used, RingPlace& place, int blocks,
                           Shared<DIM>& shared) {
  const int half = uniform(static_cast<int>(threadIdx.x) / kWarpGroup - 1);
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup;
  Rows<DIM, kRingKeys / 2> rows;
  const int begin = at.run.begin + at.block * kRingKeys + half * (kRingKeys / 2);
  rows.template run<false, false, SOFTCAP>(args, shared.ring, shared.q, place,
                                           blocks_of<kRingKeys / 2>(at.run, begin, blocks),
                                           half * (kRingKeys / 2), half, seen_of(at.run), [] {});
  auto* exchange = reinterpret_cast<float*>(shared.q + 64 * DIM) + thread;
  constexpr int kAtOnce = DIM / 4;
  float keep[2] = {1, 1}, take[2] = {0, 0};
  const int row = thread / 32 * 16 + thread % 32 / 4;  // and 8 further
  const bool first_of_row = thread % 4 == 0;
  if (half == 1) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = quad_sum(rows.sum[i]);
      if (!first_of_row) continue;
      shared.largest[row + 8 * i] = rows.largest[i];
      shared.sum[row + 8 * i] = sum;
    }
  }
#pragma unroll
  for (int round = 0; round < 2; ++round) {
    if (half == 1) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) exchange[i * kWarpGroup] = rows.out[round * kAtOnce + i];
    }
    part_sync(kMultiplyBarrier, 2 * kWarpGroup);
    if (half == 0) {
      if (round == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float other = shared.largest[row + 8 * i], best = fmaxf(rows.largest[i], other);
          keep[i] = exp2f(rows.largest[i] - best);
          take[i] = exp2f(other - best);
          rows.largest[i] = best;
          rows.sum[i] *= keep[i];  // of this thread's columns
          if (first_of_row) rows.sum[i] += shared.sum[row + 8 * i] * take[i];
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float& out = rows.out[round * kAtOnce + i];
        out = out * keep[i / 2 % 2] + exchange[i * kWarpGroup] * take[i / 2 % 2];
      }
    }
    if (round == 0) part_sync(kMultiplyBarrier, 2 * kWarpGroup);
  }
  if (half == 0) write_part(plan, to, rows_used, 0, rows);
}

template <int DIM, bool SOFTCAP>
__device__ void attend_many(const AttentionArgs& args, const PlanView& plan, const Cursor& at,
                            const PartRows& to, int rows_used, RingPlace& place, int blocks,
                            Shared<DIM>& shared) {
  const int half = uniform(static_cast<int>(threadIdx.x) / kWarpGroup - 1);
  Rows<DIM, kRingKeys> rows;
  const int begin = at.run.begin + at.block * kRingKeys;
  rows.template run<false, false, SOFTCAP>(args, shared.ring, shared.q + half * 64 * DIM, place,
                                           blocks_of<kRingKeys>(at.run, begin, blocks), 0, half,
                                           seen_of(at.run), [] {});
  write_part(plan, to, rows_used, half * 64, rows);
}

// All blocks of the line's piece, the page of each looked up two blocks early: under load that
// takes longer than a block.
template <int DIM>
__device__ void bring_all(const AttentionArgs& args, const RowMaps& maps, Ring<DIM>& ring,
                          Cursor& at) {
  Bringer<DIM> bringer(args.kv, maps, ring);
  const int blocks = at.unit_end - at.unit;
  const auto look = [&] {
    const auto found = bringer.look({.pages = args.entries.page_tables + at.run.page_begin,
                                     .begin = at.run.begin + at.block * kRingKeys,
                                     .end = at.run.end,
                                     .kv_head = at.kv_head,
                                     .new_begin = kNothingNew,
                                     .new_row = 0});
    at.advance(1);
    return found;
  };
  auto now = look(), after = now;
  if (blocks > 1) after = look();
  auto source = bringer.keys(now);
  for (int block = 0; block < blocks; ++block) {
    const auto of_values = source;
    if (block + 1 < blocks) {
      now = after;
      if (block + 2 < blocks) after = look();
      source = bringer.keys(now);
    }
    bringer.values(of_values);
  }
}

template <int DIM, bool SOFTCAP>
__global__ void __launch_bounds__(kRingThreads, 1)
    shared_kernel(const AttentionArgs args, const PlanView plan,
                  const __grid_constant__ RowMaps maps) {
  extern __shared__ char raw[];
  auto& shared =
      *reinterpret_cast<Shared<DIM>*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  release_next();
  if (!args.prefetch_cached_kv) wait_for_previous();
  const SharedStart start = plan.shared_starts[blockIdx.x];
  if (start.unit >= start.unit_end) return wait_for_previous();
  if (threadIdx.x == 0) shared.ring.init();
  __syncthreads();
  Cursor at(args, start);
  if (threadIdx.x < kWarpGroup) {
    give_registers<88>();
    bring_all<DIM>(args, maps, shared.ring, at);
  } else {
    take_registers<208>();
    wait_for_previous();  // of what entries share nothing is new, but the queries are
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
    RingPlace place;
    while (at.unit < at.unit_end) {
      const int blocks = min(at.blocks - at.block, at.unit_end - at.unit);
      const int rows = min(at.per_tile, at.run.num_members - at.tile * at.per_tile) * group;
      part_sync(kMultiplyBarrier, 2 * kWarpGroup);  // the last item's queries are done with
      load_queries<DIM>(args, at, rows, shared.q);
      fence_async();
      part_sync(kMultiplyBarrier, 2 * kWarpGroup);
      const PartRows to = part_rows(args, plan, at, start.unit);
      if (rows > 64)
        attend_many<DIM, SOFTCAP>(args, plan, at, to, rows, place, blocks, shared);
      else
        attend_few<DIM, SOFTCAP>(args, plan, at, to, rows, place, blocks, shared);
      at.advance(blocks);
    }
  }
}

template <int DIM, bool SOFTCAP>
Status start(const AttentionArgs& args, const PlanView& plan, const LaunchOptions& launch) {
  constexpr size_t kBytes = sizeof(Shared<DIM>) + 1024;
  ESP_RETURN_IF_ERROR(allow_shared("attention", shared_kernel<DIM, SOFTCAP>, kBytes));
  ESP_ASSIGN_OR_RETURN(const RowMaps maps, row_maps(args));
  return launch_kernel("attention", shared_kernel<DIM, SOFTCAP>,
                       dim3(static_cast<unsigned>(plan.shared_blocks)), kRingThreads, kBytes,
                       launch, args, plan, maps);
}

}  // namespace

Status attention_shared(const AttentionArgs& args, const PlanView& plan,
                        const LaunchOptions& launch) {
  if (args.softcap > 0)
    return args.shape.head_dim == 64 ? start<64, true>(args, plan, launch)
                                     : start<128, true>(args, plan, launch);
  return args.shape.head_dim == 64 ? start<64, false>(args, plan, launch)
                                   : start<128, false>(args, plan, launch);
}

}  // namespace espalier::kernels::cuda
