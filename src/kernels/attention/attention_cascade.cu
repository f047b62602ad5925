// Cascade attention: decode entries over the prefix segments that several of them share.
// q [tokens, heads, head_dim], K and V in pages; partial results to PlanView::segment_out and
// segment_sum, which attention_decode.cu merges; bfloat16, head_dim 64 and 128, Hopper.
// Parallel: keys and values are read once for all members of a segment, whose queries (members x
// group, up to 128 rows a tile) are the rows of one matmul. One block on each
// multiprocessor takes an equal range of the plan's work items (attention_plan.h); one producer
// warp group, two consumers: 64 rows each where a tile has more than 64, else the same rows over
// half of the positions each, merged at the end.
// Pipeline: the ring buffer of kv_pipeline_sm90.cuh, across the ends of tiles.
// Roof: memory up to about 128 rows, 4 x head_dim x kv_heads bytes a position once a segment
// (further tiles of a segment hit L2), plus 8 x head_dim bytes of partial result a row; tensor
// cores beyond. 512 entries in groups of 16, 2,048 of 2,304 positions shared: 250 us with the
// decode kernel instead of 1,089; 173 by bytes. History: docs/notes/attention_cascade.md.
#include "kernels/attention/online_softmax_sm90.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

template <int DIM>
struct Shared {
  bf16 q[kTileRows * DIM];  // each 64-row half by itself
  KvPipeline<DIM> pipeline;
  float largest[64], sum[64];  // of one group's rows, for the other
};

// A position in the sequence of work items.
struct Cursor {
  const AttentionArgs& args;
  int work, work_end;
  int index, segment_work;  // of the segment, and its first work item
  SharedSegment segment;
  int per_tile, blocks, tiles;  // members of a tile; work items of a tile, tiles of a kv head
  int kv_head, tile, block;

  __device__ Cursor(const AttentionArgs& a, const CascadeStart& start)
      : args(a),
        work(start.work),
        work_end(start.work_end),
        index(start.segment),
        segment_work(start.segment_work),
        per_tile(kTileRows / (a.shape.num_heads / a.shape.num_kv_heads)) {
    load_segment();
    const int done = work - segment_work;
    kv_head = done / (blocks * tiles);
    tile = done / blocks % tiles;
    block = done % blocks;
  }
  __device__ void load_segment() {
    segment = args.entries.shared.segments[index];
    blocks = (segment.end - segment.begin + kSegmentBlock - 1) / kSegmentBlock;
    tiles = (segment.num_members + per_tile - 1) / per_tile;
  }
  // REQUIRES: the tile has at least `count` work items left.
  __device__ void advance(int count) {
    work += count;
    block += count;
    if (block < blocks) return;
    block = 0;
    if (++tile < tiles) return;
    tile = 0;
    if (++kv_head < args.shape.num_kv_heads) return;
    kv_head = 0;
    segment_work += blocks * tiles * args.shape.num_kv_heads;
    ++index;
    if (work < work_end) load_segment();
  }
};

template <int DIM>
__device__ void load_queries(const AttentionArgs& args, const Cursor& at, int rows, bf16* q) {
  constexpr int kVectors = DIM / 8;
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int32_t* members =
      args.entries.shared.members + at.segment.first_member + at.tile * at.per_tile;
  const int thread = static_cast<int>(threadIdx.x) - kWarpGroup;
  const int all = rows > 64 ? kTileRows : 64;
#pragma unroll 4
  for (int i = thread; i < all * kVectors; i += 2 * kWarpGroup) {
    const int row = i / kVectors, column = i % kVectors * 8;
    const bf16* from = static_cast<const bf16*>(args.q);
    if (row < rows)
      from += args.entries.query_begin[members[row / group]] * args.q_stride +
              int64_t{at.kv_head * group + row % group} * DIM + column;
    copy_async(q + row / 64 * 64 * DIM + swizzled(row % 64, column, 64), from, row < rows);
  }
  copy_commit();
  copy_wait<0>();
}

// The destination rows of a partial result.
struct PartialRows {
  int64_t first;
  int group, stride;  // row r: first + r / group * stride + r % group
  __device__ int64_t at(int row) const { return first + row / group * stride + row % group; }
};

__device__ PartialRows partial_rows(const AttentionArgs& args, const PlanView& plan,
                                    const Cursor& at, int work_begin) {
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  if (at.block > 0 && at.work == work_begin)  // continues what the block before began
    return {plan.continued_rows + int64_t{blockIdx.x} * kTileRows, group, group};
  const int64_t member = at.segment.first_member + at.tile * at.per_tile;
  return {(member * args.shape.num_kv_heads + at.kv_head) * group, group, args.shape.num_heads};
}

template <int DIM, int KEYS>
__device__ void write_partial(const PlanView& plan, const PartialRows& to, int rows, int first_row,
                              const Rows<DIM, KEYS>& from) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup, lane = thread % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + thread / 32 * 16 + half * 8 + lane / 4;
    const float sum = quad_sum(from.sum[half]);
    if (row >= rows) continue;
    const int64_t at = to.at(row);
    float* out = plan.segment_out + at * DIM + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i)
      *reinterpret_cast<float2*>(out + i * 8) =
          make_float2(from.out[i * 4 + half * 2], from.out[i * 4 + half * 2 + 1]);
    if (lane % 4 == 0) plan.segment_sum[at] = make_float2(from.largest[half], sum);
  }
}

// The next `count` blocks of a segment, for a warp group that has KEYS positions of each, the first
// from `begin` on.
template <int KEYS>
__device__ __forceinline__ Blocks blocks_of(const SharedSegment& segment, int begin, int count) {
  const int whole = segment.end - begin < KEYS ? 0 : (segment.end - begin - KEYS) / kStageKeys + 1;
  return {.count = uniform(count),
          .whole_begin = 0,
          .whole_end = uniform(whole),
          .begin = uniform(begin),
          .step = kStageKeys};
}
__device__ __forceinline__ Visible visible_of(const SharedSegment& segment) {
  return {.first = {0, 0}, .last = {segment.end - 1, segment.end - 1}};
}

// Up to 64 rows: each consumer group has half of each block's positions. The second hands its sums
// to the first, thread by thread, in two rounds, through the memory where a larger tile has its
// other queries.
template <int DIM, bool SOFTCAP>
__device__ void attend_up_to_64(const AttentionArgs& args, const PlanView& plan, const Cursor& at,
                                const PartialRows& to, int rows_used, StageSlot& slot, int blocks,
                                Shared<DIM>& shared) {
  const int half = uniform(static_cast<int>(threadIdx.x) / kWarpGroup - 1);
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup;
  Rows<DIM, kStageKeys / 2> rows;
  const int begin = at.segment.begin + at.block * kStageKeys + half * (kStageKeys / 2);
  rows.template run<false, false, SOFTCAP>(
      args, shared.pipeline, shared.q, slot, blocks_of<kStageKeys / 2>(at.segment, begin, blocks),
      half * (kStageKeys / 2), half, visible_of(at.segment), [] {});
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
    named_barrier_sync(kConsumerBarrier, 2 * kWarpGroup);
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
    if (round == 0) named_barrier_sync(kConsumerBarrier, 2 * kWarpGroup);
  }
  if (half == 0) write_partial(plan, to, rows_used, 0, rows);
}

template <int DIM, bool SOFTCAP>
__device__ void attend_up_to_128(const AttentionArgs& args, const PlanView& plan, const Cursor& at,
                                 const PartialRows& to, int rows_used, StageSlot& slot, int blocks,
                                 Shared<DIM>& shared) {
  const int half = uniform(static_cast<int>(threadIdx.x) / kWarpGroup - 1);
  Rows<DIM, kStageKeys> rows;
  const int begin = at.segment.begin + at.block * kStageKeys;
  rows.template run<false, false, SOFTCAP>(args, shared.pipeline, shared.q + half * 64 * DIM, slot,
                                           blocks_of<kStageKeys>(at.segment, begin, blocks), 0,
                                           half, visible_of(at.segment), [] {});
  write_partial(plan, to, rows_used, half * 64, rows);
}

// Produces all blocks of the block's range of work items; page numbers are looked up two blocks
// early, since under load a lookup takes longer than a block.
template <int DIM, typename KV>
__device__ void produce_all(const AttentionArgs& args, const RowMaps& maps,
                            KvPipeline<DIM>& pipeline, Cursor& at) {
  KvProducer<DIM, KV> producer(args.kv, maps, pipeline);
  const int blocks = at.work_end - at.work;
  const auto look_up = [&] {
    const auto lookup = producer.look_up({.pages = args.entries.page_tables + at.segment.page_begin,
                                          .begin = at.segment.begin + at.block * kStageKeys,
                                          .end = at.segment.end,
                                          .kv_head = at.kv_head,
                                          .new_begin = kNothingNew,
                                          .new_row = 0});
    at.advance(1);
    return lookup;
  };
  auto now = look_up(), after = now;
  if (blocks > 1) after = look_up();
  auto source = producer.keys(now);
  for (int block = 0; block < blocks; ++block) {
    const auto of_values = source;
    if (block + 1 < blocks) {
      now = after;
      if (block + 2 < blocks) after = look_up();
      source = producer.keys(now);
    }
    producer.values(of_values);
  }
}

template <int DIM, bool SOFTCAP, typename KV>
__global__ void __launch_bounds__(kPipelineThreads, 1)
    cascade_kernel(const AttentionArgs args, const PlanView plan,
                   const __grid_constant__ RowMaps maps) {
  extern __shared__ char raw[];
  auto& shared =
      *reinterpret_cast<Shared<DIM>*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  release_next();
  if (!args.prefetch_cached_kv) wait_for_previous();
  const CascadeStart start = plan.cascade_starts[blockIdx.x];
  if (start.work >= start.work_end) return wait_for_previous();
  if (threadIdx.x == 0) shared.pipeline.init();
  __syncthreads();
  Cursor at(args, start);
  if (threadIdx.x < kWarpGroup) {
    give_registers<88>();
    produce_all<DIM, KV>(args, maps, shared.pipeline, at);
  } else {
    take_registers<208>();
    wait_for_previous();  // shared segments hold no new keys, but the queries are new
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
    StageSlot slot;
    while (at.work < at.work_end) {
      const int blocks = min(at.blocks - at.block, at.work_end - at.work);
      const int rows = min(at.per_tile, at.segment.num_members - at.tile * at.per_tile) * group;
      named_barrier_sync(kConsumerBarrier,
                         2 * kWarpGroup);  // the last tile's queries are no longer read
      load_queries<DIM>(args, at, rows, shared.q);
      fence_async();
      named_barrier_sync(kConsumerBarrier, 2 * kWarpGroup);
      const PartialRows to = partial_rows(args, plan, at, start.work);
      if (rows > 64)
        attend_up_to_128<DIM, SOFTCAP>(args, plan, at, to, rows, slot, blocks, shared);
      else
        attend_up_to_64<DIM, SOFTCAP>(args, plan, at, to, rows, slot, blocks, shared);
      at.advance(blocks);
    }
  }
}

template <int DIM, bool SOFTCAP, typename KV>
Status start(const AttentionArgs& args, const PlanView& plan, const LaunchOptions& launch) {
  constexpr size_t kBytes = sizeof(Shared<DIM>) + 1024;
  ESP_RETURN_IF_ERROR(allow_shared("attention", cascade_kernel<DIM, SOFTCAP, KV>, kBytes));
  ESP_ASSIGN_OR_RETURN(const RowMaps maps, row_maps(args.kv, {}));
  return launch_kernel("attention", cascade_kernel<DIM, SOFTCAP, KV>,
                       dim3(static_cast<unsigned>(plan.cascade_blocks)), kPipelineThreads, kBytes,
                       launch, args, plan, maps);
}

}  // namespace

Status attention_cascade(const AttentionArgs& args, const PlanView& plan,
                         const LaunchOptions& launch) {
  const auto go = [&]<int DIM, typename KV>() {
    return args.softcap > 0 ? start<DIM, true, KV>(args, plan, launch)
                            : start<DIM, false, KV>(args, plan, launch);
  };
  const auto of = [&]<typename KV>() {
    return args.shape.head_dim == 64 ? go.template operator()<64, KV>()
                                     : go.template operator()<128, KV>();
  };
  return args.shape.kv_e4m3 ? of.template operator()<uint8_t>() : of.template operator()<bf16>();
}

}  // namespace espalier::kernels::cuda
