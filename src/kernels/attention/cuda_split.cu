// Attention of lanes with few rows (decode): split KV, cut up on the device (cuda_plan.h).
//
// Bytes: the keys and values of the lanes, 4 x head_dim x kv_heads a position in bfloat16, once; a
// row of queries and of sums beside them. Operations: 4 x group x bytes / 4: memory decides up to
// groups of 16 and far beyond. So the kernel is a stream: each of a block's 4 warps brings its own
// steps of 16 positions into its own part of shared memory, kStages deep, and needs no barrier
// while it does; page numbers are fetched two steps before the copies that need them. A warp keeps
// its own largest score, sum and output; the four meet at the end of a segment (a lane and kv head,
// or the part of it that this block has).
//
// Measured on an H200 that reads 4.65 TB/s: 64 x 4k 4.1 TB/s (88 %; pages of one token 78 %), 31 x
// 4k with one of 128k 4.07 (88 %), 256 x 1k 4.0; one lane of 1k 9 us, a chain of latencies (the
// block's start, pages, keys, parts, their sum); 512 x 256 on pages of one 80 %. Reading the start
// in one piece and pages a step early gained 1 to 3 %; page numbers through shared memory nothing
// here, and 2 % of a step of 128 lanes on scattered pages of one.
//
// Rows of a tile are query token x group: row r is head r % group of token r / group, so one
// product with the tensor cores serves a whole group.
#include "kernels/attention/cuda_tile.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kStep = 16;  // positions of a warp's step
constexpr int kStages = 3;
// Page numbers come into shared memory with the keys of two steps before theirs, so that no
// register waits for them: a ring of so many steps.
constexpr int kPageSteps = 8;

template <int DIM>
struct Shared {
  struct Stage {
    bf16 k[kStep][kPitch<DIM>];
    bf16 v[kStep][kPitch<DIM>];
  };
  union {
    Stage stages[kWarps][kStages];
    float outs[kWarps][kSplitRows][DIM];  // when a segment has ended
  };
  int32_t pages[kWarps][kPageSteps][kStep];
  float largest[kWarps][kSplitRows], sums[kWarps][kSplitRows];
  int last_to_arrive;
};

// What a block has of one lane and kv head.
struct Segment {
  int lane, kv_head, rows;
  int unit_begin, unit_end;  // of the whole (lane, kv head)
  int begin, end;            // positions of this part
  int prefix_len, query_begin;
};

// The first position that a lane reads by itself.
__device__ int first_own(const AttentionArgs& args, const SplitStart& start) {
  return max(first_seen(start.prefix_len, args.shape.sliding_window), start.own_begin);
}

__device__ Segment segment_of(const AttentionArgs& args, const SplitStart& start) {
  Segment s;
  s.lane = start.lane;
  s.kv_head = (start.unit - start.lane_unit) / start.blocks;
  s.unit_begin = start.lane_unit + s.kv_head * start.blocks;
  s.unit_end = s.unit_begin + start.blocks;
  s.query_begin = start.query_begin;
  s.rows = start.tokens * (args.shape.num_heads / args.shape.num_kv_heads);
  s.prefix_len = start.prefix_len;
  const int first = first_own(args, start);
  s.begin = first + (start.unit - s.unit_begin) * kSplitBlock;
  s.end = min(s.prefix_len + start.tokens,
              first + (min(start.unit_end, s.unit_end) - s.unit_begin) * kSplitBlock);
  return s;
}

__device__ bool shares(const AttentionArgs& args, const PlanView& plan) {
  return plan.lane_runs != nullptr && args.lanes.shared.runs != nullptr;
}

// Moves on to `unit`, which may be of another lane.
__device__ void seek(const AttentionArgs& args, const PlanView& plan, int unit, SplitStart& start) {
  const LaneArrays& lanes = args.lanes;
  start.unit = unit;
  if (unit < start.lane_unit + start.blocks * args.shape.num_kv_heads) return;
  do {  // lanes without units have none between
    ++start.lane;
  } while (plan.unit_begin[start.lane + 1] <= unit);
  start.lane_unit = plan.unit_begin[start.lane];
  start.blocks = (plan.unit_begin[start.lane + 1] - start.lane_unit) / args.shape.num_kv_heads;
  start.query_begin = lanes.query_begin[start.lane];
  start.tokens = lanes.query_begin[start.lane + 1] - start.query_begin;
  start.prefix_len = lanes.prefix_len[start.lane];
  start.own_begin = shares(args, plan) ? lanes.shared.own_begin[start.lane] : 0;
}

// What shared runs gave for a lane's rows: those of this warp, a column every 32. Read while the
// first keys are on their way.
template <int DIM>
struct SharedPart {
  static constexpr int kColumns = (DIM + 31) / 32, kRows = kSplitRows / kWarps;
  float value[kRows][kColumns];
  float largest[kRows], sum[kRows];

  __device__ void read(const AttentionArgs& args, const PlanView& plan, const Segment& s) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = kNone;
      sum[r] = 0;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) value[r][i] = 0;
    }
    if constexpr (DIM == 64 || DIM == 128)
      if (shares(args, plan)) take_runs(args, plan, s);
  }

  __device__ void take_runs(const AttentionArgs& args, const PlanView& plan, const Segment& s) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
    for (int level = 0; level < kRunsOfLane; ++level) {
      const LaneRun run = plan.lane_runs[s.lane * kRunsOfLane + level];
      if (run.blocks == 0) return;
      const int unit = run.unit + s.kv_head * run.units_per_head;
      const int first_block = unit / run.chunk, last_block = (unit + run.blocks - 1) / run.chunk;
      for (int block = first_block; block <= last_block; ++block) {
        const int64_t row0 =
            block == first_block
                ? (int64_t{run.member} * args.shape.num_kv_heads + s.kv_head) * group
                : plan.continued_rows + int64_t{block} * kTileRows + run.tile_row;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int row = warp + r * kWarps;
          if (row < s.rows) take(plan, row0 + row, lane, r);
        }
      }
    }
  }

  __device__ void take(const PlanView& plan, int64_t row, int lane, int r) {
    const float2 part = __ldcg(&plan.shared_sum[row]);
    float other[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      other[i] = lane + 32 * i < DIM ? __ldcg(&plan.shared_out[row * DIM + lane + 32 * i]) : 0.0f;
    add(r, part.x, part.y, other);
  }

  // The row's state becomes that of both. REQUIRES a score in one of them.
  __device__ void add(int r, float other_largest, float other_sum, const float (&other)[kColumns]) {
    const float best = fmaxf(largest[r], other_largest);
    const float keep = exp2f(largest[r] - best), take = exp2f(other_largest - best);
    largest[r] = best;
    sum[r] = sum[r] * keep + other_sum * take;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) value[r][i] = value[r][i] * keep + other[i] * take;
  }
};

// One warp's walk over its steps of a segment; `meanwhile` is done while the first keys come.
template <int DIM>
struct Walk {
  uint32_t q[DIM / 16][4];  // the queries, as the tensor cores take them
  float out[DIM / 8][4];
  float largest[2], sum[2];  // of rows lane / 4 and lane / 4 + 8; sums of this thread's columns

  template <typename Meanwhile>
  __device__ void run(const AttentionArgs& args, const Segment& s, Shared<DIM>& shared,
                      Meanwhile&& meanwhile) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int steps = (s.end - s.begin + kStep - 1) / kStep;
    const int mine = (steps - warp + kWarps - 1) / kWarps;
    const auto step_begin = [&](int i) { return s.begin + (warp + i * kWarps) * kStep; };
    const int32_t* pages = args.lanes.page_tables + args.lanes.page_begin[s.lane];
    const auto position_of = [&](int i) {  // that this lane looks up
      return min(step_begin(i) + lane % kStep, s.end - 1);
    };
    const auto page_of = [&](int i) {
      return i < mine ? kv_page(args.kv, pages, position_of(i)) : 0;
    };
    // Into the group of copies that is committed next; there when that group is.
    const auto ask_page = [&](int i) {
      if (i < mine && lane < kStep)
        copy_async_word(&shared.pages[warp][i % kPageSteps][lane],
                        pages + position_of(i) / args.kv.page_size);
    };
    int pages_ahead[kStages - 1];  // all asked for before the first is waited for
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) pages_ahead[i] = page_of(i);
    for (int i = kStages - 1; i < 2 * kStages - 2; ++i) ask_page(i);
    const auto fetch = [&](int i, int page) {
      if (i < mine) {
        const int64_t offset = kv_offset(args.kv, page, position_of(i), s.kv_head);
        auto& stage = shared.stages[warp][i % kStages];
        constexpr int kEights = DIM / 8;
        static_assert(kStep * kEights % 32 == 0);
#pragma unroll
        for (int j = 0; j < kStep * kEights / 32; ++j) {
          const int row = (j * 32 + lane) / kEights, at = (j * 32 + lane) % kEights * 8;
          const int64_t from = __shfl_sync(~0u, offset, row) + at;
          const bool known = step_begin(i) + row < s.end;
          copy_async(&stage.k[row][at], static_cast<const bf16*>(args.kv.k) + from, known);
          copy_async(&stage.v[row][at], static_cast<const bf16*>(args.kv.v) + from, known);
        }
      }
      copy_commit();
    };
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0;
    largest[0] = largest[1] = kNone;
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i, pages_ahead[i]);
    load_queries(args, s);
    meanwhile();
    for (int i = 0; i < mine; ++i) {
      copy_wait<kStages - 2>();
      __syncwarp();
      ask_page(i + 2 * kStages - 2);
      fetch(i + kStages - 1, shared.pages[warp][(i + kStages - 1) % kPageSteps][lane % kStep]);
      take(args, s, shared.stages[warp][i % kStages], step_begin(i));
      __syncwarp();
    }
    copy_wait<0>();
  }

  __device__ void load_queries(const AttentionArgs& args, const Segment& s) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + half * 8;
      const bf16* from = static_cast<const bf16*>(args.q) + lane % 4 * 2;
      if (row < s.rows)
        from += (s.query_begin + row / group) * args.q_stride +
                int64_t{s.kv_head * group + row % group} * DIM;
#pragma unroll
      for (int k = 0; k < DIM / 16; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          q[k][half + 2 * i] =
              row < s.rows ? *reinterpret_cast<const uint32_t*>(from + k * 16 + i * 8) : 0;
    }
  }

  __device__ void take(const AttentionArgs& args, const Segment& s,
                       typename Shared<DIM>::Stage& stage, int begin) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float scores[2][4] = {};
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
      uint32_t b[4];
      load_matrices(b, &stage.k[lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 8]);
      mma(scores[0], q[k / 16], b[0], b[1]);
      mma(scores[1], q[k / 16], b[2], b[3]);
    }
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
    const int window = args.shape.sliding_window;
    uint32_t weights[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // rows lane / 4 and lane / 4 + 8
      const int last = s.prefix_len + (lane / 4 + half * 8) / group;
      const int first = window > 0 ? last - window + 1 : 0;
      float best = largest[half], value[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = begin + i / 2 * 8 + lane % 4 * 2 + i % 2;
        value[i] = to_score(scores[i / 2][half * 2 + i % 2], args.scale, args.softcap);
        if (position > last || position < first || position >= s.end) value[i] = kNone;
        best = fmaxf(best, value[i]);
      }
      best = quad_max(best);
      const float base = best == kNone ? 0.0f : best;  // a row that has seen nothing yet
      const float keep = exp2_fast(largest[half] - base);
      largest[half] = best;
      float added = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        value[i] = exp2_fast(value[i] - base);
        added += value[i];
      }
      sum[half] = sum[half] * keep + added;
      weights[half] = pack_bf16(value[0], value[1]);
      weights[2 + half] = pack_bf16(value[2], value[3]);
#pragma unroll
      for (int i = 0; i < DIM / 8; ++i) {
        out[i][half * 2] *= keep;
        out[i][half * 2 + 1] *= keep;
      }
    }
#pragma unroll
    for (int n = 0; n < DIM; n += 16) {
      uint32_t b[4];
      load_matrices_transposed(b, &stage.v[lane % 16][n + lane / 16 * 8]);
      mma(out[n / 8], weights, b[0], b[1]);
      mma(out[n / 8 + 1], weights, b[2], b[3]);
    }
  }
};

// A row of a (lane, kv head) is done: its largest score and sum (base 2), its output before
// division.
template <int DIM>
__device__ void write_row(const AttentionArgs& args, const Segment& s, int row,
                          const SharedPart<DIM>& all, int r) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float largest = all.largest[r], sum = all.sum[r];
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int head = s.kv_head * group + row % group;
  float factor = 1.0f / sum;
  if (args.sinks != nullptr) {
    const float sink = args.sinks[head] * kLog2E;
    const float all = fmaxf(largest, sink);
    const float keep = exp2f(largest - all);
    factor = keep / (sum * keep + exp2f(sink - all));
  }
  bf16* to = static_cast<bf16*>(args.out) + (s.query_begin + row / group) * args.out_stride +
             int64_t{head} * DIM;
#pragma unroll
  for (int i = 0; i < SharedPart<DIM>::kColumns; ++i)
    if (lane + 32 * i < DIM) to[lane + 32 * i] = __float2bfloat16_rn(all.value[r][i] * factor);
}

// Brings the warps' parts together: into the output where this block has the whole (lane, kv head),
// else into the workspace, and the last block to arrive brings the blocks' parts together.
template <int DIM>
__device__ void finish_segment(const AttentionArgs& args, const PlanView& plan, const Segment& s,
                               const Walk<DIM>& walk, SharedPart<DIM>& all, Shared<DIM>& shared,
                               int chunk) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();  // the stages are free
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    const float sum = quad_sum(walk.sum[half]);
    if (row >= s.rows) continue;
    if (lane % 4 == 0) {
      shared.largest[warp][row] = walk.largest[half];
      shared.sums[warp][row] = sum;
    }
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i)
      *reinterpret_cast<float2*>(&shared.outs[warp][row][i * 8 + lane % 4 * 2]) =
          make_float2(walk.out[i][half * 2], walk.out[i][half * 2 + 1]);
  }
  __syncthreads();
  const int first_block = s.unit_begin / chunk, last_block = (s.unit_end - 1) / chunk;
  const int block = static_cast<int>(blockIdx.x);
  const int slot = 2 * block + (block == first_block ? 1 : 0);
  constexpr int kColumns = SharedPart<DIM>::kColumns;
#pragma unroll
  for (int r = 0; r < SharedPart<DIM>::kRows; ++r) {
    const int row = warp + r * kWarps;
    if (row >= s.rows) break;
    float largest = kNone, sum = 0, keep[kWarps], value[kColumns];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared.largest[w][row]);
    const float base = largest == kNone ? 0.0f : largest;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      keep[w] = exp2f(shared.largest[w][row] - base);
      sum += shared.sums[w][row] * keep[w];
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      value[i] = 0;
      if (lane + 32 * i < DIM)
#pragma unroll
        for (int w = 0; w < kWarps; ++w) value[i] += shared.outs[w][row][lane + 32 * i] * keep[w];
    }
    if (first_block == last_block) {
      all.add(r, largest, sum, value);
      write_row<DIM>(args, s, row, all, r);
    } else {
      float* part = plan.part_out + (static_cast<int64_t>(slot) * kSplitRows + row) * DIM;
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        if (lane + 32 * i < DIM) part[lane + 32 * i] = value[i];
      if (lane == 0) plan.part_sum[slot * kSplitRows + row] = make_float2(largest, sum);
    }
  }
  if (first_block == last_block) {
    __syncthreads();
    return;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* arrived = plan.arrived + s.lane * args.shape.num_kv_heads + s.kv_head;
    const bool last = atomicAdd(arrived, 1) == last_block - first_block;
    if (last) *arrived = 0;  // for the next launch
    shared.last_to_arrive = last;
  }
  __syncthreads();
  if (shared.last_to_arrive == 0) return;
  __threadfence();
  const int blocks = last_block - first_block + 1;
  const auto slot_of = [&](int b) { return b == 0 ? 2 * first_block + 1 : 2 * (first_block + b); };
#pragma unroll
  for (int r = 0; r < SharedPart<DIM>::kRows; ++r) {
    const int row = warp + r * kWarps;
    if (row >= s.rows) break;
    float largest = kNone, sum = 0;
    for (int b = lane; b < blocks; b += 32)
      largest = fmaxf(largest, __ldcg(&plan.part_sum[slot_of(b) * kSplitRows + row]).x);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const float base = largest == kNone ? 0.0f : largest;
    // Each thread DIM / 32 columns, over the parts in their order.
    float value[kColumns] = {};
#pragma unroll 4
    for (int b = 0; b < blocks; ++b) {
      const float2 part = __ldcg(&plan.part_sum[slot_of(b) * kSplitRows + row]);
      const float keep = exp2f(part.x - base);
      sum += part.y * keep;
      const float* out =
          plan.part_out + (static_cast<int64_t>(slot_of(b)) * kSplitRows + row) * DIM;
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        if (lane + 32 * i < DIM) value[i] += __ldcg(out + lane + 32 * i) * keep;
    }
    all.add(r, largest, sum, value);
    write_row<DIM>(args, s, row, all, r);
  }
}

template <int DIM>
__global__ void __launch_bounds__(kThreads)
    split_kernel(const AttentionArgs args, const PlanView plan) {
  extern __shared__ __align__(16) char raw[];
  auto& shared = *reinterpret_cast<Shared<DIM>*>(raw);
  release_next();
  wait_for_previous();
  SplitStart start = plan.starts[blockIdx.x];
  while (start.unit < start.unit_end) {
    const Segment s = segment_of(args, start);
    Walk<DIM> walk;
    SharedPart<DIM> all;
    walk.run(args, s, shared, [&] { all.read(args, plan, s); });
    finish_segment(args, plan, s, walk, all, shared, start.chunk);
    __syncthreads();
    if (s.unit_end >= start.unit_end) return;
    seek(args, plan, s.unit_end, start);
  }
}

template <int DIM>
Status start(const AttentionArgs& args, const PlanView& plan, int32_t blocks,
             const LaunchOptions& launch) {
  constexpr size_t kBytes = sizeof(Shared<DIM>);
  ESP_RETURN_IF_ERROR(allow_shared("attention", split_kernel<DIM>, kBytes));
  return launch_kernel("attention", split_kernel<DIM>, dim3(static_cast<unsigned>(blocks)),
                       kThreads, kBytes, launch, args, plan);
}

}  // namespace

Status attention_split(const AttentionArgs& args, const PlanView& plan, int32_t blocks,
                       const LaunchOptions& launch) {
  switch (args.shape.head_dim) {
    case 64:
      return start<64>(args, plan, blocks, launch);
    case 80:
      return start<80>(args, plan, blocks, launch);
    case 96:
      return start<96>(args, plan, blocks, launch);
    case 128:
      return start<128>(args, plan, blocks, launch);
    default:
      return start<256>(args, plan, blocks, launch);
  }
}

}  // namespace espalier::kernels::cuda
