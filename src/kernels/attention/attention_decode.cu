// Decode attention (split KV): entries whose query rows (tokens x group) fit into one tile of 16.
// q [tokens, heads, head_dim], K and V in pages, out as q; bfloat16, head_dim 64, 80, 96, 128, 256;
// or K and V of e4m3 (kv_e4m3.cuh), widened to float16 on their way into the matrix instruction.
// Parallel: the grid takes equal ranges of the plan's work items (attention_plan.h) of 16 positions
// of one kv head; the last block of an entry and kv head to finish merges the partial results.
// Pipeline: each of a block's 4 warps copies its own steps of 16 positions into its own stages of
// shared memory by cp.async, without block barriers, across the ends of spans; with
// AttentionArgs::prefetch_cached_kv the first stages are issued before wait_for_previous().
// Rows of a tile are query token x group: row r is head r % group of token r / group, so one matrix
// instruction serves a whole group. The kv side is the instruction's left operand.
// Roof: memory, 4 x head_dim x kv_heads bytes a position (of e4m3 half of it); 4.14 TB/s of 4.65 at
// 64 x 4,096 (91 % of one pass over the same bytes). History: docs/notes/attention_decode.md.
#include <algorithm>

#include "kernels/attention/attention_device.cuh"
#include "kernels/attention/kv_e4m3.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kStep = 16;          // positions of a warp's step
constexpr int kRequested = 4;      // steps whose page numbers are kept, at least kStages + 1
constexpr int kRound = 4;          // rows that the warps merge at once
constexpr float kLowest = -1e30f;  // the base of a row that has seen nothing
constexpr float kRescaleRise = 8;

// A step whose page numbers a warp has requested: positions [begin, min(begin + kStep, end)).
struct Step {
  int begin = 0, end = 0;  // none where end is 0
  int kv_head = 0, prefix_len = 0;
};

template <typename KV>
constexpr int kVector = 16 / sizeof(KV);  // elements of a copy
constexpr int kStages = 3;

template <int DIM, typename KV>
struct Shared {
  struct Stage {
    KV k[kStep][DIM + kVector<KV>];
    KV v[kStep][DIM + kVector<KV>];
  };
  Stage stages[kWarps][kStages];
  float outs[kWarps][kRound][DIM + 8];
  float largest[kWarps][kRound], sums[kWarps][kRound];
  Step steps[kWarps][kRequested];
  int32_t pages[kWarps][kRequested][kStep];
  int last_to_arrive;
};

// The work items of one entry and kv head that one block has.
struct WorkSpan {
  int entry, kv_head, rows;
  int work_begin, work_end;  // of the whole (entry, kv head)
  int begin, end;            // positions of this span
  int prefix_len, query_begin;
};

// The first position that the entry reads outside its shared prefix segments.
__device__ int first_own(const AttentionArgs& args, const DecodeStart& start) {
  return max(first_visible(start.prefix_len, args.shape.sliding_window), start.own_begin);
}

__device__ WorkSpan span_of(const AttentionArgs& args, const DecodeStart& start) {
  WorkSpan s;
  s.entry = start.entry;
  s.kv_head = (start.work - start.entry_work) / start.blocks;
  s.work_begin = start.entry_work + s.kv_head * start.blocks;
  s.work_end = s.work_begin + start.blocks;
  s.query_begin = start.query_begin;
  s.rows = start.tokens * (args.shape.num_heads / args.shape.num_kv_heads);
  s.prefix_len = start.prefix_len;
  const int first = first_own(args, start);
  s.begin = first + (start.work - s.work_begin) * kWorkPositions;
  s.end = min(s.prefix_len + start.tokens,
              first + (min(start.work_end, s.work_end) - s.work_begin) * kWorkPositions);
  return s;
}

__device__ bool shares(const AttentionArgs& args, const PlanView& plan) {
  return plan.entry_segments != nullptr && args.entries.shared.segments != nullptr;
}

// Moves `start` to work item `work`, which may belong to another entry.
__device__ void seek(const AttentionArgs& args, const PlanView& plan, int work,
                     DecodeStart& start) {
  const EntryArrays& entries = args.entries;
  start.work = work;
  if (work < start.entry_work + start.blocks * args.shape.num_kv_heads) return;
  do {  // entries without work items lie between
    ++start.entry;
  } while (plan.work_begin[start.entry + 1] <= work);
  start.entry_work = plan.work_begin[start.entry];
  start.blocks = (plan.work_begin[start.entry + 1] - start.entry_work) / args.shape.num_kv_heads;
  start.query_begin = entries.query_begin[start.entry];
  start.tokens = entries.query_begin[start.entry + 1] - start.query_begin;
  start.prefix_len = entries.prefix_len[start.entry];
  start.page_begin = entries.page_begin[start.entry];
  start.own_begin = shares(args, plan) ? entries.shared.own_begin[start.entry] : 0;
}

// The partial results of an entry's shared prefix segments, for this warp's rows, one column every
// 32. Mostly there is one segment; its partial result is loaded when a span begins and first used
// when the span ends.
template <int DIM, int TILES>
struct SegmentPartials {
  static constexpr int kColumns = (DIM + 31) / 32, kRows = TILES * 8 / kWarps;
  float value[kRows][kColumns];
  float largest[kRows], sum[kRows];

  __device__ void read(const AttentionArgs& args, const PlanView& plan, const WorkSpan& s) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = kMasked;
      sum[r] = 0;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) value[r][i] = 0;
    }
    if constexpr (DIM == 64 || DIM == 128)
      if (shares(args, plan)) take_runs(args, plan, s);
  }

  __device__ void take_runs(const AttentionArgs& args, const PlanView& plan, const WorkSpan& s) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
    bool first = true;
    for (int level = 0; level < kSegmentsPerEntry; ++level) {
      const EntrySegment run = plan.entry_segments[s.entry * kSegmentsPerEntry + level];
      if (run.blocks == 0) return;
      const int work = run.work + s.kv_head * run.work_per_head;
      const int first_block = work / run.chunk, last_block = (work + run.blocks - 1) / run.chunk;
      for (int block = first_block; block <= last_block; ++block) {
        const int64_t row0 =
            block == first_block
                ? (int64_t{run.member} * args.shape.num_kv_heads + s.kv_head) * group
                : plan.continued_rows + int64_t{block} * kTileRows + run.tile_row;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int row = warp + r * kWarps;
          if (row < s.rows) take(plan, row0 + row, lane, r, first);
        }
        first = false;
      }
    }
  }

  __device__ void take(const PlanView& plan, int64_t row, int lane, int r, bool first) {
    const float2 part = __ldcg(&plan.segment_sum[row]);
    float other[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      other[i] = lane + 32 * i < DIM ? __ldcg(&plan.segment_out[row * DIM + lane + 32 * i]) : 0.0f;
    if (!first) return add(r, part.x, part.y, other);
    largest[r] = part.x;
    sum[r] = part.y;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) value[r][i] = other[i];
  }

  // Merges another partial result into row r. REQUIRES: a score in one of the two.
  __device__ void add(int r, float other_largest, float other_sum, const float (&other)[kColumns]) {
    const float best = fmaxf(largest[r], other_largest);
    const float keep = exp2f(largest[r] - best), take = exp2f(other_largest - best);
    largest[r] = best;
    sum[r] = sum[r] * keep + other_sum * take;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) value[r][i] = value[r][i] * keep + other[i] * take;
  }
};

// The exponent of a power of two; -1 of other numbers.
__device__ int bits_of(int number) { return __popc(number) == 1 ? __ffs(number) - 1 : -1; }

// Copies a warp's steps of all spans of the block, one after the other, kStages ahead of the
// arithmetic, across the ends of spans. Page numbers are copied into shared memory together with
// the keys of kStages steps before theirs, so that no register waits for them.
template <int DIM, typename KV>
struct KvFeed {
  const AttentionArgs& args;
  const PlanView& plan;
  Shared<DIM, KV>& shared;
  DecodeStart start;  // of the span that is requested
  const int32_t* pages = nullptr;
  int begin = 0, end = 0, kv_head = 0;  // of its positions those not requested yet
  uint32_t requested = 0;
  int stage = 0;
  int page_bits;  // of a position, the row in its page; -1: pages are not of a power of two
  // In units of 16 bytes: 32 bits reach 64 GiB.
  uint32_t page_stride, token_stride, head_stride;

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  // REQUIRES: `first` is the block's own start and has work items.
  __device__ KvFeed(const AttentionArgs& a, const PlanView& p, const DecodeStart& first,
                    Shared<DIM, KV>& s)
      : args(a),
        plan(p),
        shared(s),
        start(first),
        page_bits(bits_of(a.kv.page_size)),
        page_stride(static_cast<uint32_t>(a.kv.page_stride / kVector<KV>)),
        token_stride(static_cast<uint32_t>(a.kv.token_stride / kVector<KV>)),
        head_stride(static_cast<uint32_t>(a.kv.head_stride / kVector<KV>)) {
    enter();
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) request();
    copy_commit();
    copy_wait<0>();
    __syncwarp();
  }

  __device__ void enter() {
    const WorkSpan s = span_of(args, start);
    pages = args.entries.page_tables + start.page_begin;
    begin = s.begin + warp() * kStep;
    end = s.end;
    kv_head = s.kv_head;
  }

  __device__ int page_of(int position) const {
    return page_bits >= 0 ? position >> page_bits : position / args.kv.page_size;
  }

  __device__ void request() {
    while (begin >= end) {
      const int next = start.entry_work + (kv_head + 1) * start.blocks;
      if (next >= start.work_end) break;
      seek(args, plan, next, start);
      enter();
    }
    const uint32_t slot = requested++ % kRequested;
    const bool some = begin < end;
    if (lane() == 0)
      shared.steps[warp()][slot] = {begin, some ? end : 0, kv_head, start.prefix_len};
    if (some && lane() < kStep)
      copy_async_word(&shared.pages[warp()][slot][lane()],
                      pages + page_of(min(begin + lane(), end - 1)));
    if (some) begin += kWarps * kStep;
  }

  // Whether all positions of the next step to be copied lie before what this forward pass writes.
  __device__ bool next_is_cached() const {
    const Step step = shared.steps[warp()][(requested - kStages) % kRequested];
    return min(step.begin + kStep, step.end) <= step.prefix_len - args.fresh_positions;
  }

  // Issues one group of copies: a step's keys and values, and page numbers of a later step.
  __device__ void issue() {
    const uint32_t slot = (requested - kStages) % kRequested;
    const Step step = shared.steps[warp()][slot];
    if (step.end > 0) {
      const int position = min(step.begin + lane() % kStep, step.end - 1);
      const auto page = static_cast<uint32_t>(shared.pages[warp()][slot][lane() % kStep]);
      const auto row = static_cast<uint32_t>(position - page_of(position) * args.kv.page_size);
      const uint32_t offset = page * page_stride + row * token_stride +
                              static_cast<uint32_t>(step.kv_head) * head_stride;
      copy(shared.stages[warp()][stage], offset, step.end - step.begin);
    }
    __syncwarp();  // every lane has read what request() overwrites
    request();
    copy_commit();
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }

  // offset: of the row of position lane() % kStep. known: number of rows that exist.
  __device__ void copy(typename Shared<DIM, KV>::Stage& to, uint32_t offset, int known) const {
    constexpr int kVectors = DIM / kVector<KV>;
    static_assert(kStep * kVectors % 32 == 0);
    const auto* k = static_cast<const uint4*>(args.kv.k);
    const auto* v = static_cast<const uint4*>(args.kv.v);
#pragma unroll
    for (int j = 0; j < kStep * kVectors / 32; ++j) {
      // Where a row's threads divide a warp, this form shows the compiler what is the same for all
      // j.
      constexpr bool kWhole = 32 % kVectors == 0;
      const int row =
          kWhole ? j * (32 / kVectors) + lane() / kVectors : (j * 32 + lane()) / kVectors;
      const int at = kWhole ? lane() % kVectors : (j * 32 + lane()) % kVectors;
      const uint32_t from = __shfl_sync(~0u, offset, row);
      copy_async(&to.k[row][at * kVector<KV>], k + at + from, row < known);
      copy_async(&to.v[row][at * kVector<KV>], v + at + from, row < known);
    }
  }
};

// One warp's online softmax over its steps of a span. Keys and values are the left operand of the
// matrix instruction (16 positions, or 16 of their elements), queries and weights the right one, 8
// rows a tile: that takes fewer instructions than query rows on the left, and a step is a chain of
// dependent instructions.
template <int DIM, int TILES, typename KV>
struct WarpAttention {
  // State of rows t * 8 + lane % 4 * 2 and the next one; `sum` covers this thread's positions.
  // `base` is the exponent base of a row's weights: a score that was once the row's largest. It
  // moves only when a score exceeds it by more than kRescaleRise.
  float base[TILES][2], sum[TILES][2];
  float out[TILES][DIM / 16][4];
  uint32_t q[TILES][DIM / 16][2];  // the queries, as the tensor cores take them

  __device__ void run(const AttentionArgs& args, const WorkSpan& s, KvFeed<DIM, KV>& feed) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      base[t][0] = base[t][1] = kLowest;
      sum[t][0] = sum[t][1] = 0;
#pragma unroll
      for (int i = 0; i < DIM / 16; ++i)
        out[t][i][0] = out[t][i][1] = out[t][i][2] = out[t][i][3] = 0;
    }
    for (int begin = s.begin + feed.warp() * kStep; begin < s.end; begin += kWarps * kStep) {
      copy_wait<kStages - 1>();
      __syncwarp();
      take(args, s, feed.shared.stages[feed.warp()][feed.stage], begin);
      __syncwarp();
      feed.issue();
    }
  }

  __device__ void load_queries(const AttentionArgs& args, const WorkSpan& s) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      const int row = t * 8 + lane / 4;
      const bf16* from = static_cast<const bf16*>(args.q) + lane % 4 * (kCodes<KV> ? 4 : 2);
      if (row < s.rows)
        from += (s.query_begin + row / group) * args.q_stride +
                int64_t{s.kv_head * group + row % group} * DIM;
#pragma unroll
      for (int k = 0; k < DIM / 16; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          constexpr int kApart = kCodes<KV> ? 2 : 8;
          const uint32_t pair =
              row < s.rows ? *reinterpret_cast<const uint32_t*>(from + k * 16 + i * kApart) : 0;
          q[t][k][i] = kCodes<KV> ? pack_half2(low_half(pair), high_half(pair)) : pair;
        }
    }
  }

  // Adds to the scores of 16 keys.
  __device__ void add_scores(const typename Shared<DIM, KV>::Stage& stage,
                             float (&chains)[TILES][2][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kLoaded = 2 * kVector<KV>;  // elements of a key that one load has
#pragma unroll
    for (int l = 0; l < DIM / kLoaded; ++l) {
      uint32_t loaded[4];
      load_matrices(loaded, &stage.k[lane % 16][l * kLoaded + lane / 16 * kVector<KV>]);
      if constexpr (kCodes<KV>) {
#pragma unroll
        for (int k = 2 * l; k < 2 * l + 2; ++k) {
          uint32_t a[4];
          key_fragment(loaded, k % 2, a);
#pragma unroll
          for (int t = 0; t < TILES; ++t) mma_half(chains[t][k % 2], a, q[t][k][0], q[t][k][1]);
        }
      } else {
#pragma unroll
        for (int t = 0; t < TILES; ++t) mma(chains[t][l % 2], loaded, q[t][l][0], q[t][l][1]);
      }
    }
  }

  // Adds 16 values by their weights to the output.
  __device__ void add_values(const typename Shared<DIM, KV>::Stage& stage,
                             const uint32_t (&weights)[TILES][2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (kCodes<KV>) {
#pragma unroll
      for (int l = 0; l < DIM / 32; ++l) {
        uint32_t loaded[4];
        load_matrices_transposed(loaded, &stage.v[lane % 16][l * 32 + lane / 16 * 16]);
#pragma unroll
        for (int n = 2 * l; n < 2 * l + 2; ++n) {
          uint32_t a[4];
          value_fragment(loaded, n % 2, a);
#pragma unroll
          for (int t = 0; t < TILES; ++t) mma_half(out[t][n], a, weights[t][0], weights[t][1]);
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < DIM / 16; ++n) {
        uint32_t a[4];
        load_matrices_transposed(a, &stage.v[lane % 8 + lane / 16 * 8][n * 16 + lane / 8 % 2 * 8]);
#pragma unroll
        for (int t = 0; t < TILES; ++t) mma(out[t][n], a, weights[t][0], weights[t][1]);
      }
    }
  }

  // The element of a head that `out[.][n / 2][n % 2 * 2 + i]` belongs to, i being the row.
  __device__ static int element_of(int n, int lane) {
    return kCodes<KV> ? n / 2 * 16 + lane / 4 * 2 + n % 2 : n * 8 + lane / 4;
  }

  __device__ void take(const AttentionArgs& args, const WorkSpan& s,
                       const typename Shared<DIM, KV>::Stage& stage, int begin) {
    float chains[TILES][2][4] = {};
    add_scores(stage, chains);
    float value[TILES][4];  // positions lane / 4 (0, 1) and 8 further, of each two rows
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) value[t][i] = chains[t][0][i] + chains[t][1][i];
    if (args.softcap > 0) {
#pragma unroll
      for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          value[t][i] = softcapped(value[t][i] * args.scale, args.softcap) * kLog2E;
    } else {
#pragma unroll
      for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) value[t][i] *= args.scale * kLog2E;
    }
    if (begin + kStep > min(s.prefix_len + 1, s.end) || args.shape.sliding_window > 0)
      mask(args, s, begin, value);
    bool rises = false;
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) rises |= value[t][i] > base[t][i % 2] + kRescaleRise;
    if (__any_sync(~0u, rises)) move_base(value);
    uint32_t weights[TILES][2];
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float first = exp2_fast(value[t][half * 2] - base[t][0]);
        const float second = exp2_fast(value[t][half * 2 + 1] - base[t][1]);
        sum[t][0] += first;
        sum[t][1] += second;
        weights[t][half] =
            transposed(kCodes<KV> ? pack_half2(first, second) : pack_bf16(first, second));
      }
    add_values(stage, weights);
  }

  __device__ static void mask(const AttentionArgs& args, const WorkSpan& s, int begin,
                              float (&value)[TILES][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
    const int window = args.shape.sliding_window;
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = begin + lane / 4 + i / 2 * 8;
        const int last = s.prefix_len + (t * 8 + lane % 4 * 2 + i % 2) / group;
        const int first = window > 0 ? last - window + 1 : 0;
        if (position > last || position < first || position >= s.end) value[t][i] = kMasked;
      }
  }

  __device__ void move_base(const float (&value)[TILES][4]) {
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float best = fmaxf(value[t][r], value[t][2 + r]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          best = fmaxf(best, __shfl_xor_sync(~0u, best, step));
        if (best <= base[t][r] + kRescaleRise) best = base[t][r];
        const float keep = exp2_fast(base[t][r] - best);
        base[t][r] = best;
        sum[t][r] *= keep;
#pragma unroll
        for (int n = 0; n < DIM / 16; ++n) {
          out[t][n][r] *= keep;
          out[t][n][2 + r] *= keep;
        }
      }
  }

  // Of row t * 8 + lane % 4 * 2 + r over all positions.
  __device__ float whole_sum(int t, int r) const {
    float all = sum[t][r];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) all += __shfl_xor_sync(~0u, all, step);
    return all;
  }
};

// Writes a finished row of an entry and kv head: largest score and sum (base 2), and the output
// before division.
template <int DIM, int TILES>
__device__ void write_row(const AttentionArgs& args, const WorkSpan& s, int row,
                          const SegmentPartials<DIM, TILES>& all, int r) {
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
  for (int i = 0; i < all.kColumns; ++i)
    if (lane + 32 * i < DIM) to[lane + 32 * i] = __float2bfloat16_rn(all.value[r][i] * factor);
}

// Merges the partial results of all blocks of an entry and kv head into the output. A warp's rows
// go side by side: their loads do not wait for each other, so that 16 rows take as long as 4.
template <int DIM, int TILES>
__device__ void merge_blocks(const AttentionArgs& args, const PlanView& plan, const WorkSpan& s,
                             SegmentPartials<DIM, TILES>& all, int first_block, int last_block) {
  constexpr int kColumns = all.kColumns, kRows = all.kRows;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int blocks = last_block - first_block + 1;
  const auto row_of = [&](int b, int r) {
    const int slot = b == 0 ? 2 * first_block + 1 : 2 * (first_block + b);
    return static_cast<int64_t>(slot) * kDecodeRows + warp + r * kWarps;
  };
  const auto has_row = [&](int r) { return warp + r * kWarps < s.rows; };
  float largest[kRows], base[kRows], sum[kRows], value[kRows][kColumns] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) largest[r] = kMasked;
  for (int b = lane; b < blocks; b += 32)
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (has_row(r)) largest[r] = fmaxf(largest[r], __ldcg(&plan.partial_sum[row_of(b, r)]).x);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(~0u, largest[r], step));
    base[r] = largest[r] == kMasked ? 0.0f : largest[r];
    sum[r] = 0;
  }
  // Each thread has DIM / 32 columns and goes over the partial results in their order.
#pragma unroll(TILES == 1 ? 4 : 2)
  for (int b = 0; b < blocks; ++b) {
    float2 part[kRows];
    float out[kRows][kColumns];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = row_of(b, r);
      part[r] = has_row(r) ? __ldcg(&plan.partial_sum[row]) : make_float2(kMasked, 0);
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        out[r][i] = has_row(r) && lane + 32 * i < DIM
                        ? __ldcg(plan.partial_out + row * DIM + lane + 32 * i)
                        : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float keep = exp2f(part[r].x - base[r]);
      sum[r] += part[r].y * keep;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) value[r][i] += out[r][i] * keep;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (!has_row(r)) break;
    all.add(r, largest[r], sum[r], value[r]);
    write_row(args, s, warp + r * kWarps, all, r);
  }
}

// Whether so many others of the blocks that count up `arrived` have come before; then their partial
// results can be read, and the count is 0 for the next launch. Of all threads of a block.
__device__ bool arrives_last(int32_t* arrived, int others, int& shared_last) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const bool last = atomicAdd(arrived, 1) == others;
    if (last) *arrived = 0;
    shared_last = last;
  }
  __syncthreads();
  if (shared_last == 0) return false;
  __threadfence();
  return true;
}

// Merges the warps' partial results: into the output where this block has the whole entry and kv
// head, else into the workspace, where the last block to arrive merges those of all blocks.
template <int DIM, int TILES, typename KV>
__device__ void finish_span(const AttentionArgs& args, const PlanView& plan, const WorkSpan& s,
                            const WarpAttention<DIM, TILES, KV>& walk,
                            SegmentPartials<DIM, TILES>& all, Shared<DIM, KV>& shared, int chunk) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_block = s.work_begin / chunk, last_block = (s.work_end - 1) / chunk;
  const int block = static_cast<int>(blockIdx.x);
  const int slot = 2 * block + (block == first_block ? 1 : 0);
  constexpr int kColumns = all.kColumns;
  static_assert(kRound == kWarps);
#pragma unroll
  for (int r = 0; r < TILES * 8 / kRound; ++r) {
    if (r * kRound >= s.rows) break;
    const int t = r / 2, at = lane % 2 * 2;
    const float sums[2] = {walk.whole_sum(t, 0), walk.whole_sum(t, 1)};
    __syncthreads();  // the round before is done
    if (lane % 4 / 2 == r % 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (lane / 4 == 0) {
          shared.largest[warp][at + i] = walk.base[t][i];
          shared.sums[warp][at + i] = sums[i];
        }
#pragma unroll
        for (int n = 0; n < DIM / 8; ++n)
          shared.outs[warp][at + i][walk.element_of(n, lane)] = walk.out[t][n / 2][n % 2 * 2 + i];
      }
    }
    __syncthreads();
    const int row = warp + r * kRound;
    if (row >= s.rows) continue;
    float largest = kMasked, sum = 0, keep[kWarps], value[kColumns];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared.largest[w][warp]);
    const float base = largest == kMasked ? 0.0f : largest;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      keep[w] = exp2f(shared.largest[w][warp] - base);
      sum += shared.sums[w][warp] * keep[w];
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      value[i] = 0;
      if (lane + 32 * i < DIM)
#pragma unroll
        for (int w = 0; w < kWarps; ++w) value[i] += shared.outs[w][warp][lane + 32 * i] * keep[w];
    }
    if (first_block == last_block) {
      all.add(r, largest, sum, value);
      write_row(args, s, row, all, r);
    } else {
      float* part = plan.partial_out + (static_cast<int64_t>(slot) * kDecodeRows + row) * DIM;
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        if (lane + 32 * i < DIM) part[lane + 32 * i] = value[i];
      if (lane == 0) plan.partial_sum[slot * kDecodeRows + row] = make_float2(largest, sum);
    }
  }
  if (first_block == last_block) return;
  int32_t* const arrived = plan.arrived + s.entry * args.shape.num_kv_heads + s.kv_head;
  if (arrives_last(arrived, last_block - first_block, shared.last_to_arrive))
    merge_blocks(args, plan, s, all, first_block, last_block);
}

template <int DIM, int TILES, typename KV>
__global__ void __launch_bounds__(kThreads, kCodes<KV> ? kCodeBlocks : 1)
    decode_kernel(const AttentionArgs args, const PlanView plan) {
  extern __shared__ __align__(16) char raw[];
  auto& shared = *reinterpret_cast<Shared<DIM, KV>*>(raw);
  release_next();
  if (!args.prefetch_cached_kv) wait_for_previous();
  DecodeStart start = plan.starts[blockIdx.x];
  if (start.work >= start.work_end) return wait_for_previous();
  KvFeed<DIM, KV> feed(args, plan, start, shared);
  bool waits = args.prefetch_cached_kv;
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) {
    if (waits && !feed.next_is_cached()) {
      wait_for_previous();
      waits = false;
    }
    feed.issue();
  }
  if (waits) wait_for_previous();
  while (true) {
    const WorkSpan s = span_of(args, start);
    WarpAttention<DIM, TILES, KV> walk;
    SegmentPartials<DIM, TILES> all;
    walk.load_queries(args, s);
    all.read(args, plan, s);
    walk.run(args, s, feed);
    finish_span(args, plan, s, walk, all, shared, start.chunk);
    if (s.work_end >= start.work_end) return;
    seek(args, plan, s.work_end, start);
  }
}

template <int DIM, int TILES, typename KV>
Status start(const AttentionArgs& args, const PlanView& plan, int32_t blocks,
             const LaunchOptions& launch) {
  constexpr size_t kBytes = sizeof(Shared<DIM, KV>);
  ESP_RETURN_IF_ERROR(allow_shared("attention", decode_kernel<DIM, TILES, KV>, kBytes));
  return launch_kernel("attention", decode_kernel<DIM, TILES, KV>,
                       dim3(static_cast<unsigned>(blocks)), kThreads, kBytes, launch, args, plan);
}

template <int DIM, typename KV = bf16>
Status start(const AttentionArgs& args, const PlanView& plan, int32_t blocks,
             const LaunchOptions& launch) {
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int tokens = std::min(args.entries.max_query_tokens, kDecodeRows / group);
  return tokens * group <= 8 ? start<DIM, 1, KV>(args, plan, blocks, launch)
                             : start<DIM, 2, KV>(args, plan, blocks, launch);
}

}  // namespace

Status attention_decode(const AttentionArgs& args, const PlanView& plan, int32_t blocks,
                        const LaunchOptions& launch) {
  if (args.shape.kv_e4m3)
    return args.shape.head_dim == 64 ? start<64, uint8_t>(args, plan, blocks, launch)
                                     : start<128, uint8_t>(args, plan, blocks, launch);
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
