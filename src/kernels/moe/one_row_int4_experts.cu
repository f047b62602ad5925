// Experts of one row in codes of 4 bits on Hopper, as two GEMVs chained by PDL behind the scores
// (moe_small_batch.cu); shapes in cuda_small_batch.h, records of int4_experts.h.
// Computed as y^T = W x^T: codes become whole numbers as the 16 rows of mma.sync, x is one of its
// eight columns, and the sum over a record's 128 inputs is scaled in float32.
// one_row_gate_up: two warps have eight rows of gate, the same eight of up, and half of the inputs
// each. one_row_down: a block has 16 outputs; its warps take turns at the selected experts, whose
// sums are weighted and then added up in shared memory. It selects experts and fills its buffers
// while one_row_gate_up still runs, for the scores are there.
// Pipeline: each warp copies its part of a record (1 KiB) by cp.async into a ring buffer of its
// own, whose lanes read the codes that they copied themselves; all of a warp's bytes are in flight
// at once where inputs are few. Roof: memory, the selected experts once, 4.19 bits a weight.
// History: docs/notes/int4_experts.md.
#include "kernels/moe/one_row_int4_experts.h"

#include <algorithm>

#include "kernels/activation/activation.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/moe/int4_expert_codes.cuh"
#include "kernels/moe/small_batch_experts.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kDepth = 8;  // steps of a warp's ring buffer
constexpr int kTeams = 6;  // of two warps, in a block of gate and up
constexpr int kUpThreads = kTeams * 64;
constexpr int kDownWarps = 8, kDownThreads = kDownWarps * 32;
constexpr int kStepInputs = kInt4ExpertInputs, kStepBytes = kStepInputs * 2;  // of x
constexpr int kPartsOfRecord = 4;
constexpr size_t kReservedBytes = 1024;  // of a multiprocessor for each block, by the driver

// Where a warp's 16 rows of a matrix lie: in a part of each of the records of 64 rows.
struct PartRows {
  const char* first;  // the record of the first inputs
  int64_t stride;     // to that of the next
  int part;

  __device__ PartRows(const void* matrix, const Int4ExpertShape& shape, int sixteen)
      : part(sixteen % kPartsOfRecord) {
    const int record = sixteen / kPartsOfRecord, two = record / 2 * 2;
    const int beside = two + 1 < shape.row_records() ? 2 : 1;
    first = static_cast<const char*>(matrix) +
            (int64_t{two} * shape.input_records() + record % 2) * kInt4ExpertRecordBytes;
    stride = int64_t{beside} * kInt4ExpertRecordBytes;
  }
  // Starts the calling lane's copies of a step; Int4ExpertCodes::of_part() reads what lands.
  __device__ __forceinline__ void copy(int step, char* to) const {
    constexpr int kHalf = kInt4ExpertCodeBytes / 2, kPartHalf = kHalf / kPartsOfRecord;
    constexpr int kScales = kInt4ExpertScaleBytes / kPartsOfRecord;
    constexpr int kZeros = kInt4ExpertZeroBytes / kPartsOfRecord;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const char* record = first + step * stride;
    copy_async(to + lane * 16, record + part * kPartHalf + lane * 16, true);
    copy_async(to + kPartHalf + lane * 16, record + kHalf + part * kPartHalf + lane * 16, true);
    const char* behind = record + kInt4ExpertCodeBytes;
    if (lane < kScales / 16)
      copy_async(to + 2 * kPartHalf + lane * 16, behind + part * kScales + lane * 16, true);
    else if (lane == kScales / 16)
      copy_async(to + 2 * kPartHalf + kScales, behind + kInt4ExpertScaleBytes + part * kZeros,
                 true);
  }
};
static_assert(kInt4ExpertScaleBytes / kPartsOfRecord == 32);
static_assert(kInt4ExpertZeroBytes / kPartsOfRecord == 16);

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

// --- the stream ---

// Adds a step's inputs to the sums of the lane's two rows, which lanes of column 0 have. x: of
// these inputs, as load_pairs() has it.
__device__ __forceinline__ void add_step(const char* part, const char* x, float factor,
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

// A warp's ring buffer of parts.
struct PartStages {
  char* base;
  __device__ char* at(int i) const { return base + i % kDepth * kInt4ExpertPartBytes; }
};

// Starts the copies of the first of `count` steps; `copy(i, to)` starts those of the i-th.
template <typename Copy>
__device__ __forceinline__ void begin_steps(const PartStages& stages, int count, const Copy& copy) {
  for (int i = 0; i < kDepth; ++i) {
    if (i < count) copy(i, stages.at(i));
    copy_commit();
  }
}
// Streams the steps that begin_steps() began: `add(i, part)` adds the i-th.
template <typename Copy, typename Add>
__device__ __forceinline__ void finish_steps(const PartStages& stages, int count, const Copy& copy,
                                             const Add& add) {
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
  static Layout of_up(const SmallBatchMoeArgs& args) {
    return {.buffers = size_t{kTeams} * 2 * kDepth * kInt4ExpertPartBytes,
            .x = static_cast<size_t>(args.dim) * 2,
            .sums = size_t{kTeams} * 16 * 4,
            .words = words_of(args)};
  }
  static Layout of_down(const SmallBatchMoeArgs& args) {
    return {.buffers = size_t{kDownWarps} * kDepth * kInt4ExpertPartBytes,
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
  __device__ PartStages stages(int warp) const {
    return {buffers + warp * kDepth * kInt4ExpertPartBytes};
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

__global__ void __launch_bounds__(kUpThreads, 1) one_row_gate_up_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const Shared shared(raw, p.layout);
  const SmallBatchMoeArgs& args = p.args;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int team = warp / 2, half = warp % 2;
  const Int4ExpertShape shape{2 * args.ffn, args.dim, true};
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
    const PartRows rows(
        matrix_of(args.gate_up, args.gate_up_stride, chosen.active_experts[task.active]), shape,
        task.sixteen);
    const auto copy = [&](int i, char* to) { rows.copy(begin + i, to); };
    const PartStages stages = shared.stages(warp);
    begin_steps(stages, index < tasks ? count : 0, copy);
    if (loads_x) {
      load_row<kUpThreads>(args.norm_weight == nullptr ? args.x : args.normed, args.dim, shared.x);
      __syncthreads();
      loads_x = false;
    }
    if (index >= tasks) continue;
    const char* x = lane_row(shared.x + begin * kStepBytes);
    float sums[2] = {};
    finish_steps(stages, count, copy, [&](int i, const char* part) {
      add_step(part, x != nullptr ? x + i * kStepBytes : nullptr, 1, sums);
    });
    float* exchanged = shared.sums + team * 16;
    if (half == 1 && lane % 4 == 0)
      exchanged[lane / 4] = sums[0], exchanged[8 + lane / 4] = sums[1];
    named_barrier_sync(1 + team, 64);
    if (half == 0 && lane % 4 == 0) {
      const float gate = sums[0] + exchanged[lane / 4], up = sums[1] + exchanged[8 + lane / 4];
      static_cast<bf16*>(args.inner)[chosen.active_pairs[task.active][0] * args.ffn +
                                     task.sixteen * 8 + lane / 4] =
          from_float<bf16>(activated(args.activation, gate, up, args.limit));
    }
    named_barrier_sync(1 + team, 64);  // before the sums of the next task
  }
}

// --- down ---

// The steps of a warp: those of the selected experts warp, warp + kDownWarps, ...
struct DownSteps {
  const SmallBatchMoeArgs& args;
  const ChosenExperts& chosen;
  const Int4ExpertShape shape;
  const int warp, sixteen;

  __device__ int count() const {
    const int experts = (chosen.num_active - warp + kDownWarps - 1) / kDownWarps;
    return max(experts, 0) * shape.input_records();
  }
  __device__ int active(int i) const { return warp + i / shape.input_records() * kDownWarps; }
  __device__ __forceinline__ void copy(int i, char* to) const {
    const PartRows rows(matrix_of(args.down, args.down_stride, chosen.active_experts[active(i)]),
                        shape, sixteen);
    rows.copy(i % shape.input_records(), to);
  }
};

// Writes the block's 16 outputs.
__device__ void write_down(const SmallBatchMoeArgs& args, const float* sums, int sixteen) {
  const int thread = static_cast<int>(threadIdx.x), output = sixteen * 16 + thread;
  if (thread >= 16 || output >= args.dim) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kDownWarps; ++w) sum += sums[w * 16 + thread];
  sum *= args.scale;
  if (args.residual != nullptr) sum += to_float(bf16s(args.residual)[output]);
  static_cast<bf16*>(args.y)[output] = from_float<bf16>(sum);
}

__global__ void __launch_bounds__(kDownThreads, 2) one_row_down_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const Shared shared(raw, p.layout);
  const SmallBatchMoeArgs& args = p.args;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Int4ExpertShape shape{args.dim, args.ffn, false};
  // The kernel in front began after the one that wrote the scores had ended, so they can be read
  // before the kernel in front ends.
  select_experts(args, shared.words, *shared.chosen);
  const ChosenExperts& chosen = *shared.chosen;
  const PartStages stages = shared.stages(warp);
  bool first = true;
  for (int sixteen = static_cast<int>(blockIdx.x); sixteen < args.dim / 16;
       sixteen += static_cast<int>(gridDim.x)) {
    const DownSteps steps{args, chosen, shape, warp, sixteen};
    const int count = steps.count();
    const auto copy = [&](int i, char* to) { steps.copy(i, to); };
    begin_steps(stages, count, copy);
    if (first) {
      wait_for_previous();
      release_next();
      load_row<kDownThreads>(args.inner, args.router.top_k * args.ffn, shared.x);
      __syncthreads();
      first = false;
    }
    float sums[2] = {};
    finish_steps(stages, count, copy, [&](int i, const char* part) {
      const int pair = chosen.active_pairs[steps.active(i)][0];
      const char* x = shared.x + pair * args.ffn * 2 + i % shape.input_records() * kStepBytes;
      add_step(part, lane_row(x), chosen.weights[pair], sums);
    });
    if (lane % 4 == 0) {
      shared.sums[warp * 16 + lane / 4] = sums[0];
      shared.sums[warp * 16 + 8 + lane / 4] = sums[1];
    }
    __syncthreads();
    write_down(args, shared.sums, sixteen);
    __syncthreads();  // before the sums of the next outputs
  }
}

}  // namespace

bool one_row_int4_supports(const SmallBatchMoeArgs& args, const DeviceTraits& traits) {
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  return args.int4 && traits.compute_capability == 90 && args.rows <= 1 && args.shared_ffn == 0 &&
         args.gate_up_bias == nullptr && args.down_bias == nullptr && !args.gate_up_scales &&
         args.dim % kStepInputs == 0 && args.ffn % kStepInputs == 0 &&
         args.gate_up_stride % 16 == 0 && args.down_stride % 16 == 0 &&
         Layout::of_up(args).bytes() <= most && Layout::of_down(args).bytes() <= most;
}

Status one_row_int4_experts(const SmallBatchMoeArgs& args, const DeviceTraits& traits,
                            const LaunchOptions& launch) {
  const Params up{args, Layout::of_up(args)}, down{args, Layout::of_down(args)};
  const auto blocks = static_cast<unsigned>(traits.num_multiprocessors);
  ESP_RETURN_IF_ERROR(allow_shared("small_batch_moe", one_row_gate_up_kernel, up.layout.bytes()));
  ESP_RETURN_IF_ERROR(allow_shared("small_batch_moe", one_row_down_kernel, down.layout.bytes()));
  ESP_RETURN_IF_ERROR(launch_kernel("small_batch_moe", one_row_gate_up_kernel, dim3(blocks),
                                    kUpThreads, up.layout.bytes(), launch, up));
  return launch_kernel("small_batch_moe", one_row_down_kernel, dim3(blocks), kDownThreads,
                       down.layout.bytes(), launch, down);
}

}  // namespace espalier::kernels::cuda
