// Deterministic attention: each row's output depends on that row alone, bit for bit, whatever else
// is in the step, however a prompt is chunked, and whether its keys were computed or cached.
// Shapes and types as attention_decode.cu and attention_prefill.cu, with
// AttentionShape::fixed_split.
// Each row has one order of sums: positions are split at multiples of fixed_split, a split is
// walked in steps of 16 positions from its start, and partial results are merged first to last. A
// step of which a row sees nothing leaves the row's bits unchanged. Roundings are explicit (no
// contraction), and both kernels share the step:
//  deterministic_decode_kernel   entries of one token: a warp has an (entry, split, kv head); the
//  last
//                                split of a head to finish merges them
//  deterministic_prefill_kernel  other entries: tiles of 128 rows, 16 a warp, split after split
// Roof: as of the two files above. 64 x 4,096 on an H200 277 us (attention_decode.cu 295); a prompt
// of 4,096 858 us (attention_prefill_sm90.cu 308). History: docs/notes/attention_deterministic.md.
#include "kernels/attention/attention_device.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kStep = 16;
constexpr int kStages = 3;
constexpr int kPageSteps = 8;  // steps whose page numbers are kept

template <int DIM>
constexpr int kOneWarps = DIM > 128 ? 2 : 4;

// 16 rows as the tensor cores hold them: a thread has rows lane / 4 and lane / 4 + 8.
template <int DIM>
struct Rows {
  float out[DIM / 8][4];
  float largest[2], sum[2];  // sums of this thread's columns, until quad_sum()

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0;
    largest[0] = largest[1] = kMasked;
    sum[0] = sum[1] = 0;
  }
};

// The positions that a row sees: [first, last].
struct Visible {
  int first[2], last[2];
};

template <int DIM>
using KeyRow = bf16[kPitch<DIM>];

__device__ __forceinline__ float score_of(const AttentionArgs& args, float raw) {
  if (args.softcap > 0)
    return __fmul_rn(softcapped(__fmul_rn(raw, args.scale), args.softcap), kLog2E);
  return __fmul_rn(raw, __fmul_rn(args.scale, kLog2E));
}

// Accumulates sixteen positions from `begin` on.
template <int DIM>
__device__ __forceinline__ void take_step(const AttentionArgs& args,
                                          const uint32_t (&q)[DIM / 16][4], const KeyRow<DIM>* k,
                                          const KeyRow<DIM>* v, int begin, const Visible& visible,
                                          Rows<DIM>& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float scores[2][4] = {};
#pragma unroll
  for (int d = 0; d < DIM; d += 16) {
    uint32_t b[4];
    load_matrices(b, &k[lane % 8 + lane / 16 * 8][d + lane / 8 % 2 * 8]);
    mma(scores[0], q[d / 16], b[0], b[1]);
    mma(scores[1], q[d / 16], b[2], b[3]);
  }
  uint32_t weights[4];
  float keep[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float best = rows.largest[half], value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = begin + i / 2 * 8 + lane % 4 * 2 + i % 2;
      value[i] = score_of(args, scores[i / 2][half * 2 + i % 2]);
      if (position > visible.last[half] || position < visible.first[half]) value[i] = kMasked;
      best = fmaxf(best, value[i]);
    }
    best = quad_max(best);
    const float base = best == kMasked ? 0.0f : best;  // a row that has seen nothing yet
    keep[half] = exp2_fast(__fsub_rn(rows.largest[half], base));
    rows.largest[half] = best;
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = exp2_fast(__fsub_rn(value[i], base));
    const float added = __fadd_rn(__fadd_rn(value[0], value[1]), __fadd_rn(value[2], value[3]));
    rows.sum[half] = __fmaf_rn(rows.sum[half], keep[half], added);
    weights[half] = pack_bf16(value[0], value[1]);
    weights[2 + half] = pack_bf16(value[2], value[3]);
  }
  // Multiplying by one would leave the same bits.
  if (__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i) {
      rows.out[i][0] = __fmul_rn(rows.out[i][0], keep[0]);
      rows.out[i][1] = __fmul_rn(rows.out[i][1], keep[0]);
      rows.out[i][2] = __fmul_rn(rows.out[i][2], keep[1]);
      rows.out[i][3] = __fmul_rn(rows.out[i][3], keep[1]);
    }
  }
#pragma unroll
  for (int n = 0; n < DIM; n += 16) {
    uint32_t b[4];
    load_matrices_transposed(b, &v[lane % 16][n + lane / 16 * 8]);
    mma(rows.out[n / 8], weights, b[0], b[1]);
    mma(rows.out[n / 8 + 1], weights, b[2], b[3]);
  }
}

// How a partial result is merged: value = value * keep + partial * take.
struct Merge {
  float keep, take;
};
__device__ __forceinline__ Merge merge_sums(float& largest, float& sum, float part_largest,
                                            float partial_sum) {
  if (part_largest == kMasked) return {1.0f, 0.0f};
  const float best = fmaxf(largest, part_largest);
  const Merge m{exp2_fast(__fsub_rn(largest, best)), exp2_fast(__fsub_rn(part_largest, best))};
  largest = best;
  sum = __fmaf_rn(partial_sum, m.take, __fmul_rn(sum, m.keep));
  return m;
}
__device__ __forceinline__ float merged(float value, float part, const Merge& m) {
  return __fmaf_rn(part, m.take, __fmul_rn(value, m.keep));
}

// The factor that normalises a row's output.
__device__ __forceinline__ float row_factor(const AttentionArgs& args, int head, float largest,
                                            float sum) {
  if (args.sinks == nullptr) return __fdiv_rn(1.0f, sum);
  const float sink = __fmul_rn(args.sinks[head], kLog2E);
  const float all = fmaxf(largest, sink);
  const float keep = exp2_fast(__fsub_rn(largest, all));
  return __fdiv_rn(keep, __fmaf_rn(sum, keep, exp2_fast(__fsub_rn(sink, all))));
}

// Loads the queries of 16 rows from `first_row` on, of `rows` rows in all; zeros beyond them.
template <int DIM>
__device__ __forceinline__ void load_queries(const AttentionArgs& args, int query_begin,
                                             int kv_head, int first_row, int rows,
                                             uint32_t (&q)[DIM / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + half * 8;
    const bf16* from = static_cast<const bf16*>(args.q) + lane % 4 * 2;
    if (row < rows)
      from += (query_begin + row / group) * args.q_stride +
              int64_t{kv_head * group + row % group} * DIM;
#pragma unroll
    for (int d = 0; d < DIM / 16; ++d)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        q[d][half + 2 * i] =
            row < rows ? *reinterpret_cast<const uint32_t*>(from + d * 16 + i * 8) : 0;
  }
}

template <int DIM>
struct OneShared {
  struct Stage {
    KeyRow<DIM> k[kStep], v[kStep];
  };
  Stage stages[kOneWarps<DIM>][kStages];
  int32_t pages[kOneWarps<DIM>][kPageSteps][kStep];
};

// One split of one kv head of an entry of one token: a work item.
struct SplitWork {
  int entry, kv_head, splits, first_work, query, last;  // first_work: of this head's splits
  int begin, end;                                       // positions; begin at a whole step
};

__device__ SplitWork split_of(const AttentionArgs& args, const PlanView& plan, int work) {
  const EntryArrays& entries = args.entries;
  const int heads = args.shape.num_kv_heads, split = args.shape.fixed_split;
  SplitWork p;
  p.entry = bucket_of(plan.work_begin, entries.num_entries, work);
  const int entry_work = plan.work_begin[p.entry];
  p.kv_head = (work - entry_work) % heads;
  p.splits = (plan.work_begin[p.entry + 1] - entry_work) / heads;
  p.first_work = entry_work + p.kv_head;
  p.query = entries.query_begin[p.entry];
  p.last = entries.prefix_len[p.entry];
  const int seen = first_visible(p.last, args.shape.sliding_window);
  const int index = seen / split + (work - entry_work) / heads;
  p.begin = max(index * split, seen);
  p.end = min((index + 1) * split, p.last + 1);
  return p;
}

template <int DIM>
__device__ void walk(const AttentionArgs& args, const SplitWork& p, OneShared<DIM>& shared,
                     const uint32_t (&q)[DIM / 16][4], const Visible& visible, Rows<DIM>& rows) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int steps = (p.end - p.begin + kStep - 1) / kStep;
  const int32_t* pages = args.entries.page_tables + args.entries.page_begin[p.entry];
  const auto position_of = [&](int i) {  // the position that this thread looks up
    return min(p.begin + i * kStep + lane % kStep, p.end - 1);
  };
  const auto page_of = [&](int i) {
    return i < steps ? kv_page(args.kv, pages, position_of(i)) : 0;
  };
  const auto fetch = [&](int i, int page) {
    if (i < steps) {
      const int64_t offset = kv_offset(args.kv, page, position_of(i), p.kv_head);
      auto& stage = shared.stages[warp][i % kStages];
      constexpr int kVectors = DIM / 8;
      static_assert(kStep * kVectors % 32 == 0);
#pragma unroll
      for (int j = 0; j < kStep * kVectors / 32; ++j) {
        const int row = (j * 32 + lane) / kVectors, at = (j * 32 + lane) % kVectors * 8;
        const int64_t from = __shfl_sync(~0u, offset, row) + at;
        const bool known = p.begin + i * kStep + row < p.end;
        copy_async(&stage.k[row][at], static_cast<const bf16*>(args.kv.k) + from, known);
        copy_async(&stage.v[row][at], static_cast<const bf16*>(args.kv.v) + from, known);
      }
    }
    copy_commit();
  };
  const auto request_page = [&](int i) {
    if (i < steps && lane < kStep)
      copy_async_word(&shared.pages[warp][i % kPageSteps][lane],
                      pages + position_of(i) / args.kv.page_size);
  };
  int pages_ahead[kStages - 1];
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) pages_ahead[i] = page_of(i);
  for (int i = kStages - 1; i < 2 * kStages - 2; ++i) request_page(i);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch(i, pages_ahead[i]);
  for (int i = 0; i < steps; ++i) {
    copy_wait<kStages - 2>();
    __syncwarp();
    request_page(i + 2 * kStages - 2);
    fetch(i + kStages - 1, shared.pages[warp][(i + kStages - 1) % kPageSteps][lane % kStep]);
    const auto& stage = shared.stages[warp][i % kStages];
    take_step<DIM>(args, q, stage.k, stage.v, p.begin + i * kStep, visible, rows);
    __syncwarp();
  }
  copy_wait<0>();
}

// Merges all splits of an entry and kv head, which are in the workspace: row by row, from the first
// split to the last.
template <int DIM>
__device__ void merge_splits(const AttentionArgs& args, const PlanView& plan, const SplitWork& p) {
  constexpr int kColumns = (DIM + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = args.shape.num_kv_heads, group = args.shape.num_heads / heads;
  for (int row = 0; row < group; ++row) {
    float largest = kMasked, sum = 0, value[kColumns] = {};
#pragma unroll 4
    for (int s = 0; s < p.splits; ++s) {
      const int64_t at = (int64_t{p.first_work} + int64_t{s} * heads) * group + row;
      const float2 part = __ldcg(&plan.partial_sum[at]);
      const Merge m = merge_sums(largest, sum, part.x, part.y);
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        if (lane + 32 * i < DIM)
          value[i] = merged(value[i], __ldcg(&plan.partial_out[at * DIM + lane + 32 * i]), m);
    }
    const int head = p.kv_head * group + row;
    const float factor = row_factor(args, head, largest, sum);
    bf16* to = static_cast<bf16*>(args.out) + p.query * args.out_stride + int64_t{head} * DIM;
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      if (lane + 32 * i < DIM) to[lane + 32 * i] = __float2bfloat16_rn(__fmul_rn(value[i], factor));
  }
}

// Writes the rows of a token, or of a warp of a tile, to the output.
template <int DIM>
__device__ void write_rows(const AttentionArgs& args, int query_begin, int kv_head, int first_row,
                           int rows, const Rows<DIM>& done) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + half * 8;
    if (row >= rows) continue;
    const int head = kv_head * group + row % group;
    const float factor = row_factor(args, head, done.largest[half], done.sum[half]);
    bf16* to = static_cast<bf16*>(args.out) + (query_begin + row / group) * args.out_stride +
               int64_t{head} * DIM + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i)
      *reinterpret_cast<uint32_t*>(to + i * 8) = pack_bf16(
          __fmul_rn(done.out[i][half * 2], factor), __fmul_rn(done.out[i][half * 2 + 1], factor));
  }
}

template <int DIM>
__global__ void __launch_bounds__(kOneWarps<DIM> * 32)
    deterministic_decode_kernel(const AttentionArgs args, const PlanView plan) {
  extern __shared__ __align__(16) char raw[];
  auto& shared = *reinterpret_cast<OneShared<DIM>*>(raw);
  release_next();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = args.shape.num_kv_heads, group = args.shape.num_heads / heads;
  const int work_items = plan.header->num_work_items;
  // Neighbouring warps have the heads of the same positions.
  for (int work = static_cast<int>(blockIdx.x) * kOneWarps<DIM> + warp; work < work_items;
       work += static_cast<int>(gridDim.x) * kOneWarps<DIM>) {
    const SplitWork p = split_of(args, plan, work);
    const int window = args.shape.sliding_window;
    const int first = window > 0 ? max(0, p.last - window + 1) : 0;
    const Visible visible{{first, first}, {p.last, p.last}};
    uint32_t q[DIM / 16][4];
    load_queries<DIM>(args, p.query, p.kv_head, 0, group, q);
    Rows<DIM> rows;
    rows.clear();
    walk<DIM>(args, p, shared, q, visible, rows);
    __syncwarp();
    rows.sum[0] = quad_sum(rows.sum[0]);
    rows.sum[1] = quad_sum(rows.sum[1]);
    if (p.splits == 1) {
      // As merging a partial result into an empty one does: -0 becomes 0.
#pragma unroll
      for (int i = 0; i < DIM / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) rows.out[i][j] = __fadd_rn(rows.out[i][j], 0.0f);
      write_rows<DIM>(args, p.query, p.kv_head, 0, group, rows);
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + half * 8;
      if (row >= group) continue;
      const int64_t at = int64_t{work} * group + row;
      if (lane % 4 == 0) plan.partial_sum[at] = make_float2(rows.largest[half], rows.sum[half]);
#pragma unroll
      for (int i = 0; i < DIM / 8; ++i)
        *reinterpret_cast<float2*>(&plan.partial_out[at * DIM + i * 8 + lane % 4 * 2]) =
            make_float2(rows.out[i][half * 2], rows.out[i][half * 2 + 1]);
    }
    __threadfence();
    __syncwarp();
    int last = 0;
    if (lane == 0) {
      int32_t* arrived = plan.arrived + p.entry * heads + p.kv_head;
      last = atomicAdd(arrived, 1) == p.splits - 1 ? 1 : 0;
      if (last != 0) *arrived = 0;  // for the next launch
    }
    if (__shfl_sync(~0u, last, 0) == 0) continue;
    __threadfence();
    merge_splits<DIM>(args, plan, p);
  }
}

template <int DIM>
struct Tiles {
  static constexpr int kWarps = kTileRows / 16;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kKeys = DIM > 128 ? 32 : 64;  // positions of a block
  struct Stage {
    KeyRow<DIM> k[kKeys], v[kKeys];
  };
  struct Shared {
    Stage stages[2];
    int64_t offsets[2][kKeys];  // of the positions of the next two blocks
  };
};

template <int DIM>
__global__ void __launch_bounds__(Tiles<DIM>::kThreads)
    deterministic_prefill_kernel(const AttentionArgs args, const PlanView plan) {
  using L = Tiles<DIM>;
  constexpr int kVectors = DIM / 8;
  extern __shared__ __align__(16) char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  release_next();
  wait_for_previous();
  // An entry's last tiles have the most keys, so they start first.
  const int index = plan.header->num_tiles - 1 - static_cast<int>(blockIdx.y);
  if (index < 0) return;
  const EntryArrays& entries = args.entries;
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x);
  const int entry = bucket_of(plan.tile_begin, entries.num_entries, index);
  const int skipped = (index - plan.tile_begin[entry]) * (kTileRows / group);
  const int query_begin = entries.query_begin[entry] + skipped;
  const int tokens = min(kTileRows / group, entries.query_begin[entry + 1] - query_begin);
  const int first_position = entries.prefix_len[entry] + skipped;
  const int key_begin = first_visible(first_position, args.shape.sliding_window);
  const int key_end = first_position + tokens, rows = tokens * group;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t* pages = entries.page_tables + entries.page_begin[entry];

  const int blocks = (key_end - key_begin + L::kKeys - 1) / L::kKeys;
  const auto position_of = [&](int block) {  // the position that this thread looks up
    return min(key_begin + block * L::kKeys + static_cast<int>(threadIdx.x), key_end - 1);
  };
  const auto page_of = [&](int block) {
    const bool mine = block < blocks && static_cast<int>(threadIdx.x) < L::kKeys;
    return mine ? kv_page(args.kv, pages, position_of(block)) : 0;
  };
  const auto keep_offset = [&](int block, int page) {
    if (static_cast<int>(threadIdx.x) < L::kKeys)
      shared.offsets[block % 2][threadIdx.x] =
          kv_offset(args.kv, page, position_of(block), kv_head);
  };
  const auto fetch = [&](int block) {
    if (block < blocks) {
      typename L::Stage& stage = shared.stages[block % 2];
      const int begin = key_begin + block * L::kKeys;
      for (int i = threadIdx.x; i < L::kKeys * kVectors; i += L::kThreads) {
        const int row = i / kVectors, at = i % kVectors * 8;
        const int64_t from = shared.offsets[block % 2][row] + at;
        const bool known = begin + row < key_end;
        copy_async(&stage.k[row][at], static_cast<const bf16*>(args.kv.k) + from, known);
        copy_async(&stage.v[row][at], static_cast<const bf16*>(args.kv.v) + from, known);
      }
    }
    copy_commit();
  };

  const int first_row = warp * 16;
  uint32_t q[DIM / 16][4];
  load_queries<DIM>(args, query_begin, kv_head, first_row, rows, q);
  const int window = args.shape.sliding_window;
  Visible visible;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    visible.last[half] = first_position + (first_row + lane / 4 + half * 8) / group;
    visible.first[half] = window > 0 ? max(0, visible.last[half] - window + 1) : 0;
  }
  const int warp_last = min(first_position + (first_row + 15) / group, key_end - 1);
  const int warp_first = window > 0 ? max(0, first_position + first_row / group - window + 1) : 0;
  Rows<DIM> part, total;
  part.clear();
  total.clear();
  const auto end_split = [&] {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Merge m = merge_sums(total.largest[half], total.sum[half], part.largest[half],
                                 quad_sum(part.sum[half]));
#pragma unroll
      for (int i = 0; i < DIM / 8; ++i)
#pragma unroll
        for (int j = half * 2; j < half * 2 + 2; ++j)
          total.out[i][j] = merged(total.out[i][j], part.out[i][j], m);
    }
    part.clear();
  };

  keep_offset(0, page_of(0));
  keep_offset(1, page_of(1));
  __syncthreads();
  fetch(0);
  for (int block = 0; block < blocks; ++block) {
    copy_wait<0>();
    __syncthreads();
    fetch(block + 1);
    const int page_after = page_of(block + 2);  // read now, needed when this block is done
    typename L::Stage& stage = shared.stages[block % 2];
    const int begin = key_begin + block * L::kKeys;
    if (block > 0 && begin % args.shape.fixed_split == 0) end_split();
    for (int at = 0; at < L::kKeys;
         at += kStep) {  // skipping steps that no row of the warp sees changes no bits
      if (begin + at > warp_last || begin + at + kStep <= warp_first) continue;
      take_step<DIM>(args, q, &stage.k[at], &stage.v[at], begin + at, visible, part);
    }
    keep_offset(block + 2, page_after);
  }
  end_split();
  if (first_row < rows) write_rows<DIM>(args, query_begin, kv_head, first_row, rows, total);
}

template <int DIM>
Status start(const AttentionArgs& args, const PlanView& plan, int32_t multiprocessors,
             const LaunchOptions& launch) {
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  if (args.entries.max_query_tokens > 1) {
    const int tiles = args.entries.num_tokens / tokens_per_tile(group) + args.entries.num_entries;
    constexpr size_t kBytes = sizeof(typename Tiles<DIM>::Shared);
    ESP_RETURN_IF_ERROR(allow_shared("attention", deterministic_prefill_kernel<DIM>, kBytes));
    ESP_RETURN_IF_ERROR(launch_kernel(
        "attention", deterministic_prefill_kernel<DIM>,
        dim3(static_cast<unsigned>(args.shape.num_kv_heads), static_cast<unsigned>(tiles)),
        Tiles<DIM>::kThreads, kBytes, launch, args, plan));
  }
  constexpr size_t kBytes = sizeof(OneShared<DIM>);
  ESP_RETURN_IF_ERROR(allow_shared("attention", deterministic_decode_kernel<DIM>, kBytes));
  return launch_kernel("attention", deterministic_decode_kernel<DIM>,
                       dim3(static_cast<unsigned>(2 * multiprocessors)), kOneWarps<DIM> * 32,
                       kBytes, launch, args, plan);
}

}  // namespace

Status attention_deterministic(const AttentionArgs& args, const PlanView& plan,
                               int32_t multiprocessors, const LaunchOptions& launch) {
  switch (args.shape.head_dim) {
    case 64:
      return start<64>(args, plan, multiprocessors, launch);
    case 80:
      return start<80>(args, plan, multiprocessors, launch);
    case 96:
      return start<96>(args, plan, multiprocessors, launch);
    case 128:
      return start<128>(args, plan, multiprocessors, launch);
    default:
      return start<256>(args, plan, multiprocessors, launch);
  }
}

}  // namespace espalier::kernels::cuda
