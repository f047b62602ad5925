// Experts of few rows on Hopper: three kernels, each of which starts before the one in front ends.
//
// Bytes of a layer of Qwen3-30B-A3B for one row: 1 MB of the router, 50.3 of gate and up, 25.2 of
// down, 17.6 us at 4.35 TB/s; of DeepSeek-V2-Lite 34.6 and 17.3 for the chosen, 23.1 and 11.5 for
// the shared expert. Operations: two a weight and row.
//
// score: a warp for an expert's score of a row. It norms the row for itself, so nothing waits for
// another warp; its part of the router's matrix comes while the kernel in front still runs.
//
// gate_up: every block makes the choice again from the scores, then each warp takes every so many
// pairs of a row of gate and the same of up, counted through all chosen experts. A warp has a ring
// of its own in shared memory, which its first lane fills by the copy engine and all its lanes
// multiply from: no warp waits for another, and no part of a sum lies with another warp. Rows that
// chose the same expert are multiplied while a pair is there. What is shared comes first: it can be
// asked for before the choice is known.
//
// down: as gate_up, a warp with two outputs of all chosen experts one after the other, so that the
// weighted sum over experts needs no exchange either. gate_up lets it start once the scores are
// there, so it chooses and fills its rings while gate_up still streams.
//
// Measured on an H200, a step at a context of 1,024, instead of the eight to eleven kernels of
// moe/cuda.h: Qwen3-30B-A3B 5.01 to 3.46 ms at one row, 5.68 to 4.74 at two, 8.37 to 7.21 at
// four; DeepSeek-V2-Lite 3.95 to 3.49, 4.42 to 4.26 and 6.25 to 5.46. At eight rows 11.05 to 11.66
// and 7.78 to 8.82, so four is the most. Layers of Qwen's experts alone, 38 us each (stamps of all
// warps): scores 2.4, the start of gate_up 0.6, its choice 3.8, 1.4 until its rings are asked for,
// 12 of streaming, down behind it 14.5 (in a model, where it does start early, 7). So the streams
// run at the memory's rate and the choice is too slow: with loops unrolled (60 KB of instructions)
// the step took 3.64 ms, for what is not in the instruction cache comes from memory.
//
// Tried: pairs in one range for each block instead of among each other 39.1 us, 12 and 16 warps
// 41.0 and 41.4, no arithmetic at all 39.0, pieces of 1,024 inputs 40.3, rings of all that shared
// memory holds, which keeps down's blocks out, 40.6.
#include <algorithm>

#include "kernels/activation/activation.cuh"
#include "kernels/attention/attention_device.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/linear/warp_sums.cuh"
#include "kernels/moe/cuda_small_batch.h"
#include "kernels/router/router_topk.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kScoreWarps = 4;
constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kMostInputs = 2048, kFewInputs = 512;  // of a piece, of each of two rows
constexpr int kMostAhead = 8;                        // pieces of a warp
constexpr uint8_t kNone = 255;

struct Params {
  SmallBatchMoeArgs args;
  int piece_inputs, ahead;  // of the kernel's rings
};

__device__ __forceinline__ const bf16* bf16s(const void* at) {
  return static_cast<const bf16*>(at);
}

// --- scores ---

// Shared memory: of each warp a row of the router's matrix, [dim] of float, and the norm's [dim].
size_t score_bytes(int dim) { return size_t{kScoreWarps} * static_cast<size_t>(dim) * 6; }

// Every lane copies for itself, so it waits for none.
__global__ void __launch_bounds__(kScoreWarps * 32) few_score_kernel(const Params p) {
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

// --- the choice ---

// What the rows chose. A choice is row * top_k + rank; a unit is an expert that some row chose.
struct Choices {
  int32_t experts[kSmallBatchMoePairs];  // of each choice
  float weights[kSmallBatchMoePairs];
  int32_t units;
  int32_t unit_experts[kSmallBatchMoePairs];
  int32_t unit_rows[kSmallBatchMoePairs];                         // how many rows chose it,
  uint8_t unit_choices[kSmallBatchMoePairs][kSmallBatchMoeRows];  // and their choices
  uint8_t row_choices[kSmallBatchMoePairs][kSmallBatchMoeRows];   // each row's choice, or kNone
  float shared_gates[kSmallBatchMoeRows];
};

// One warp makes units of the choices.
__device__ void gather_units(const SmallBatchMoeArgs& args, Choices& choices, int lane) {
  const int top_k = args.router.top_k, count = args.rows * top_k;
  int units = 0;
#pragma unroll 1
  for (int base = 0; base < count; base += 32) {
    const int choice = base + lane;
    bool first = choice < count;
    const int expert = first ? choices.experts[choice] : 0;
#pragma unroll 1
    for (int i = 0; i < choice && first; ++i) first = choices.experts[i] != expert;
    const uint32_t all = __ballot_sync(~0u, first);
    if (first) {
      const int unit = units + __popc(all & ((1u << lane) - 1));
#pragma unroll
      for (int row = 0; row < kSmallBatchMoeRows; ++row) choices.row_choices[unit][row] = kNone;
      int rows = 0;
#pragma unroll 1
      for (int i = choice; i < count; ++i) {
        if (choices.experts[i] != expert) continue;
        choices.unit_choices[unit][rows++] = static_cast<uint8_t>(i);
        choices.row_choices[unit][i / top_k] = static_cast<uint8_t>(i);
      }
      choices.unit_experts[unit] = expert;
      choices.unit_rows[unit] = rows;
    }
    units += __popc(all);
  }
  if (lane == 0) choices.units = units;
}

// By the whole block, from scores that are there; `words`: [rows, route_words()]. Loads pass by the
// first-level cache, which may hold those of the layer before.
__device__ void choose(const SmallBatchMoeArgs& args, float* words, Choices& choices) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const RouterSpec& router = args.router;
  if (warp < args.rows) {
    float* own = words + warp * route_words(router);
#pragma unroll 4
    for (int i = lane; i < router.num_experts; i += 32)
      own[i] = __ldcg(args.scores + warp * router.num_experts + i);
    if (lane == 0) {
      choices.shared_gates[warp] = args.shared_gate_weights == nullptr
                                       ? 1.0f
                                       : 1.0f / (1.0f + expf(-__ldcg(args.shared_gate + warp)));
    }
    __syncwarp();
    route_row(router, args.correction, own, lane, choices.experts + warp * router.top_k,
              choices.weights + warp * router.top_k);
  }
  __syncthreads();
  if (warp == 0) gather_units(args, choices, lane);
  __syncthreads();
}

// --- rings ---

// A warp's places for pieces, each two rows of up to piece_inputs.
struct Ring {
  bf16* places;
  Barrier* full;
  int ahead, place_elements;
  int place = 0;
  uint32_t parity = 0;

  __device__ bf16* at(int i) const { return places + i * place_elements; }
  __device__ const bf16* wait() const {
    barrier_wait(full[place], parity);
    return at(place);
  }
  __device__ void next() {
    if (++place == ahead) place = 0, parity ^= 1;
  }
};

// Shared memory: rings [warp][ahead][2][piece_inputs], barriers [warp][ahead] and one more, what
// was chosen, words of the choice, then `rows` of the kernel.
struct Shared {
  bf16* rings;
  Barrier* barriers;
  Choices* choices;
  float* words;
  bf16* rows;

  static constexpr size_t kBarrierBytes = (kWarps * kMostAhead + 2) * sizeof(Barrier);
  static constexpr size_t kChoicesBytes = (sizeof(Choices) + 15) / 16 * 16;
  __host__ __device__ static size_t words_bytes(const SmallBatchMoeArgs& args) {
    return (static_cast<size_t>(args.rows * route_words(args.router)) * 4 + 15) / 16 * 16;
  }
  static size_t fixed_bytes(const SmallBatchMoeArgs& args, size_t row_elements) {
    return kBarrierBytes + kChoicesBytes + words_bytes(args) + row_elements * 2;
  }
  __device__ Shared(char* at, const Params& p) {
    rings = reinterpret_cast<bf16*>(at);
    at += kWarps * p.ahead * p.piece_inputs * 4;
    barriers = reinterpret_cast<Barrier*>(at);
    at += kBarrierBytes;
    choices = reinterpret_cast<Choices*>(at);
    at += kChoicesBytes;
    words = reinterpret_cast<float*>(at);
    at += words_bytes(p.args);
    rows = reinterpret_cast<bf16*>(at);
  }
  __device__ Barrier& rows_full() const { return barriers[kWarps * kMostAhead]; }
  __device__ Ring ring(const Params& p, int warp) const {
    const int elements = 2 * p.piece_inputs;
    return {.places = rings + warp * p.ahead * elements,
            .full = barriers + warp * kMostAhead,
            .ahead = p.ahead,
            .place_elements = elements};
  }
};

__device__ void init_barriers(const Shared& shared) {
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i <= kWarps * kMostAhead; ++i) barrier_init(shared.barriers[i], 1);
    barrier_init_done();
  }
  __syncthreads();
}

// --- gate and up ---

// What a warp has still to ask for.
struct UpCursor {
  int pair, begin;
};

// Pairs of the shared expert come first, then unit by unit.
__device__ void ask_pair(const Params& p, const Choices& choices, const UpCursor& cursor, bf16* to,
                         Barrier& full) {
  const SmallBatchMoeArgs& args = p.args;
  const int64_t dim = args.dim;
  const bf16* gate;
  int ffn = args.shared_ffn;
  if (cursor.pair < ffn) {
    gate = bf16s(args.shared_gate_up) + cursor.pair * dim;
  } else {
    const int at = cursor.pair - ffn;
    ffn = args.ffn;
    const int unit = at / ffn;
    gate = bf16s(args.gate_up) +
           (int64_t{choices.unit_experts[unit]} * 2 * ffn + (at - unit * ffn)) * dim;
  }
  gate += cursor.begin;
  const auto bytes = static_cast<uint32_t>(min(p.piece_inputs, args.dim - cursor.begin)) * 2;
  barrier_expect(full, 2 * bytes);
  bulk_copy(to, gate, bytes, full);
  bulk_copy(to + p.piece_inputs, gate + ffn * dim, bytes, full);
}

struct UpWarp {
  const Params& p;
  const Shared& shared;
  const int lane, stride;
  Ring ring;
  UpCursor cursor;
  int pairs;  // of all

  __device__ void ask(int place) {
    if (cursor.pair >= pairs) return;
    if (lane == 0) ask_pair(p, *shared.choices, cursor, ring.at(place), ring.full[place]);
    cursor.begin += p.piece_inputs;
    if (cursor.begin >= p.args.dim) cursor.begin = 0, cursor.pair += stride;
  }

  // One output of up to N rows: of those in `rows`, their inputs in shared memory, to `out`.
  template <int N>
  __device__ __forceinline__ void multiply(const bf16* const (&rows)[N], bf16* const (&out)[N],
                                           int count, float gate_bias, float up_bias) {
    const int dim = p.args.dim;
    float sums[2 * N] = {};
#pragma unroll 1
    for (int begin = 0; begin < dim; begin += p.piece_inputs) {
      const bf16* gate = ring.wait();
      const bf16* up = gate + p.piece_inputs;
      const int inputs = min(p.piece_inputs, dim - begin);
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
      ask(ring.place);
      ring.next();
    }
    add_by_halves(sums);
    constexpr int kLanes = 16 / N;  // that have the same sum
    const float up = __shfl_down_sync(~0u, sums[0], kLanes) + up_bias;
    const int row = lane / (2 * kLanes);
    if (lane % (2 * kLanes) != 0 || row >= count) return;
    const float value = activated(p.args.activation, sums[0] + gate_bias, up, p.args.limit);
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (row == i) *out[i] = __float2bfloat16_rn(value);
  }

  template <int N>
  __device__ void multiply_rows(int pair, int count) {
    const SmallBatchMoeArgs& args = p.args;
    const Choices& choices = *shared.choices;
    const bf16* rows[N];
    bf16* out[N];
    float gate_bias = 0, up_bias = 0;
    const int at = pair - args.shared_ffn, unit = at < 0 ? 0 : at / args.ffn;
    const int output = at - unit * args.ffn;
    if (at >= 0 && args.gate_up_bias != nullptr) {
      const bf16* bias =
          bf16s(args.gate_up_bias) + int64_t{choices.unit_experts[unit]} * 2 * args.ffn + output;
      gate_bias = to_float(bias[0]), up_bias = to_float(bias[args.ffn]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int known = min(i, count - 1);
      if (at < 0) {
        rows[i] = shared.rows + known * args.dim;
        out[i] = static_cast<bf16*>(args.shared_inner) + known * args.shared_ffn + pair;
      } else {
        const int choice = choices.unit_choices[unit][known];
        rows[i] = shared.rows + choice / args.router.top_k * args.dim;
        out[i] = static_cast<bf16*>(args.inner) + choice * args.ffn + output;
      }
    }
    multiply<N>(rows, out, count, gate_bias, up_bias);
  }

  __device__ void run(int pair) {
    const SmallBatchMoeArgs& args = p.args;
#pragma unroll 1
    for (; pair < pairs; pair += stride) {
      const int at = pair - args.shared_ffn;
      const int count = at < 0 ? args.rows : shared.choices->unit_rows[at / args.ffn];
      if (count == 1)
        multiply_rows<1>(pair, count);
      else if (count == 2)
        multiply_rows<2>(pair, count);
      else
        multiply_rows<4>(pair, count);
    }
  }
};

__global__ void __launch_bounds__(kThreads, 2) few_gate_up_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const SmallBatchMoeArgs& args = p.args;
  const Shared shared(raw, p);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  UpWarp own{p,
             shared,
             lane,
             kWarps * static_cast<int>(gridDim.x),
             shared.ring(p, warp),
             {.pair = first, .begin = 0},
             args.shared_ffn};
  init_barriers(shared);
  int asked = 0;
#pragma unroll 1
  for (; asked < p.ahead && own.cursor.pair < own.pairs; ++asked) own.ask(asked);
  wait_for_previous();
  release_next();  // the next kernel reads the scores, which are there now
  const auto* x = bf16s(args.norm_weight == nullptr ? args.x : args.normed);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < args.rows * args.dim / 8; i += kThreads)
    copy_async(shared.rows + i * 8, x + i * 8, true);
  copy_commit();
  choose(args, shared.words, *shared.choices);
  own.pairs += shared.choices->units * args.ffn;
#pragma unroll 1
  for (; asked < p.ahead; ++asked) own.ask(asked);
  copy_wait<0>();
  __syncthreads();
  own.run(first);
}

// --- down ---

// What a warp has still to ask for: `part` counts the shared expert, if there is one, and units.
struct DownCursor {
  int output, part, begin;
};

template <int ROWS>
struct DownWarp {
  const Params& p;
  const Shared& shared;
  const int lane;
  Ring ring;
  DownCursor cursor;
  const int end;  // of the outputs
  int parts;      // the shared expert and all units

  __device__ bool is_shared(int part) const { return part == 0 && p.args.shared_ffn > 0; }
  __device__ int unit_of(int part) const { return part - (p.args.shared_ffn > 0 ? 1 : 0); }
  __device__ int inputs_of(int part) const {
    return is_shared(part) ? p.args.shared_ffn : p.args.ffn;
  }

  __device__ void copy(int place) const {
    const int in = inputs_of(cursor.part);
    const int64_t row = cursor.output;
    const bf16* from =
        is_shared(cursor.part)
            ? bf16s(p.args.shared_down) + row * in
            : bf16s(p.args.down) +
                  (int64_t{shared.choices->unit_experts[unit_of(cursor.part)]} * p.args.dim + row) *
                      in;
    from += cursor.begin;
    const int outputs = min(2, end - cursor.output),
              inputs = min(p.piece_inputs, in - cursor.begin);
    const auto bytes = static_cast<uint32_t>(inputs) * 2;
    Barrier& full = ring.full[place];
    barrier_expect(full, static_cast<uint32_t>(outputs) * bytes);
    if (inputs == in) {  // adjacent rows in one
      bulk_copy(ring.at(place), from, static_cast<uint32_t>(outputs) * bytes, full);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < outputs; ++i)
      bulk_copy(ring.at(place) + i * inputs, from + i * int64_t{in}, bytes, full);
  }
  __device__ void ask(int place) {
    if (cursor.output >= end) return;
    if (lane == 0) copy(place);
    cursor.begin += p.piece_inputs;
    if (cursor.begin < inputs_of(cursor.part)) return;
    cursor.begin = 0;
    if (++cursor.part == parts) cursor.part = 0, cursor.output += 2;
  }

  // Sums of two outputs for all rows, [row][2], over one expert.
  __device__ __forceinline__ void add_part(int part, float (&sums)[2 * ROWS]) {
    const SmallBatchMoeArgs& args = p.args;
    const Choices& choices = *shared.choices;
    const int in = inputs_of(part);
    const bool common = is_shared(part);
    const bf16* inner[ROWS];
    float weights[ROWS];
    uint32_t known = 0;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      const int choice = common ? row : choices.row_choices[unit_of(part)][row];
      if (row >= args.rows || choice == kNone) continue;
      known |= 1u << row;
      weights[row] = common ? choices.shared_gates[row] : choices.weights[choice];
      inner[row] = shared.rows +
                   (common ? args.rows * args.router.top_k * args.ffn + row * in : choice * in);
    }
#pragma unroll 1
    for (int begin = 0; begin < in; begin += p.piece_inputs) {
      const bf16* first = ring.wait();
      const int inputs = min(p.piece_inputs, in - begin);
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
      ask(ring.place);
      ring.next();
#pragma unroll
      for (int row = 0; row < ROWS; ++row) {
        if (ROWS > 1 && (known >> row & 1) == 0) continue;
        sums[2 * row] += weights[row] * partial[2 * row];
        sums[2 * row + 1] += weights[row] * partial[2 * row + 1];
      }
    }
  }

  // What biases add to an output of a row.
  __device__ float bias(int row, int output) const {
    if (p.args.down_bias == nullptr) return 0;
    const int top_k = p.args.router.top_k;
    float sum = 0;
#pragma unroll 1
    for (int i = row * top_k; i < (row + 1) * top_k; ++i)
      sum += shared.choices->weights[i] *
             to_float(bf16s(
                 p.args.down_bias)[int64_t{shared.choices->experts[i]} * p.args.dim + output]);
    return sum;
  }

  __device__ void run(int output) {
    const SmallBatchMoeArgs& args = p.args;
    constexpr int kLanes = 16 / ROWS;  // that have the same sum
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
      for (int part = 0; part < parts; ++part) add_part(part, sums);
      add_by_halves(sums);
      if (mine)
        static_cast<bf16*>(args.y)[at] =
            __float2bfloat16_rn(before + args.scale * (sums[0] + more));
    }
  }
};

template <int ROWS>
__global__ void __launch_bounds__(kThreads, 2) few_down_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const SmallBatchMoeArgs& args = p.args;
  const Shared shared(raw, p);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t index = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int64_t warps = int64_t{kWarps} * gridDim.x;
  const int first = static_cast<int>(args.dim * index / warps);
  const int end = static_cast<int>(args.dim * (index + 1) / warps);
  init_barriers(shared);
  // The kernel in front began behind the one that wrote the scores, so they can be read before it
  // has ended.
  choose(args, shared.words, *shared.choices);
  DownWarp<ROWS> own{p,
                     shared,
                     lane,
                     shared.ring(p, warp),
                     {.output = first, .part = 0, .begin = 0},
                     end,
                     shared.choices->units + (args.shared_ffn > 0 ? 1 : 0)};
#pragma unroll 1
  for (int i = 0; i < p.ahead; ++i) own.ask(i);
  wait_for_previous();
  release_next();
  if (threadIdx.x == 0) {
    const auto chosen = static_cast<uint32_t>(args.rows * args.router.top_k * args.ffn) * 2;
    const auto common = static_cast<uint32_t>(args.rows * args.shared_ffn) * 2;
    barrier_expect(shared.rows_full(), chosen + common);
    bulk_copy(shared.rows, args.inner, chosen, shared.rows_full());
    if (common > 0)
      bulk_copy(reinterpret_cast<char*>(shared.rows) + chosen, args.shared_inner, common,
                shared.rows_full());
  }
  barrier_wait(shared.rows_full(), 0);
  own.run(first);
}

// --- on the host ---

struct RingPlan {
  int piece_inputs = 0, ahead = 0;  // 0: no room
  size_t bytes() const {
    return size_t{kWarps} * static_cast<size_t>(ahead) * static_cast<size_t>(piece_inputs) * 4;
  }
};

// Pieces as large as can be, but two of each warp.
RingPlan ring_for(int inputs, size_t room) {
  RingPlan plan;
  for (int pieces = 1;; ++pieces) {
    const int piece = ((inputs + pieces - 1) / pieces + 7) / 8 * 8;
    if (piece < kFewInputs && pieces > 1) return plan;
    if (piece > kMostInputs) continue;
    plan.piece_inputs = piece;
    plan.ahead = static_cast<int>(
        std::min(room / (size_t{kWarps} * static_cast<size_t>(piece) * 4), size_t{kMostAhead}));
    if (plan.ahead >= 2) return plan;
  }
}

struct Plan {
  RingPlan up, down;
  size_t up_bytes = 0, down_bytes = 0;
};

// The blocks of gate_up have more than half of a multiprocessor's shared memory, so that no two
// come to lie on one, and leave down's what they need to begin beside them, where they can.
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
    plan.up = ring_for(args.dim, left(room, up_fixed));
    if (plan.up.ahead >= 2) break;
  }
  plan.up_bytes = std::max(up_fixed + plan.up.bytes(), most / 2 + kReserved);
  for (const size_t room : {left(most, plan.up_bytes + kReserved), most}) {
    plan.down = ring_for(args.ffn, left(room, down_fixed));
    if (plan.down.ahead >= 2) break;
  }
  plan.down_bytes = down_fixed + plan.down.bytes();
  return plan;
}

Status start_down(const Params& params, int blocks, size_t bytes, const LaunchOptions& launch) {
  const auto start = [&](auto* kernel) -> Status {
    ESP_RETURN_IF_ERROR(allow_shared("experts", kernel, bytes));
    return launch_kernel("experts", kernel, dim3(static_cast<unsigned>(blocks)), kThreads, bytes,
                         launch, params);
  };
  if (params.args.rows == 1) return start(few_down_kernel<1>);
  if (params.args.rows == 2) return start(few_down_kernel<2>);
  return start(few_down_kernel<4>);
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
  return plan.up.ahead > 0 && plan.down.ahead > 0 &&
         score_bytes(args.dim) <= static_cast<size_t>(traits.shared_bytes_per_block);
}

Status small_batch_moe(const SmallBatchMoeArgs& args, const LaunchOptions& launch) {
  if (args.rows == 0) return {};
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const Plan plan = plan_for(args, traits);
  const int scores = args.router.num_experts + (args.shared_gate_weights == nullptr ? 0 : 1);
  const size_t bytes = score_bytes(args.dim);
  ESP_RETURN_IF_ERROR(allow_shared("experts", few_score_kernel, bytes));
  ESP_RETURN_IF_ERROR(
      launch_kernel("experts", few_score_kernel,
                    dim3(static_cast<unsigned>((scores + kScoreWarps - 1) / kScoreWarps),
                         static_cast<unsigned>(args.rows)),
                    kScoreWarps * 32, bytes, launch, Params{args, 0, 0}));
  ESP_RETURN_IF_ERROR(allow_shared("experts", few_gate_up_kernel, plan.up_bytes));
  const int blocks = traits.num_multiprocessors;
  ESP_RETURN_IF_ERROR(launch_kernel("experts", few_gate_up_kernel,
                                    dim3(static_cast<unsigned>(blocks)), kThreads, plan.up_bytes,
                                    launch, Params{args, plan.up.piece_inputs, plan.up.ahead}));
  return start_down({args, plan.down.piece_inputs, plan.down.ahead}, blocks, plan.down_bytes,
                    launch);
}

}  // namespace espalier::kernels::cuda
