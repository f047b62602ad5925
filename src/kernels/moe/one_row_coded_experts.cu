// Experts of one row in codes of 4 bits on Hopper, as two GEMVs chained by PDL behind the scores
// (moe_small_batch.cu); shapes in cuda_small_batch.h, records of int4_experts.h or mxfp4_weights.h.
// Computed as y^T = W x^T: codes become the 16 rows of mma.sync, x is one of its eight columns.
// Int4: whole numbers, and the sum over a record's inputs is scaled in float32; MXFP4: the numbers.
// one_row_gate_up: two warps have eight rows of gate, the same eight of up, and half of the inputs
// each. one_row_down: a block has 16 outputs; its warps share the records of the selected experts,
// whose sums are weighted and then added up in shared memory. It selects experts and fills its
// buffers while one_row_gate_up still runs, for the scores are there.
// Pipeline: each warp copies its part of a record by cp.async into a ring buffer of its own, whose
// lanes read the codes that they copied themselves. Roof: memory, the selected experts once.
// History: docs/notes/int4_experts.md.
#include "kernels/moe/one_row_coded_experts.h"

#include <algorithm>

#include "kernels/activation/activation.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/moe/int4_expert_codes.cuh"
#include "kernels/moe/mxfp4_codes.cuh"
#include "kernels/moe/small_batch_experts.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kDownWarps = 8, kDownThreads = kDownWarps * 32;
constexpr int kPartsOfRecord = 4;

// --- x ---

// A row of x in shared memory is a column of mma.sync's second operand: of 32 inputs a lane reads
// its four pairs, eight inputs apart, as one vector of 16 bytes. This stores the c-th eight inputs.
__device__ __forceinline__ void store_eight(char* row, int c, const uint4& eight) {
  constexpr int kStride = 4;  // words between the pairs of an eight
  uint32_t* to = reinterpret_cast<uint32_t*>(row + c / 4 * 64) + c % 4;
  to[0] = eight.x, to[kStride] = eight.y, to[2 * kStride] = eight.z, to[3 * kStride] = eight.w;
}
// The calling lane's pairs of the i-th 32 inputs: x and y are of the first 16 of them. lane_row:
// the row's begin + lane % 4 * 16; null: the lane's column has no row.
__device__ __forceinline__ uint4 load_pairs(const char* lane_row, int i) {
  if (lane_row == nullptr) return {};
  return *reinterpret_cast<const uint4*>(lane_row + i * 64);
}

// --- formats ---

// What the kernels read of a record of a format: the part that one of its four warps has.
// DEPTH: steps of a warp's ring buffer. TEAMS: of two warps, in a block of gate and up.
struct Int4Part {
  using Codes = Int4ExpertCodes;
  static constexpr int kDepth = 8, kTeams = 6;
  static constexpr int kStepInputs = kInt4ExpertInputs;
  static constexpr int kRecordBytes = kInt4ExpertRecordBytes, kBytes = kInt4ExpertPartBytes;

  // Starts the calling lane's copies; Int4ExpertCodes::of_part() reads what lands.
  static __device__ __forceinline__ void copy(const char* record, int part, char* to) {
    constexpr int kHalf = kInt4ExpertCodeBytes / 2, kPartHalf = kHalf / kPartsOfRecord;
    constexpr int kScales = kInt4ExpertScaleBytes / kPartsOfRecord;
    constexpr int kZeros = kInt4ExpertZeroBytes / kPartsOfRecord;
    static_assert(kScales == 32 && kZeros == 16);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    copy_async(to + lane * 16, record + part * kPartHalf + lane * 16, true);
    copy_async(to + kPartHalf + lane * 16, record + kHalf + part * kPartHalf + lane * 16, true);
    const char* behind = record + kInt4ExpertCodeBytes;
    if (lane < kScales / 16)
      copy_async(to + 2 * kPartHalf + lane * 16, behind + part * kScales + lane * 16, true);
    else if (lane == kScales / 16)
      copy_async(to + 2 * kPartHalf + kScales, behind + kInt4ExpertScaleBytes + part * kZeros,
                 true);
  }
  // Adds a step's inputs to the sums of the lane's two rows, which lanes of column 0 have. x: of
  // these inputs, as load_pairs() has it.
  static __device__ __forceinline__ void add(const char* part, const char* x, float factor,
                                             float (&sums)[2]) {
    const auto codes = Int4ExpertCodes::of_part(part, static_cast<int>(threadIdx.x) % 32);
    float chains[2][4] = {};
    const auto multiply = [&]<int PART>() {
      const uint4 pairs = load_pairs(x, PART);
      uint32_t fragments[2][4];
      codes.template widen_whole<PART>(fragments);
      mma(chains[0], fragments[0], pairs.x, pairs.y);
      mma(chains[1], fragments[1], pairs.z, pairs.w);
    };
    multiply.template operator()<0>();
    multiply.template operator()<1>();
    multiply.template operator()<2>();
    multiply.template operator()<3>();
    sums[0] += factor * codes.scales.upper() * (chains[0][0] + chains[1][0]);
    sums[1] += factor * codes.scales.lower() * (chains[0][2] + chains[1][2]);
  }
};

// Of codes that become weights, whose records have 64 inputs: codes, scales and, where there are
// some, zero points.
template <typename CODES>
struct WeightsPart {
  using Codes = CODES;
  static constexpr int kDepth = 8, kTeams = 11;
  static constexpr int kStepInputs = Codes::kInputs;
  static constexpr int kRecordBytes = Codes::kRecordBytes, kBytes = Codes::kPartBytes;

  static __device__ __forceinline__ void copy(const char* record, int part, char* to) {
    constexpr int kCodeBytes = kStepInputs * 64 / 2, kCodes = kCodeBytes / kPartsOfRecord;
    constexpr int kScales = Codes::kScaleBytes / kPartsOfRecord;
    constexpr int kZeros = kBytes - kCodes - kScales;
    static_assert(kScales % 16 == 0 && kZeros % 16 == 0 && kScales + kZeros <= 512);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    copy_async(to + lane * 16, record + part * kCodes + lane * 16, true);
    const char* behind = record + kCodeBytes;
    if (lane < kScales / 16)
      copy_async(to + kCodes + lane * 16, behind + part * kScales + lane * 16, true);
    else if (lane < (kScales + kZeros) / 16)
      copy_async(to + kCodes + lane * 16,
                 behind + Codes::kScaleBytes + part * kZeros + (lane - kScales / 16) * 16, true);
  }
  static __device__ __forceinline__ void add(const char* part, const char* x, float factor,
                                             float (&sums)[2]) {
    const auto codes = Codes::of_part(part, static_cast<int>(threadIdx.x) % 32);
    float chains[2][4] = {};
    const auto multiply = [&]<int PART>() {
      const uint4 pairs = load_pairs(x, PART);
      uint32_t fragments[2][4];
      codes.template widen<PART>(fragments);
      mma(chains[0], fragments[0], pairs.x, pairs.y);
      mma(chains[1], fragments[1], pairs.z, pairs.w);
    };
    multiply.template operator()<0>();
    multiply.template operator()<1>();
    sums[0] += factor * (Codes::kWhole * (chains[0][0] + chains[1][0]));
    sums[1] += factor * (Codes::kWhole * (chains[0][2] + chains[1][2]));
  }
};
using Mxfp4Part = WeightsPart<Mxfp4Codes>;
using Int4SmallPart = WeightsPart<Int4SmallCodes>;

// Where a warp's 16 rows of a matrix lie: in a part of each of the records of 64 rows.
template <typename FORMAT>
struct PartRows {
  const char* first;  // the record of the first inputs
  int64_t stride;     // to that of the next
  int part;

  template <typename SHAPE>
  __device__ PartRows(const void* matrix, const SHAPE& shape, int sixteen)
      : part(sixteen % kPartsOfRecord) {
    const int record = sixteen / kPartsOfRecord, two = record / 2 * 2;
    const int beside = two + 1 < shape.row_records() ? 2 : 1;
    first = static_cast<const char*>(matrix) +
            (int64_t{two} * shape.input_records() + record % 2) * FORMAT::kRecordBytes;
    stride = int64_t{beside} * FORMAT::kRecordBytes;
  }
  __device__ __forceinline__ void copy(int step, char* to) const {
    FORMAT::copy(first + step * stride, part, to);
  }
};

// --- the stream ---

// A warp's ring buffer of parts.
template <typename FORMAT>
struct PartStages {
  static constexpr int kDepth = FORMAT::kDepth;
  char* base;
  __device__ char* at(int i) const { return base + i % kDepth * FORMAT::kBytes; }
};

// Starts the copies of the first of `count` steps; `copy(i, to)` starts those of the i-th.
template <typename STAGES, typename Copy>
__device__ __forceinline__ void begin_steps(const STAGES& stages, int count, const Copy& copy) {
  for (int i = 0; i < STAGES::kDepth; ++i) {
    if (i < count) copy(i, stages.at(i));
    copy_commit();
  }
}
// Streams the steps that begin_steps() began: `add(i, part)` adds the i-th.
template <typename STAGES, typename Copy, typename Add>
__device__ __forceinline__ void finish_steps(const STAGES& stages, int count, const Copy& copy,
                                             const Add& add) {
  constexpr int kDepth = STAGES::kDepth;
  for (int i = 0; i < count; ++i) {
    copy_wait<kDepth - 1>();
    __syncwarp();
    add(i, stages.at(i));
    __syncwarp();
    if (i + kDepth < count) copy(i + kDepth, stages.at(i));
    copy_commit();
  }
}

// Shared memory of both kernels: buffers, x, sums, the selected experts, the words of the
// selection.
struct Layout {
  size_t buffers, x, sums, words;

  static size_t sixteens(size_t bytes) { return (bytes + 15) / 16 * 16; }
  template <typename FORMAT>
  static Layout of_up(const SmallBatchMoeArgs& args) {
    return {.buffers = size_t{FORMAT::kTeams} * 2 * FORMAT::kDepth * FORMAT::kBytes,
            .x = static_cast<size_t>(args.dim) * 2,
            .sums = size_t{FORMAT::kTeams} * 16 * 4,
            .words = words_of(args)};
  }
  template <typename FORMAT>
  static Layout of_down(const SmallBatchMoeArgs& args) {
    return {.buffers = size_t{kDownWarps} * FORMAT::kDepth * FORMAT::kBytes,
            .x = static_cast<size_t>(args.router.top_k * args.ffn) * 2,
            .sums = size_t{kDownWarps} * 16 * 4,
            .words = words_of(args)};
  }
  static size_t words_of(const SmallBatchMoeArgs& args) {
    return sixteens(static_cast<size_t>(route_words(args.router)) * 4);
  }
  size_t bytes() const { return buffers + x + sums + words + sixteens(sizeof(ChosenExperts)); }
};
struct Params {
  SmallBatchMoeArgs args;
  Layout layout;
};
struct Shared {
  char *buffers, *x;
  float *sums, *words;
  ChosenExperts* chosen;
  __device__ Shared(char* raw, const Layout& layout)
      : buffers(raw),
        x(buffers + layout.buffers),
        sums(reinterpret_cast<float*>(x + layout.x)),
        words(sums + layout.sums / 4),
        chosen(reinterpret_cast<ChosenExperts*>(words + layout.words / 4)) {}
  template <typename FORMAT>
  __device__ PartStages<FORMAT> stages(int warp) const {
    return {buffers + warp * FORMAT::kDepth * FORMAT::kBytes};
  }
};

// Loads `count` inputs into shared memory, by all THREADS of the block; past L1, which may hold
// those of the layer before.
template <int THREADS>
__device__ void load_row(const void* from, int count, char* to) {
  for (int c = static_cast<int>(threadIdx.x); c < count / 8; c += THREADS)
    store_eight(to, c, __ldcg(static_cast<const uint4*>(from) + c));
}
// The row's begin for load_pairs(): column 0 alone has a row.
__device__ __forceinline__ const char* lane_row(const char* row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return lane < 4 ? row + lane * 16 : nullptr;
}

__device__ __forceinline__ const char* matrix_of(const void* all, int64_t stride, int expert) {
  return static_cast<const char*>(all) + expert * stride;
}

// --- gate and up ---

// Eight rows of gate and of up of a selected expert by half of the inputs.
struct UpTask {
  int active, sixteen;
  __device__ UpTask(int task, int sixteens) : active(task / sixteens), sixteen(task % sixteens) {}
};

__device__ __forceinline__ float bias_at(const void* biases, int64_t at) {
  return biases == nullptr ? 0.0f : to_float(bf16s(biases)[at]);
}

template <typename FORMAT>
__global__ void __launch_bounds__(FORMAT::kTeams * 64, 1) one_row_gate_up_kernel(const Params p) {
  constexpr int kTeams = FORMAT::kTeams, kStepBytes = FORMAT::kStepInputs * 2;
  extern __shared__ __align__(128) char raw[];
  const Shared shared(raw, p.layout);
  const SmallBatchMoeArgs& args = p.args;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int team = warp / 2, half = warp % 2;
  const auto shape = FORMAT::Codes::shape(2 * args.ffn, args.dim, true);
  wait_for_previous();
  release_next();  // the next kernel reads the scores, which are there now
  select_experts(args, shared.words, *shared.chosen);
  const ChosenExperts& chosen = *shared.chosen;
  if (args.counts.pairs != nullptr && blockIdx.x == 0) count_rows(args, chosen);
  const int sixteens = 2 * args.ffn / 16, tasks = chosen.num_active * sixteens;
  const int steps = shape.input_records(), begin = steps * half / 2;
  const int count = steps * (half + 1) / 2 - begin;
  bool loads_x = true;
  for (int first = static_cast<int>(blockIdx.x); first < tasks;
       first += kTeams * static_cast<int>(gridDim.x)) {
    const int index = first + team * static_cast<int>(gridDim.x);
    const UpTask task(min(index, tasks - 1), sixteens);
    const int expert = chosen.active_experts[task.active], output = task.sixteen * 8 + lane / 4;
    const PartRows<FORMAT> rows(matrix_of(args.gate_up, args.gate_up_stride, expert), shape,
                                task.sixteen);
    const auto copy = [&](int i, char* to) { rows.copy(begin + i, to); };
    const auto stages = shared.template stages<FORMAT>(warp);
    begin_steps(stages, index < tasks ? count : 0, copy);
    if (loads_x) {
      load_row<kTeams * 64>(args.norm_weight == nullptr ? args.x : args.normed, args.dim, shared.x);
      __syncthreads();
      loads_x = false;
    }
    if (index >= tasks) continue;
    const char* x = lane_row(shared.x + begin * kStepBytes);
    float sums[2] = {};
    finish_steps(stages, count, copy, [&](int i, const char* part) {
      FORMAT::add(part, x != nullptr ? x + i * kStepBytes : nullptr, 1, sums);
    });
    float* exchanged = shared.sums + team * 16;
    if (half == 1 && lane % 4 == 0)
      exchanged[lane / 4] = sums[0], exchanged[8 + lane / 4] = sums[1];
    named_barrier_sync(1 + team, 64);
    if (half == 0 && lane % 4 == 0) {
      const int64_t at = int64_t{expert} * 2 * args.ffn + output;
      const float gate = sums[0] + exchanged[lane / 4] + bias_at(args.gate_up_bias, at);
      const float up =
          sums[1] + exchanged[8 + lane / 4] + bias_at(args.gate_up_bias, at + args.ffn);
      static_cast<bf16*>(args.inner)[chosen.active_pairs[task.active][0] * args.ffn + output] =
          from_float<bf16>(activated(args.activation, gate, up, args.limit));
    }
    named_barrier_sync(1 + team, 64);  // before the sums of the next task
  }
}

// --- down ---

// A step of a warp: of the active-th selected expert.
struct DownStep {
  int active, step;
};

// The steps of all selected experts one after the other, of which each warp has a run.
template <typename FORMAT>
struct DownSteps {
  const SmallBatchMoeArgs& args;
  const ChosenExperts& chosen;
  const decltype(FORMAT::Codes::shape(0, 0, false)) shape;
  const int begin, end, sixteen;

  __device__ DownSteps(const SmallBatchMoeArgs& of, const ChosenExperts& experts, int warp,
                       int outputs)
      : args(of),
        chosen(experts),
        shape(FORMAT::Codes::shape(of.dim, of.ffn, false)),
        begin(experts.num_active * shape.input_records() * warp / kDownWarps),
        end(experts.num_active * shape.input_records() * (warp + 1) / kDownWarps),
        sixteen(outputs) {}
  __device__ int count() const { return end - begin; }
  __device__ __forceinline__ DownStep at(int i) const {
    const int steps = shape.input_records(), active = (begin + i) / steps;
    return {active, begin + i - active * steps};
  }
  __device__ __forceinline__ void copy(int i, char* to) const {
    const DownStep of = at(i);
    const PartRows<FORMAT> rows(
        matrix_of(args.down, args.down_stride, chosen.active_experts[of.active]), shape, sixteen);
    rows.copy(of.step, to);
  }
};

// The weighted biases of the selected experts for an output.
__device__ float down_bias(const SmallBatchMoeArgs& args, const ChosenExperts& chosen, int output) {
  if (args.down_bias == nullptr) return 0;
  float sum = 0;
  for (int i = 0; i < chosen.num_active; ++i)
    sum += chosen.weights[chosen.active_pairs[i][0]] *
           bias_at(args.down_bias, int64_t{chosen.active_experts[i]} * args.dim + output);
  return sum;
}

// Writes the block's 16 outputs.
__device__ void write_down(const SmallBatchMoeArgs& args, const ChosenExperts& chosen,
                           const float* sums, int sixteen) {
  const int thread = static_cast<int>(threadIdx.x), output = sixteen * 16 + thread;
  if (thread >= 16 || output >= args.dim) return;
  float sum = down_bias(args, chosen, output);
#pragma unroll
  for (int w = 0; w < kDownWarps; ++w) sum += sums[w * 16 + thread];
  sum *= args.scale;
  if (args.residual != nullptr) sum += to_float(bf16s(args.residual)[output]);
  static_cast<bf16*>(args.y)[output] = from_float<bf16>(sum);
}

template <typename FORMAT>
__global__ void __launch_bounds__(kDownThreads, 2) one_row_down_kernel(const Params p) {
  constexpr int kStepBytes = FORMAT::kStepInputs * 2;
  extern __shared__ __align__(128) char raw[];
  const Shared shared(raw, p.layout);
  const SmallBatchMoeArgs& args = p.args;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // The kernel in front began after the one that wrote the scores had ended, so they can be read
  // before the kernel in front ends.
  select_experts(args, shared.words, *shared.chosen);
  const ChosenExperts& chosen = *shared.chosen;
  const auto stages = shared.template stages<FORMAT>(warp);
  bool first = true;
  for (int sixteen = static_cast<int>(blockIdx.x); sixteen < args.dim / 16;
       sixteen += static_cast<int>(gridDim.x)) {
    const DownSteps<FORMAT> steps(args, chosen, warp, sixteen);
    const auto copy = [&](int i, char* to) { steps.copy(i, to); };
    begin_steps(stages, steps.count(), copy);
    if (first) {
      wait_for_previous();
      release_next();
      load_row<kDownThreads>(args.inner, args.router.top_k * args.ffn, shared.x);
      __syncthreads();
      first = false;
    }
    float sums[2] = {};
    finish_steps(stages, steps.count(), copy, [&](int i, const char* part) {
      const DownStep of = steps.at(i);
      const int pair = chosen.active_pairs[of.active][0];
      const char* x = shared.x + pair * args.ffn * 2 + of.step * kStepBytes;
      FORMAT::add(part, lane_row(x), chosen.weights[pair], sums);
    });
    if (lane % 4 == 0) {
      shared.sums[warp * 16 + lane / 4] = sums[0];
      shared.sums[warp * 16 + 8 + lane / 4] = sums[1];
    }
    __syncthreads();
    write_down(args, chosen, shared.sums, sixteen);
    __syncthreads();  // before the sums of the next outputs
  }
}

bool has_small_groups(const SmallBatchMoeArgs& args) { return args.int4_group == kInt4SmallGroup; }

template <typename FORMAT>
bool supports(const SmallBatchMoeArgs& args, size_t most) {
  return args.dim % FORMAT::kStepInputs == 0 && args.ffn % FORMAT::kStepInputs == 0 &&
         Layout::of_up<FORMAT>(args).bytes() <= most &&
         Layout::of_down<FORMAT>(args).bytes() <= most;
}

template <typename FORMAT>
Status start(const SmallBatchMoeArgs& args, const DeviceTraits& traits,
             const LaunchOptions& launch) {
  const Params up{args, Layout::of_up<FORMAT>(args)}, down{args, Layout::of_down<FORMAT>(args)};
  auto* const up_kernel = one_row_gate_up_kernel<FORMAT>;
  auto* const down_kernel = one_row_down_kernel<FORMAT>;
  ESP_RETURN_IF_ERROR(allow_shared("small_batch_moe", up_kernel, up.layout.bytes()));
  ESP_RETURN_IF_ERROR(allow_shared("small_batch_moe", down_kernel, down.layout.bytes()));
  const auto multiprocessors = static_cast<unsigned>(traits.num_multiprocessors);
  ESP_RETURN_IF_ERROR(launch_kernel("small_batch_moe", up_kernel, dim3(multiprocessors),
                                    FORMAT::kTeams * 64, up.layout.bytes(), launch, up));
  // Two on a multiprocessor, where there are outputs for more than one.
  const unsigned blocks = std::min(static_cast<unsigned>(args.dim / 16), 2 * multiprocessors);
  return launch_kernel("small_batch_moe", down_kernel, dim3(blocks), kDownThreads,
                       down.layout.bytes(), launch, down);
}

}  // namespace

bool one_row_coded_supports(const SmallBatchMoeArgs& args, const DeviceTraits& traits) {
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  return args.int4 != args.mxfp4 && traits.compute_capability == 90 && args.rows <= 1 &&
         args.shared_ffn == 0 && !args.gate_up_scales && args.gate_up_stride % 16 == 0 &&
         args.down_stride % 16 == 0 &&
         (args.mxfp4               ? supports<Mxfp4Part>(args, most)
          : has_small_groups(args) ? supports<Int4SmallPart>(args, most)
                                   : supports<Int4Part>(args, most));
}

Status one_row_coded_experts(const SmallBatchMoeArgs& args, const DeviceTraits& traits,
                             const LaunchOptions& launch) {
  if (args.mxfp4) return start<Mxfp4Part>(args, traits, launch);
  return has_small_groups(args) ? start<Int4SmallPart>(args, traits, launch)
                                : start<Int4Part>(args, traits, launch);
}

}  // namespace espalier::kernels::cuda
