// Mixture of experts for up to four rows on Hopper, in three kernels chained by PDL; shapes and
// types in cuda_small_batch.h, bfloat16 with float32 scores and sums.
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
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/linear/warp_sums.cuh"
#include "kernels/moe/cuda_small_batch.h"
#include "kernels/router/router_topk.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kScoreWarps = 4;
constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kMaxTileInputs = 2048, kMinTileInputs = 512;  // of a tile, of each of its two rows
constexpr int kMaxStages = 8;                               // tiles of a warp
constexpr uint8_t kNoPair = 255;

struct Params {
  SmallBatchMoeArgs args;
  int tile_inputs, num_stages;  // of the kernel's ring buffers
};

__device__ __forceinline__ const bf16* bf16s(const void* at) {
  return static_cast<const bf16*>(at);
}

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

// --- top-k selection ---

// The experts that the rows selected. A pair (row, expert) is row * top_k + rank; an active expert
// is one that some row selected.
struct ChosenExperts {
  int32_t experts[kSmallBatchMoePairs];  // of each pair
  float weights[kSmallBatchMoePairs];
  int32_t num_active;
  int32_t active_experts[kSmallBatchMoePairs];
  int32_t active_rows[kSmallBatchMoePairs];                       // how many rows selected it,
  uint8_t active_pairs[kSmallBatchMoePairs][kSmallBatchMoeRows];  // and their pairs
  uint8_t pair_of_row[kSmallBatchMoePairs][kSmallBatchMoeRows];   // each row's pair, or kNoPair
  float shared_gates[kSmallBatchMoeRows];
};

// One warp collects the active experts from the pairs.
__device__ void gather_active(const SmallBatchMoeArgs& args, ChosenExperts& chosen, int lane) {
  const int top_k = args.router.top_k, count = args.rows * top_k;
  int num_active = 0;
#pragma unroll 1
  for (int base = 0; base < count; base += 32) {
    const int pair = base + lane;
    bool first = pair < count;
    const int expert = first ? chosen.experts[pair] : 0;
#pragma unroll 1
    for (int i = 0; i < pair && first; ++i) first = chosen.experts[i] != expert;
    const uint32_t all = __ballot_sync(~0u, first);
    if (first) {
      const int active = num_active + __popc(all & ((1u << lane) - 1));
#pragma unroll
      for (int row = 0; row < kSmallBatchMoeRows; ++row) chosen.pair_of_row[active][row] = kNoPair;
      int rows = 0;
#pragma unroll 1
      for (int i = pair; i < count; ++i) {
        if (chosen.experts[i] != expert) continue;
        chosen.active_pairs[active][rows++] = static_cast<uint8_t>(i);
        chosen.pair_of_row[active][i / top_k] = static_cast<uint8_t>(i);
      }
      chosen.active_experts[active] = expert;
      chosen.active_rows[active] = rows;
    }
    num_active += __popc(all);
  }
  if (lane == 0) chosen.num_active = num_active;
}

// Selects the experts of all rows, by the whole block. words: [rows, route_words()] in shared
// memory. Loads of the scores bypass L1, which may hold those of the layer before. REQUIRES: the
// scores are written.
__device__ void select_experts(const SmallBatchMoeArgs& args, float* words, ChosenExperts& chosen) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const RouterSpec& router = args.router;
  if (warp < args.rows) {
    float* own = words + warp * route_words(router);
#pragma unroll 4
    for (int i = lane; i < router.num_experts; i += 32)
      own[i] = __ldcg(args.scores + warp * router.num_experts + i);
    if (lane == 0) {
      chosen.shared_gates[warp] = args.shared_gate_weights == nullptr
                                      ? 1.0f
                                      : 1.0f / (1.0f + expf(-__ldcg(args.shared_gate + warp)));
    }
    __syncwarp();
    route_row(router, args.correction, own, lane, chosen.experts + warp * router.top_k,
              chosen.weights + warp * router.top_k);
  }
  __syncthreads();
  if (warp == 0) gather_active(args, chosen, lane);
  __syncthreads();
}

// --- rings ---

// A warp's ring buffer of tiles, each two rows of up to tile_inputs.
struct RingBuffer {
  bf16* stages;
  Barrier* full;
  int num_stages, stage_elements;
  int stage = 0;
  uint32_t parity = 0;

  __device__ bf16* at(int i) const { return stages + i * stage_elements; }
  __device__ const bf16* wait() const {
    barrier_wait(full[stage], parity);
    return at(stage);
  }
  __device__ void next() {
    if (++stage == num_stages) stage = 0, parity ^= 1;
  }
};

// Shared memory: rings [warp][num_stages][2][tile_inputs], barriers [warp][num_stages] and one
// more, the selected experts, words of the selection, then `rows` of the kernel.
struct Shared {
  bf16* rings;
  Barrier* barriers;
  ChosenExperts* chosen;
  float* words;
  bf16* rows;

  static constexpr size_t kBarrierBytes = (kWarps * kMaxStages + 2) * sizeof(Barrier);
  static constexpr size_t kChosenBytes = (sizeof(ChosenExperts) + 15) / 16 * 16;
  __host__ __device__ static size_t words_bytes(const SmallBatchMoeArgs& args) {
    return (static_cast<size_t>(args.rows * route_words(args.router)) * 4 + 15) / 16 * 16;
  }
  static size_t fixed_bytes(const SmallBatchMoeArgs& args, size_t row_elements) {
    return kBarrierBytes + kChosenBytes + words_bytes(args) + row_elements * 2;
  }
  __device__ Shared(char* at, const Params& p) {
    rings = reinterpret_cast<bf16*>(at);
    at += kWarps * p.num_stages * p.tile_inputs * 4;
    barriers = reinterpret_cast<Barrier*>(at);
    at += kBarrierBytes;
    chosen = reinterpret_cast<ChosenExperts*>(at);
    at += kChosenBytes;
    words = reinterpret_cast<float*>(at);
    at += words_bytes(p.args);
    rows = reinterpret_cast<bf16*>(at);
  }
  __device__ Barrier& rows_full() const { return barriers[kWarps * kMaxStages]; }
  __device__ RingBuffer ring_buffer(const Params& p, int warp) const {
    const int elements = 2 * p.tile_inputs;
    return {.stages = rings + warp * p.num_stages * elements,
            .full = barriers + warp * kMaxStages,
            .num_stages = p.num_stages,
            .stage_elements = elements};
  }
};

__device__ void init_barriers(const Shared& shared) {
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
__device__ void issue_pair(const Params& p, const ChosenExperts& chosen, const UpCursor& cursor,
                           bf16* to, Barrier& full) {
  const SmallBatchMoeArgs& args = p.args;
  const int64_t dim = args.dim;
  const bf16* gate;
  int ffn = args.shared_ffn;
  if (cursor.row_pair < ffn) {
    gate = bf16s(args.shared_gate_up) + cursor.row_pair * dim;
  } else {
    const int at = cursor.row_pair - ffn;
    ffn = args.ffn;
    const int active = at / ffn;
    gate = bf16s(args.gate_up) +
           (int64_t{chosen.active_experts[active]} * 2 * ffn + (at - active * ffn)) * dim;
  }
  gate += cursor.begin;
  const auto bytes = static_cast<uint32_t>(min(p.tile_inputs, args.dim - cursor.begin)) * 2;
  barrier_expect(full, 2 * bytes);
  bulk_copy(to, gate, bytes, full);
  bulk_copy(to + p.tile_inputs, gate + ffn * dim, bytes, full);
}

struct UpWarp {
  const Params& p;
  const Shared& shared;
  const int lane, stride;
  RingBuffer ring_buffer;
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
                                           int count, float gate_bias, float up_bias) {
    const int dim = p.args.dim;
    float sums[2 * N] = {};
#pragma unroll 1
    for (int begin = 0; begin < dim; begin += p.tile_inputs) {
      const bf16* gate = ring_buffer.wait();
      const bf16* up = gate + p.tile_inputs;
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
    const float up = __shfl_down_sync(~0u, sums[0], kLanes) + up_bias;
    const int row = lane / (2 * kLanes);
    if (lane % (2 * kLanes) != 0 || row >= count) return;
    const float value = activated(p.args.activation, sums[0] + gate_bias, up, p.args.limit);
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
    float gate_bias = 0, up_bias = 0;
    const int at = row_pair - args.shared_ffn, active = at < 0 ? 0 : at / args.ffn;
    const int output = at - active * args.ffn;
    if (at >= 0 && args.gate_up_bias != nullptr) {
      const bf16* bias =
          bf16s(args.gate_up_bias) + int64_t{chosen.active_experts[active]} * 2 * args.ffn + output;
      gate_bias = to_float(bias[0]), up_bias = to_float(bias[args.ffn]);
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
    multiply<N>(rows, out, count, gate_bias, up_bias);
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

__global__ void __launch_bounds__(kThreads, 2) moe_gate_up_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const SmallBatchMoeArgs& args = p.args;
  const Shared shared(raw, p);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  UpWarp own{p,
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

template <int ROWS>
struct DownWarp {
  const Params& p;
  const Shared& shared;
  const int lane;
  RingBuffer ring_buffer;
  DownCursor cursor;
  const int end;  // of the warp's outputs
  int experts;    // the shared expert and all active ones

  __device__ bool is_shared(int expert) const { return expert == 0 && p.args.shared_ffn > 0; }
  __device__ int active_of(int expert) const { return expert - (p.args.shared_ffn > 0 ? 1 : 0); }
  __device__ int inputs_of(int expert) const {
    return is_shared(expert) ? p.args.shared_ffn : p.args.ffn;
  }

  __device__ void copy(int stage) const {
    const int in = inputs_of(cursor.expert);
    const int64_t row = cursor.output;
    const bf16* from =
        is_shared(cursor.expert)
            ? bf16s(p.args.shared_down) + row * in
            : bf16s(p.args.down) +
                  (int64_t{shared.chosen->active_experts[active_of(cursor.expert)]} * p.args.dim +
                   row) *
                      in;
    from += cursor.begin;
    const int outputs = min(2, end - cursor.output), inputs = min(p.tile_inputs, in - cursor.begin);
    const auto bytes = static_cast<uint32_t>(inputs) * 2;
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
    if (cursor.output >= end) return;
    if (lane == 0) copy(stage);
    cursor.begin += p.tile_inputs;
    if (cursor.begin < inputs_of(cursor.expert)) return;
    cursor.begin = 0;
    if (++cursor.expert == experts) cursor.expert = 0, cursor.output += 2;
  }

  // Adds one expert's results to the sums of two outputs for all rows, [row][2].
  __device__ __forceinline__ void add_expert(int expert, float (&sums)[2 * ROWS]) {
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
#pragma unroll 1
    for (int begin = 0; begin < in; begin += p.tile_inputs) {
      const bf16* first = ring_buffer.wait();
      const int inputs = min(p.tile_inputs, in - begin);
      const bf16* second = first + inputs;
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
        sums[2 * row] += weights[row] * partial[2 * row];
        sums[2 * row + 1] += weights[row] * partial[2 * row + 1];
      }
    }
  }

  // The weighted biases of the row's experts for an output.
  __device__ float bias(int row, int output) const {
    if (p.args.down_bias == nullptr) return 0;
    const int top_k = p.args.router.top_k;
    float sum = 0;
#pragma unroll 1
    for (int i = row * top_k; i < (row + 1) * top_k; ++i)
      sum += shared.chosen->weights[i] *
             to_float(
                 bf16s(p.args.down_bias)[int64_t{shared.chosen->experts[i]} * p.args.dim + output]);
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
      float sums[2 * ROWS] = {};
#pragma unroll 1
      for (int expert = 0; expert < experts; ++expert) add_expert(expert, sums);
      add_by_halves(sums);
      if (mine)
        static_cast<bf16*>(args.y)[at] =
            __float2bfloat16_rn(before + args.scale * (sums[0] + more));
    }
  }
};

template <int ROWS>
__global__ void __launch_bounds__(kThreads, 2) moe_down_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const SmallBatchMoeArgs& args = p.args;
  const Shared shared(raw, p);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t index = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int64_t warps = int64_t{kWarps} * gridDim.x;
  const int first = static_cast<int>(args.dim * index / warps);
  const int end = static_cast<int>(args.dim * (index + 1) / warps);
  init_barriers(shared);
  // The kernel in front began after the one that wrote the scores had ended, so they can be read
  // before the kernel in front ends.
  select_experts(args, shared.words, *shared.chosen);
  DownWarp<ROWS> own{p,
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

struct RingBufferPlan {
  int tile_inputs = 0, num_stages = 0;  // 0: no room
  size_t bytes() const {
    return size_t{kWarps} * static_cast<size_t>(num_stages) * static_cast<size_t>(tile_inputs) * 4;
  }
};

// Tiles as large as possible, but at least two stages for each warp.
RingBufferPlan ring_buffer_for(int inputs, size_t room) {
  RingBufferPlan plan;
  for (int tiles = 1;; ++tiles) {
    const int tile = ((inputs + tiles - 1) / tiles + 7) / 8 * 8;
    if (tile < kMinTileInputs && tiles > 1) return plan;
    if (tile > kMaxTileInputs) continue;
    plan.tile_inputs = tile;
    plan.num_stages = static_cast<int>(
        std::min(room / (size_t{kWarps} * static_cast<size_t>(tile) * 4), size_t{kMaxStages}));
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
  const size_t up_fixed = Shared::fixed_bytes(args, rows * static_cast<size_t>(args.dim));
  const size_t down_fixed = Shared::fixed_bytes(
      args, rows * static_cast<size_t>(args.router.top_k * args.ffn + args.shared_ffn));
  const auto left = [](size_t room, size_t fixed) { return room > fixed ? room - fixed : 0; };
  Plan plan;
  for (const size_t room : {most * 3 / 5, most}) {
    plan.up = ring_buffer_for(args.dim, left(room, up_fixed));
    if (plan.up.num_stages >= 2) break;
  }
  plan.up_bytes = std::max(up_fixed + plan.up.bytes(), most / 2 + kReserved);
  for (const size_t room : {left(most, plan.up_bytes + kReserved), most}) {
    plan.down = ring_buffer_for(args.ffn, left(room, down_fixed));
    if (plan.down.num_stages >= 2) break;
  }
  plan.down_bytes = down_fixed + plan.down.bytes();
  return plan;
}

Status start_down(const Params& params, int blocks, size_t bytes, const LaunchOptions& launch) {
  const auto start = [&](auto* kernel) -> Status {
    ESP_RETURN_IF_ERROR(allow_shared("small_batch_moe", kernel, bytes));
    return launch_kernel("small_batch_moe", kernel, dim3(static_cast<unsigned>(blocks)), kThreads,
                         bytes, launch, params);
  };
  if (params.args.rows == 1) return start(moe_down_kernel<1>);
  if (params.args.rows == 2) return start(moe_down_kernel<2>);
  return start(moe_down_kernel<4>);
}

}  // namespace

Result<bool> small_batch_moe_supports(const SmallBatchMoeArgs& args) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const RouterSpec& router = args.router;
  const bool shapes = args.type == DType::kBFloat16 && args.rows >= 0 &&
                      args.rows <= kSmallBatchMoeRows && router.top_k >= 1 &&
                      router.num_groups >= 1 && router.num_experts % router.num_groups == 0 &&
                      router.top_k <= router.num_experts / router.num_groups * router.top_groups &&
                      args.rows * router.top_k <= kSmallBatchMoePairs && args.dim >= 8 &&
                      args.ffn >= 8 && (args.dim | args.ffn | args.shared_ffn) % 8 == 0;
  if (!shapes || traits.compute_capability < 90) return false;
  for (const void* at : {args.x, args.norm_weight, args.gate_up, args.down, args.shared_gate_up,
                         args.shared_down, static_cast<const void*>(args.router_weights),
                         static_cast<const void*>(args.shared_gate_weights)}) {
    if (!aligned(at, 16)) return false;
  }
  const Plan plan = plan_for(args, traits);
  return plan.up.num_stages > 0 && plan.down.num_stages > 0 &&
         score_bytes(args.dim) <= static_cast<size_t>(traits.shared_bytes_per_block);
}

Status small_batch_moe(const SmallBatchMoeArgs& args, const LaunchOptions& launch) {
  if (args.rows == 0) return {};
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const Plan plan = plan_for(args, traits);
  const int scores = args.router.num_experts + (args.shared_gate_weights == nullptr ? 0 : 1);
  const size_t bytes = score_bytes(args.dim);
  ESP_RETURN_IF_ERROR(allow_shared("small_batch_moe", moe_score_kernel, bytes));
  ESP_RETURN_IF_ERROR(
      launch_kernel("small_batch_moe", moe_score_kernel,
                    dim3(static_cast<unsigned>((scores + kScoreWarps - 1) / kScoreWarps),
                         static_cast<unsigned>(args.rows)),
                    kScoreWarps * 32, bytes, launch, Params{args, 0, 0}));
  ESP_RETURN_IF_ERROR(allow_shared("small_batch_moe", moe_gate_up_kernel, plan.up_bytes));
  const int blocks = traits.num_multiprocessors;
  ESP_RETURN_IF_ERROR(launch_kernel("small_batch_moe", moe_gate_up_kernel,
                                    dim3(static_cast<unsigned>(blocks)), kThreads, plan.up_bytes,
                                    launch, Params{args, plan.up.tile_inputs, plan.up.num_stages}));
  return start_down({args, plan.down.tile_inputs, plan.down.num_stages}, blocks, plan.down_bytes,
                    launch);
}

}  // namespace espalier::kernels::cuda
