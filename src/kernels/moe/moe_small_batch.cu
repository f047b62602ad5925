// Mixture of experts for up to four rows on Hopper, in three kernels chained by PDL; shapes and
// types in cuda_small_batch.h, bfloat16 (weights also e4m3) with float32 scores and sums.
// moe_score: a warp computes an expert's score of a row, and normalises the row for itself; its row
// of the router's matrix is loaded before wait_for_previous().
// moe_gate_up: every block selects the top-k experts from the scores; then each warp takes pairs (a
// row of gate and the same of up) interleaved over all selected experts, the shared expert's first.
// Rows that selected the same expert are multiplied while a pair is in shared memory.
// moe_down: as gate_up; a warp has two outputs of all selected experts one after the other, so the
// weighted sum over experts needs no exchange. It starts once the scores exist, so it selects
// experts and fills its rings while gate_up still streams.
// Pipeline: each warp has a ring buffer of its own that its first lane fills by TMA bulk copies; no
// warp waits for another.
// Roof: memory, the weights of the selected experts once. Qwen3-30B-A3B at one row: 38 us a layer,
// 17.6 by bytes; a step 3.46 ms instead of 5.01. History: docs/notes/moe_small_batch.md.
#include <algorithm>

#include "kernels/activation/activation.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/e4m3.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/linear/warp_sums.cuh"
#include "kernels/moe/one_row_coded_experts.h"
#include "kernels/moe/small_batch_experts.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kScoreWarps = 4;
constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kMaxTileInputs = 2048, kMinTileInputs = 512;  // of a tile, of each of its two rows
constexpr int kMaxStages = 8;                               // tiles of a warp

struct Params {
  SmallBatchMoeArgs args;
  int tile_inputs, num_stages;  // of the kernel's ring buffers
};

// W below: of the experts' weights, bf16 or uint8_t for codes of e4m3.
template <typename W>
constexpr bool kHasScales = sizeof(W) == 1;

// --- scores ---

// Shared memory: of each warp a row of the router's matrix, [dim] of float, and the norm's [dim].
size_t score_bytes(int dim) { return size_t{kScoreWarps} * static_cast<size_t>(dim) * 6; }

// Every lane copies what it reads itself, so no lane waits for another.
__global__ void __launch_bounds__(kScoreWarps * 32) moe_score_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const SmallBatchMoeArgs& args = p.args;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int experts = args.router.num_experts, dim = args.dim;
  const int output = static_cast<int>(blockIdx.x) * kScoreWarps + warp;
  const int64_t row = blockIdx.y;
  const bool gate = output == experts;  // the shared expert's
  const bool works = output < experts || (gate && args.shared_gate_weights != nullptr);
  auto* weights = reinterpret_cast<float*>(raw + warp * dim * 6);
  auto* norm = reinterpret_cast<bf16*>(weights + dim);
  release_next();
  if (works) {
    const float* from =
        gate ? args.shared_gate_weights : args.router_weights + int64_t{output} * dim;
    for (int at = lane * 8; at < dim; at += 256) {
      copy_async(weights + at, from + at, true);
      copy_async(weights + at + 4, from + at + 4, true);
      if (args.norm_weight != nullptr) copy_async(norm + at, bf16s(args.norm_weight) + at, true);
    }
    copy_commit();
  }
  wait_for_previous();
  if (!works) return;
  const bf16* x = bf16s(args.x) + row * dim;
  float scale = 1;
  if (args.norm_weight != nullptr) {
    float squares = 0;
#pragma unroll 8
    for (int at = lane * 8; at < dim; at += 256) {
      float value[8];
      load8(x + at, value);
#pragma unroll
      for (int i = 0; i < 8; ++i) squares += value[i] * value[i];
    }
    scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + args.norm_epsilon);
  }
  copy_wait<0>();
  float sum = 0;
#pragma unroll 4
  for (int at = lane * 8; at < dim; at += 256) {
    float value[8], weight[8];
    load8(x + at, value);
    if (args.norm_weight != nullptr) {
      load8(norm + at, weight);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        value[i] = to_float(from_float<bf16>(value[i] * scale * (weight[i] + args.norm_offset)));
      if (output == 0) store8(static_cast<bf16*>(args.normed) + row * dim + at, value);
    }
    load8(weights + at, weight);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += value[i] * weight[i];
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  if (gate)
    args.shared_gate[row] = sum;
  else
    args.scores[row * experts + output] =
        sum + (args.router_bias == nullptr ? 0.0f : args.router_bias[output]);
}

// --- rings ---

// A warp's ring buffer of tiles, each two rows of up to tile_inputs.
template <typename W>
struct RingBuffer {
  W* stages;
  Barrier* full;
  int num_stages, stage_elements;
  int stage = 0;
  uint32_t parity = 0;

  __device__ W* at(int i) const { return stages + i * stage_elements; }
  __device__ const W* wait() const {
    barrier_wait(full[stage], parity);
    return at(stage);
  }
  __device__ void next() {
    if (++stage == num_stages) stage = 0, parity ^= 1;
  }
};

// Shared memory: rings [warp][num_stages][2][tile_inputs], barriers [warp][num_stages] and one
// more, the selected experts, words of the selection, then `rows` of the kernel.
struct SharedLayout {
  static constexpr size_t kBarrierBytes = (kWarps * kMaxStages + 2) * sizeof(Barrier);
  static constexpr size_t kChosenBytes = (sizeof(ChosenExperts) + 15) / 16 * 16;
  __host__ __device__ static size_t words_bytes(const SmallBatchMoeArgs& args) {
    return (static_cast<size_t>(args.rows * route_words(args.router)) * 4 + 15) / 16 * 16;
  }
  static size_t fixed_bytes(const SmallBatchMoeArgs& args, size_t row_elements) {
    return kBarrierBytes + kChosenBytes + words_bytes(args) + row_elements * 2;
  }
};
template <typename W>
struct Shared : SharedLayout {
  W* rings;
  Barrier* barriers;
  ChosenExperts* chosen;
  float* words;
  bf16* rows;

  __device__ Shared(char* at, const Params& p) {
    rings = reinterpret_cast<W*>(at);
    at += kWarps * p.num_stages * p.tile_inputs * 2 * static_cast<int>(sizeof(W));
    barriers = reinterpret_cast<Barrier*>(at);
    at += kBarrierBytes;
    chosen = reinterpret_cast<ChosenExperts*>(at);
    at += kChosenBytes;
    words = reinterpret_cast<float*>(at);
    at += words_bytes(p.args);
    rows = reinterpret_cast<bf16*>(at);
  }
  __device__ Barrier& rows_full() const { return barriers[kWarps * kMaxStages]; }
  __device__ RingBuffer<W> ring_buffer(const Params& p, int warp) const {
    const int elements = 2 * p.tile_inputs;
    return {.stages = rings + warp * p.num_stages * elements,
            .full = barriers + warp * kMaxStages,
            .num_stages = p.num_stages,
            .stage_elements = elements};
  }
};

template <typename W>
__device__ void init_barriers(const Shared<W>& shared) {
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i <= kWarps * kMaxStages; ++i) barrier_init(shared.barriers[i], 1);
    barrier_init_done();
  }
  __syncthreads();
}

// --- gate and up ---

// The next tile that a warp has to copy.
struct UpCursor {
  int row_pair, begin;
};

// Copies the next tile of a pair. Pairs of the shared expert come first: they can be copied before
// the selection is known.
template <typename W>
__device__ void issue_pair(const Params& p, const ChosenExperts& chosen, const UpCursor& cursor,
                           W* to, Barrier& full) {
  const SmallBatchMoeArgs& args = p.args;
  const int64_t dim = args.dim;
  const W* gate;
  int ffn = args.shared_ffn;
  if (cursor.row_pair < ffn) {
    gate = static_cast<const W*>(args.shared_gate_up) + cursor.row_pair * dim;
  } else {
    const int at = cursor.row_pair - ffn;
    ffn = args.ffn;
    const int active = at / ffn;
    gate = static_cast<const W*>(args.gate_up) +
           (int64_t{chosen.active_experts[active]} * 2 * ffn + (at - active * ffn)) * dim;
  }
  gate += cursor.begin;
  const uint32_t bytes =
      static_cast<uint32_t>(min(p.tile_inputs, args.dim - cursor.begin)) * sizeof(W);
  barrier_expect(full, 2 * bytes);
  bulk_copy(to, gate, bytes, full);
  bulk_copy(to + p.tile_inputs, gate + ffn * dim, bytes, full);
}

// What the sums of gate and of up are multiplied with, and what is added then.
struct UpOutput {
  float gate_scale = 1, up_scale = 1, gate_bias = 0, up_bias = 0;
};

template <typename W>
struct UpWarp {
  const Params& p;
  const Shared<W>& shared;
  const int lane, stride;
  RingBuffer<W> ring_buffer;
  UpCursor cursor;
  int row_pairs;  // of all active experts and the shared one

  __device__ void issue(int stage) {
    if (cursor.row_pair >= row_pairs) return;
    if (lane == 0)
      issue_pair(p, *shared.chosen, cursor, ring_buffer.at(stage), ring_buffer.full[stage]);
    cursor.begin += p.tile_inputs;
    if (cursor.begin >= p.args.dim) cursor.begin = 0, cursor.row_pair += stride;
  }

  // Computes one output of up to N rows from their inputs in shared memory (`rows`), to `out`.
  template <int N>
  __device__ __forceinline__ void multiply(const bf16* const (&rows)[N], bf16* const (&out)[N],
                                           int count, const UpOutput& output) {
    const int dim = p.args.dim;
    float sums[2 * N] = {};
#pragma unroll 1
    for (int begin = 0; begin < dim; begin += p.tile_inputs) {
      const W* gate = ring_buffer.wait();
      const W* up = gate + p.tile_inputs;
      const int inputs = min(p.tile_inputs, dim - begin);
#pragma unroll(N == 1 ? 4 : 1)
      for (int k = lane * 8; k < inputs; k += 256) {
        float a[8], b[8];
        load8(gate + k, a);
        load8(up + k, b);
#pragma unroll
        for (int row = 0; row < N; ++row) {
          float value[8];
          load8(rows[row] + begin + k, value);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            sums[2 * row] += a[i] * value[i];
            sums[2 * row + 1] += b[i] * value[i];
          }
        }
      }
      __syncwarp();
      issue(ring_buffer.stage);
      ring_buffer.next();
    }
    add_by_halves(sums);
    constexpr int kLanes = 16 / N;  // lanes that hold the same sum
    const float up = __shfl_down_sync(~0u, sums[0], kLanes) * output.up_scale + output.up_bias;
    const int row = lane / (2 * kLanes);
    if (lane % (2 * kLanes) != 0 || row >= count) return;
    const float gate = sums[0] * output.gate_scale + output.gate_bias;
    const float value = activated(p.args.activation, gate, up, p.args.limit);
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (row == i) *out[i] = __float2bfloat16_rn(value);
  }

  template <int N>
  __device__ void multiply_rows(int row_pair, int count) {
    const SmallBatchMoeArgs& args = p.args;
    const ChosenExperts& chosen = *shared.chosen;
    const bf16* rows[N];
    bf16* out[N];
    UpOutput scaled;
    const int at = row_pair - args.shared_ffn, active = at < 0 ? 0 : at / args.ffn;
    const int output = at - active * args.ffn;
    const int64_t gate_row = int64_t{chosen.active_experts[active]} * 2 * args.ffn + output;
    if constexpr (kHasScales<W>) {
      const float* scales =
          at < 0 ? args.shared_gate_up_scales + row_pair : args.gate_up_scales + gate_row;
      scaled.gate_scale = scales[0], scaled.up_scale = scales[at < 0 ? args.shared_ffn : args.ffn];
    }
    if (at >= 0 && args.gate_up_bias != nullptr) {
      const bf16* bias = bf16s(args.gate_up_bias) + gate_row;
      scaled.gate_bias = to_float(bias[0]), scaled.up_bias = to_float(bias[args.ffn]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int known = min(i, count - 1);
      if (at < 0) {
        rows[i] = shared.rows + known * args.dim;
        out[i] = static_cast<bf16*>(args.shared_inner) + known * args.shared_ffn + row_pair;
      } else {
        const int pair = chosen.active_pairs[active][known];
        rows[i] = shared.rows + pair / args.router.top_k * args.dim;
        out[i] = static_cast<bf16*>(args.inner) + pair * args.ffn + output;
      }
    }
    multiply<N>(rows, out, count, scaled);
  }

  __device__ void run(int row_pair) {
    const SmallBatchMoeArgs& args = p.args;
#pragma unroll 1
    for (; row_pair < row_pairs; row_pair += stride) {
      const int at = row_pair - args.shared_ffn;
      const int count = at < 0 ? args.rows : shared.chosen->active_rows[at / args.ffn];
      if (count == 1)
        multiply_rows<1>(row_pair, count);
      else if (count == 2)
        multiply_rows<2>(row_pair, count);
      else
        multiply_rows<4>(row_pair, count);
    }
  }
};

template <typename W>
__global__ void __launch_bounds__(kThreads, 2) moe_gate_up_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const SmallBatchMoeArgs& args = p.args;
  const Shared<W> shared(raw, p);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  UpWarp<W> own{p,
                shared,
                lane,
                kWarps * static_cast<int>(gridDim.x),
                shared.ring_buffer(p, warp),
                {.row_pair = first, .begin = 0},
                args.shared_ffn};
  init_barriers(shared);
  int issued = 0;
#pragma unroll 1
  for (; issued < p.num_stages && own.cursor.row_pair < own.row_pairs; ++issued) own.issue(issued);
  wait_for_previous();
  release_next();  // the next kernel reads the scores, which are there now
  const auto* x = bf16s(args.norm_weight == nullptr ? args.x : args.normed);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < args.rows * args.dim / 8; i += kThreads)
    copy_async(shared.rows + i * 8, x + i * 8, true);
  copy_commit();
  select_experts(args, shared.words, *shared.chosen);
  own.row_pairs += shared.chosen->num_active * args.ffn;
  if (args.counts.pairs != nullptr && blockIdx.x == 0) count_rows(args, *shared.chosen);
#pragma unroll 1
  for (; issued < p.num_stages; ++issued) own.issue(issued);
  copy_wait<0>();
  __syncthreads();
  own.run(first);
}

// --- down ---

// The next tile that a warp has to copy: `expert` counts the shared expert, if there is one, then
// the active ones.
struct DownCursor {
  int output, expert, begin;
};

template <typename W, int ROWS>
struct DownWarp {
  const Params& p;
  const Shared<W>& shared;
  const int lane;
  RingBuffer<W> ring_buffer;
  DownCursor cursor;
  const int end;  // of the warp's outputs
  int experts;    // the shared expert and all active ones; 0 where other ranks have them

  __device__ bool is_shared(int expert) const { return expert == 0 && p.args.shared_ffn > 0; }
  __device__ int active_of(int expert) const { return expert - (p.args.shared_ffn > 0 ? 1 : 0); }
  __device__ int inputs_of(int expert) const {
    return is_shared(expert) ? p.args.shared_ffn : p.args.ffn;
  }

  // The weights' row of the first of two outputs, counted over all experts' rows.
  __device__ int64_t row_of(int expert, int output) const {
    if (is_shared(expert)) return output;
    return int64_t{shared.chosen->active_experts[active_of(expert)]} * p.args.dim + output;
  }

  __device__ void copy(int stage) const {
    const int in = inputs_of(cursor.expert);
    const W* from =
        static_cast<const W*>(is_shared(cursor.expert) ? p.args.shared_down : p.args.down) +
        row_of(cursor.expert, cursor.output) * in;
    from += cursor.begin;
    const int outputs = min(2, end - cursor.output), inputs = min(p.tile_inputs, in - cursor.begin);
    const uint32_t bytes = static_cast<uint32_t>(inputs) * sizeof(W);
    Barrier& full = ring_buffer.full[stage];
    barrier_expect(full, static_cast<uint32_t>(outputs) * bytes);
    if (inputs == in) {  // adjacent rows in one copy
      bulk_copy(ring_buffer.at(stage), from, static_cast<uint32_t>(outputs) * bytes, full);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < outputs; ++i)
      bulk_copy(ring_buffer.at(stage) + i * inputs, from + i * int64_t{in}, bytes, full);
  }
  __device__ void issue(int stage) {
    if (cursor.output >= end || experts == 0) return;
    if (lane == 0) copy(stage);
    cursor.begin += p.tile_inputs;
    if (cursor.begin < inputs_of(cursor.expert)) return;
    cursor.begin = 0;
    if (++cursor.expert == experts) cursor.expert = 0, cursor.output += 2;
  }

  __device__ float2 scales_of(int expert, int output) const {
    const float* scales = (is_shared(expert) ? p.args.shared_down_scales : p.args.down_scales) +
                          row_of(expert, output);
    return {scales[0], output + 1 < end ? scales[1] : 1.0f};
  }

  // Adds one expert's results to the sums of outputs `output` and the next one for all rows,
  // [row][2].
  // scales: of lane i for expert i, those of its weights' two rows.
  __device__ __forceinline__ void add_expert(int expert, int output, float2 scales,
                                             float (&sums)[2 * ROWS]) {
    const SmallBatchMoeArgs& args = p.args;
    const ChosenExperts& chosen = *shared.chosen;
    const int in = inputs_of(expert);
    const bool common = is_shared(expert);
    const bf16* inner[ROWS];
    float weights[ROWS];
    uint32_t known = 0;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      const int pair = common ? row : chosen.pair_of_row[active_of(expert)][row];
      if (row >= args.rows || pair == kNoPair) continue;
      known |= 1u << row;
      weights[row] = common ? chosen.shared_gates[row] : chosen.weights[pair];
      inner[row] =
          shared.rows + (common ? args.rows * args.router.top_k * args.ffn + row * in : pair * in);
    }
    if constexpr (kHasScales<W>) {
      if (expert < 32)
        scales = {__shfl_sync(~0u, scales.x, expert), __shfl_sync(~0u, scales.y, expert)};
      else
        scales = scales_of(expert, output);
    }
#pragma unroll 1
    for (int begin = 0; begin < in; begin += p.tile_inputs) {
      const W* first = ring_buffer.wait();
      const int inputs = min(p.tile_inputs, in - begin);
      const W* second = first + inputs;
      float partial[2 * ROWS] = {};
#pragma unroll(ROWS == 1 ? 3 : 1)
      for (int k = lane * 8; k < inputs; k += 256) {
        float a[8], b[8];
        load8(first + k, a);
        load8(second + k, b);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
          if (ROWS > 1 && (known >> row & 1) == 0) continue;
          float value[8];
          load8(inner[row] + begin + k, value);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            partial[2 * row] += a[i] * value[i];
            partial[2 * row + 1] += b[i] * value[i];
          }
        }
      }
      __syncwarp();
      issue(ring_buffer.stage);
      ring_buffer.next();
#pragma unroll
      for (int row = 0; row < ROWS; ++row) {
        if (ROWS > 1 && (known >> row & 1) == 0) continue;
        sums[2 * row] += weights[row] * scales.x * partial[2 * row];
        sums[2 * row + 1] += weights[row] * scales.y * partial[2 * row + 1];
      }
    }
  }

  // The weighted biases of the row's experts for an output.
  __device__ float bias(int row, int output) const {
    if (p.args.down_bias == nullptr) return 0;
    const int top_k = p.args.router.top_k;
    float sum = 0;
#pragma unroll 1
    for (int i = row * top_k; i < (row + 1) * top_k; ++i) {
      if (!is_here(p.args, shared.chosen->experts[i])) continue;
      sum += shared.chosen->weights[i] *
             to_float(
                 bf16s(p.args.down_bias)[int64_t{shared.chosen->experts[i]} * p.args.dim + output]);
    }
    return sum;
  }

  __device__ void run(int output) {
    const SmallBatchMoeArgs& args = p.args;
    constexpr int kLanes = 16 / ROWS;  // lanes that hold the same sum
    const int row = lane / kLanes / 2, side = lane / kLanes % 2;
#pragma unroll 1
    for (; output < end; output += 2) {
      const bool mine = lane % kLanes == 0 && row < args.rows && output + side < end;
      const int64_t at = int64_t{row} * args.dim + output + side;
      float more = 0, before = 0;
      if (mine) {
        more = bias(row, output + side);
        if (args.residual != nullptr) before = to_float(bf16s(args.residual)[at]);
      }
      float2 scales = {1, 1};
      if constexpr (kHasScales<W>) {
        if (lane < experts) scales = scales_of(lane, output);
      }
      float sums[2 * ROWS] = {};
#pragma unroll 1
      for (int expert = 0; expert < experts; ++expert) add_expert(expert, output, scales, sums);
      add_by_halves(sums);
      if (mine)
        static_cast<bf16*>(args.y)[at] =
            __float2bfloat16_rn(before + args.scale * (sums[0] + more));
    }
  }
};

template <typename W, int ROWS>
__global__ void __launch_bounds__(kThreads, 2) moe_down_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const SmallBatchMoeArgs& args = p.args;
  const Shared<W> shared(raw, p);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t index = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int64_t warps = int64_t{kWarps} * gridDim.x;
  const int first = static_cast<int>(args.dim * index / warps);
  const int end = static_cast<int>(args.dim * (index + 1) / warps);
  init_barriers(shared);
  // The kernel in front began after the one that wrote the scores had ended, so they can be read
  // before the kernel in front ends.
  select_experts(args, shared.words, *shared.chosen);
  DownWarp<W, ROWS> own{p,
                        shared,
                        lane,
                        shared.ring_buffer(p, warp),
                        {.output = first, .expert = 0, .begin = 0},
                        end,
                        shared.chosen->num_active + (args.shared_ffn > 0 ? 1 : 0)};
#pragma unroll 1
  for (int i = 0; i < p.num_stages; ++i) own.issue(i);
  wait_for_previous();
  release_next();
  if (threadIdx.x == 0) {
    const auto expert_bytes = static_cast<uint32_t>(args.rows * args.router.top_k * args.ffn) * 2;
    const auto common = static_cast<uint32_t>(args.rows * args.shared_ffn) * 2;
    barrier_expect(shared.rows_full(), expert_bytes + common);
    bulk_copy(shared.rows, args.inner, expert_bytes, shared.rows_full());
    if (common > 0)
      bulk_copy(reinterpret_cast<char*>(shared.rows) + expert_bytes, args.shared_inner, common,
                shared.rows_full());
  }
  barrier_wait(shared.rows_full(), 0);
  own.run(first);
}

// --- on the host ---

// num_local becomes the count of those that are here.
SmallBatchMoeArgs resolve(SmallBatchMoeArgs args) {
  if (args.num_local == 0) args.num_local = args.router.num_experts - args.first_local;
  return args;
}

// What the kernels read of memory: bfloat16, or codes where all weights of experts have scales.
bool has_scales(const SmallBatchMoeArgs& args) { return args.gate_up_scales != nullptr; }
size_t weight_bytes(const SmallBatchMoeArgs& args) { return has_scales(args) ? 1 : 2; }

struct RingBufferPlan {
  int tile_inputs = 0, num_stages = 0;  // 0: no room
  size_t stage_bytes = 0;               // of all warps
  size_t bytes() const { return static_cast<size_t>(num_stages) * stage_bytes; }
};

// Tiles as large as possible, but at least two stages for each warp.
RingBufferPlan ring_buffer_for(int inputs, size_t element_bytes, size_t room) {
  const int multiple = 16 / static_cast<int>(element_bytes);  // of what a bulk copy takes
  RingBufferPlan plan;
  for (int tiles = 1;; ++tiles) {
    const int tile = ((inputs + tiles - 1) / tiles + multiple - 1) / multiple * multiple;
    if (tile < kMinTileInputs && tiles > 1) return plan;
    if (tile > kMaxTileInputs) continue;
    plan.tile_inputs = tile;
    plan.stage_bytes = size_t{kWarps} * 2 * static_cast<size_t>(tile) * element_bytes;
    plan.num_stages = static_cast<int>(std::min(room / plan.stage_bytes, size_t{kMaxStages}));
    if (plan.num_stages >= 2) return plan;
  }
}

struct Plan {
  RingBufferPlan up, down;
  size_t up_bytes = 0, down_bytes = 0;
};

// The blocks of gate_up take more than half of a multiprocessor's shared memory, so that no two
// share one, and leave down's blocks what they need to start beside them, where possible.
Plan plan_for(const SmallBatchMoeArgs& args, const DeviceTraits& traits) {
  constexpr size_t kReserved = 1024;  // of a multiprocessor for each block, by the driver
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  const auto rows = static_cast<size_t>(args.rows);
  const size_t up_fixed = SharedLayout::fixed_bytes(args, rows * static_cast<size_t>(args.dim));
  const size_t down_fixed = SharedLayout::fixed_bytes(
      args, rows * static_cast<size_t>(args.router.top_k * args.ffn + args.shared_ffn));
  const auto left = [](size_t room, size_t fixed) { return room > fixed ? room - fixed : 0; };
  Plan plan;
  for (const size_t room : {most * 3 / 5, most}) {
    plan.up = ring_buffer_for(args.dim, weight_bytes(args), left(room, up_fixed));
    if (plan.up.num_stages >= 2) break;
  }
  plan.up_bytes = std::max(up_fixed + plan.up.bytes(), most / 2 + kReserved);
  for (const size_t room : {left(most, plan.up_bytes + kReserved), most}) {
    plan.down = ring_buffer_for(args.ffn, weight_bytes(args), left(room, down_fixed));
    if (plan.down.num_stages >= 2) break;
  }
  plan.down_bytes = down_fixed + plan.down.bytes();
  return plan;
}

// gate_up, then down, with weights of W.
template <typename W>
Status start_experts(const SmallBatchMoeArgs& args, const Plan& plan, int blocks,
                     const LaunchOptions& launch) {
  const auto start = [&](auto* kernel, const RingBufferPlan& rings, size_t bytes) -> Status {
    ESP_RETURN_IF_ERROR(allow_shared("small_batch_moe", kernel, bytes));
    return launch_kernel("small_batch_moe", kernel, dim3(static_cast<unsigned>(blocks)), kThreads,
                         bytes, launch, Params{args, rings.tile_inputs, rings.num_stages});
  };
  ESP_RETURN_IF_ERROR(start(moe_gate_up_kernel<W>, plan.up, plan.up_bytes));
  if (args.rows == 1) return start(moe_down_kernel<W, 1>, plan.down, plan.down_bytes);
  if (args.rows == 2) return start(moe_down_kernel<W, 2>, plan.down, plan.down_bytes);
  return start(moe_down_kernel<W, 4>, plan.down, plan.down_bytes);
}

// Scales of all weights of experts, or of none.
bool scales_agree(const SmallBatchMoeArgs& args) {
  const bool some = has_scales(args);
  if ((args.down_scales != nullptr) != some) return false;
  if (args.shared_ffn == 0) return true;
  return (args.shared_gate_up_scales != nullptr) == some &&
         (args.shared_down_scales != nullptr) == some;
}

}  // namespace

Result<bool> small_batch_moe_supports(const SmallBatchMoeArgs& args) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const RouterSpec& router = args.router;
  const bool shapes =
      args.type == DType::kBFloat16 && args.rows >= 0 && args.rows <= kSmallBatchMoeRows &&
      router.top_k >= 1 && args.first_local >= 0 && args.num_local >= 0 &&
      args.first_local + args.num_local <= std::max(router.num_experts, args.replicas.num_slots) &&
      router.num_groups >= 1 && router.num_experts % router.num_groups == 0 &&
      router.top_k <= router.num_experts / router.num_groups * router.top_groups &&
      args.rows * router.top_k <= kSmallBatchMoePairs && args.dim >= 8 && args.ffn >= 8 &&
      scales_agree(args) &&
      (args.dim | args.ffn | args.shared_ffn) % (has_scales(args) ? 16 : 8) == 0;
  if (!shapes || traits.compute_capability < 90) return false;
  for (const void* at : {args.x, args.norm_weight, args.gate_up, args.down, args.shared_gate_up,
                         args.shared_down, static_cast<const void*>(args.router_weights),
                         static_cast<const void*>(args.shared_gate_weights)}) {
    if (!aligned(at, 16)) return false;
  }
  if (score_bytes(args.dim) > static_cast<size_t>(traits.shared_bytes_per_block)) return false;
  if (args.int4 || args.mxfp4) return one_row_coded_supports(args, traits);
  const Plan plan = plan_for(args, traits);
  return plan.up.num_stages > 0 && plan.down.num_stages > 0;
}

Status small_batch_moe(const SmallBatchMoeArgs& arguments, const LaunchOptions& launch) {
  const SmallBatchMoeArgs args = resolve(arguments);
  if (args.rows == 0) return {};
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const int scores = args.router.num_experts + (args.shared_gate_weights == nullptr ? 0 : 1);
  const size_t bytes = score_bytes(args.dim);
  ESP_RETURN_IF_ERROR(allow_shared("small_batch_moe", moe_score_kernel, bytes));
  ESP_RETURN_IF_ERROR(
      launch_kernel("small_batch_moe", moe_score_kernel,
                    dim3(static_cast<unsigned>((scores + kScoreWarps - 1) / kScoreWarps),
                         static_cast<unsigned>(args.rows)),
                    kScoreWarps * 32, bytes, launch, Params{args, 0, 0}));
  if (args.int4 || args.mxfp4) return one_row_coded_experts(args, traits, launch);
  const Plan plan = plan_for(args, traits);
  const int blocks = traits.num_multiprocessors;
  return has_scales(args) ? start_experts<uint8_t>(args, plan, blocks, launch)
                          : start_experts<bf16>(args, plan, blocks, launch);
}

}  // namespace espalier::kernels::cuda
