// Grouped GEMM of experts in codes of 4 bits on Hopper, with the gather of rows in the loads and
// the gated activation behind. x [tokens, in] by the plan's pairs (gate and up) or [pairs, in] in
// the order of slots (down), W [experts] records of mxfp4_weights.h or int4_experts.h, y [pairs,
// out / 2] or [pairs, out]; bfloat16. Computed as y^T = W x^T: codes become bfloat16 as wgmma's 64
// rows in registers, the expert's rows are its columns in shared memory.
// Parallel: a persistent block for each multiprocessor; an item is 128 rows of W for up to 64
// (decode), 128 or 256 rows (prefill) of one expert; two consumer warp groups have 64 of W each.
// Pipeline: 16, 10 or 6 times 64 inputs in stages of a record's, W by TMA bulk copies, x by
// cp.async; it runs across items.
// Roof: memory at decode (each chosen expert's matrix once, 4.2 bits a weight); tensor cores at
// prefill. Rates and history: docs/notes/mxfp4_experts.md, docs/notes/int4_experts.md.
#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/wgmma_weights.cuh"
#include "kernels/moe/coded_experts.h"
#include "kernels/moe/coded_experts_decode.h"
#include "kernels/moe/coded_params.cuh"
#include "kernels/moe/int4_expert_codes.cuh"
#include "kernels/moe/mxfp4_codes.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kWarpGroup = 128;            // threads
constexpr int kBoxInputs = 64;             // of a row of x that lie together in a stage:
constexpr int kRowBytes = kBoxInputs * 2;  // the swizzle's width
constexpr int kThreads = (1 + kItemHalves) * kWarpGroup;  // a consumer warp group for each half
// The most rows a group on average that the divisions for few and for some rows are faster for.
constexpr int kFewRows = 40, kSomeRows = 600;
constexpr int kMostBytes = 227 * 1024;  // of shared memory, of a block

// CODES: Mxfp4Codes, Int4ExpertCodes or Int4SmallCodes. ROWS: of x in a tile.
template <typename CODES, int ROWS>
struct Division {
  using Codes = CODES;
  static constexpr int kRows = ROWS;
  static constexpr int kBoxes = Codes::kInputs / kBoxInputs;  // of x in a stage
  static constexpr int kBoxBytes = kRows * kRowBytes;
  static constexpr int kWanted = (ROWS == 256 ? 6 : ROWS == 128 ? 10 : 16) / kBoxes;
  static constexpr int kStageBytes = kBoxes * kBoxBytes + kItemHalves * Codes::kRecordBytes;
  static constexpr int kFit = (kMostBytes - 1024 - static_cast<int>(sizeof(ExpertTiles))) /
                              (kStageBytes + 2 * static_cast<int>(sizeof(Barrier)));
  static constexpr int kStages = kWanted < kFit ? kWanted : kFit;
  static constexpr int kBehind = (kStages - 1) / 2;  // stages between a row's request and arrival
  // Fewer rows take fewer columns of wgmma: a half, or a quarter. With 256 the sums of one form
  // are all that the registers hold.
  static constexpr bool kNarrows = ROWS < 256;
  static constexpr bool kScalesSums = Codes::kScalesSums && ROWS < 256;
  static constexpr bool kOnce = ROWS == 64;  // weights are read once
  static constexpr float kWhole = Codes::kWhole;
};

static_assert(Division<Mxfp4Codes, 256>::kStages == 6 &&
              Division<Int4ExpertCodes, 256>::kStages == 3 &&
              Division<Mxfp4Codes, 64>::kStages == 16);

template <typename D>
struct Shared {
  alignas(1024) char x[D::kStages][D::kBoxes * D::kBoxBytes];  // [boxes][rows], swizzled
  alignas(128) char weights[D::kStages][kItemHalves * D::Codes::kRecordBytes];
  Barrier full[D::kStages], empty[D::kStages];
  ExpertTiles experts;
};

// --- the producer ---

// Stages whose rows of x are on their way. A stage is passed on when those of kBehind later ones
// have been requested: a warp waits for its own copies, makes them visible to wgmma and arrives
// once, which costs less than an arrival of each thread's copies and a fence of each consumer.
template <typename D>
class RowsOnTheirWay {
 public:
  __device__ explicit RowsOnTheirWay(Shared<D>& shared) : shared_(shared) {}
  // The calling thread has requested its copies of the next stage.
  __device__ void add() {
    copy_commit();
    if (++count_ <= D::kBehind) return;
    copy_wait<D::kBehind>();
    pass();
  }
  __device__ void finish() {
    copy_wait<0>();
    while (count_ > 0) pass();
  }

 private:
  __device__ void pass() {
    fence_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_.full[pipeline_.stage]);
    pipeline_.advance();
    --count_;
  }

  Shared<D>& shared_;
  PipelineState<D::kStages> pipeline_;
  int count_ = 0;
};

template <typename D, bool GATED>
__device__ void produce(const CodedParams& p, Shared<D>& shared) {
  // A thread copies 16 bytes of every sixteenth row.
  constexpr int kCopies = D::kRows / 16, kRowStep = 16;
  const int thread = static_cast<int>(threadIdx.x);
  const int part = thread % 8, row0 = thread / 8;
  const auto to = static_cast<uint32_t>(row0 * kRowBytes + (part ^ row0 % 8) * 16);
  PipelineState<D::kStages> pipeline;
  RowsOnTheirWay<D> coming(shared);
  ExpertItems<D::kRows> items(shared.experts, p.groups, p.chunks);
  ExpertItem item;
  while (items.next(item)) {
    uint32_t offsets[kCopies];  // in units of 16 bytes: 32 bits reach 64 GiB
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int slot = item.first + min(row0 + i * kRowStep, item.rows - 1);
      const int64_t row = GATED ? p.pairs[slot] / p.pairs_per_row : slot;
      offsets[i] = static_cast<uint32_t>(row * p.x_stride_bytes / 16 + part);
    }
    const auto bytes = static_cast<uint32_t>(p.halves(item) * D::Codes::kRecordBytes);
    const char* weights = p.records(item, D::Codes::kRecordBytes);
    for (int step = 0; step < p.steps; ++step) {
      barrier_wait(shared.empty[pipeline.stage], pipeline.parity ^ 1);
      if (thread == 0) {
        barrier_expect(shared.full[pipeline.stage], bytes);
        copy_records<D::kOnce>(shared.weights[pipeline.stage], weights + int64_t{step} * bytes,
                               bytes, shared.full[pipeline.stage]);
      }
      const uint32_t rows = shared_address(shared.x[pipeline.stage]) + to;
#pragma unroll
      for (int box = 0; box < D::kBoxes; ++box) {
        const int from = step * D::kBoxes + box;  // of the row, in boxes
        const bool known = from * kRowBytes + part * 16 < p.in_bytes;
#pragma unroll
        for (int i = 0; i < kCopies; ++i)  // rows that the tile lacks stay what they were
          if (row0 + i * kRowStep < item.rows)
            copy_async(rows + static_cast<uint32_t>(box * D::kBoxBytes + i * kRowStep * kRowBytes),
                       p.x + (known ? (uint64_t{offsets[i]} + from * 8) * 16 : 0), known);
      }
      coming.add();
      pipeline.advance();
    }
  }
  coming.finish();
}

// --- the consumers ---

__device__ __forceinline__ void arrive_once(Barrier& empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

// A consumer warp group: `half` of the item's rows of W.
template <typename D>
struct Consumer {
  using Codes = typename D::Codes;
  Shared<D>& shared;
  int half;
  uint64_t first_rows;  // the descriptor of stage 0; other addresses are sums, in 16 bytes
  PipelineState<D::kStages> pipeline;

  // The sums of the group's 64 rows of W by COLUMNS rows of x.
  template <int COLUMNS>
  __device__ void multiply(int steps, float (&sums)[COLUMNS / 2]) {
    if constexpr (D::kScalesSums)
      multiply_whole<COLUMNS>(steps, sums);
    else
      multiply_weights<COLUMNS>(steps, sums);
  }

  template <int COLUMNS>
  __device__ __forceinline__ void multiply_weights(int steps, float (&sums)[COLUMNS / 2]) {
    int released = -1;            // the stage that the multiplication in flight reads
    uint32_t fragments[2][2][4];  // of 32 inputs each; those in flight stay as they are
    for (int step = 0; step < steps; ++step) {
      const int stage = pipeline.stage;
      barrier_wait(shared.full[stage], pipeline.parity);
#pragma unroll 1
      for (int box = 0; box < D::kBoxes; ++box) {
        const typename Codes::Weights weights(record_of(stage), thread_of_group(), box);
        const uint64_t rows = rows_of(stage, box);
        weights.template widen<0>(fragments[0]);
        multiply_32<COLUMNS>(rows, fragments[0], step + box > 0, sums);
        if (box == 0 && released >= 0) arrive_once(shared.empty[released]);
        weights.template widen<1>(fragments[1]);
        multiply_32<COLUMNS>(rows + 4, fragments[1], true, sums);
      }
      released = stage;
      pipeline.advance();
    }
    wgmma_wait<0>();
    pin(sums);
    arrive_once(shared.empty[released]);
  }

  // Of whole numbers, whose sum over a stage is scaled. No multiplication is in flight across the
  // loop's end, or ptxas would serialise all; the next stage's codes are widened before it.
  template <int COLUMNS>
  __device__ __forceinline__ void multiply_whole(int steps, float (&sums)[COLUMNS / 2]) {
    float partial[COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = partial[i] = 0;
    uint32_t fragments[2][2][4];
    barrier_wait(shared.full[pipeline.stage], pipeline.parity);
    Codes codes(record_of(pipeline.stage), thread_of_group());
    codes.template widen_whole<0>(fragments[0]);
    for (int step = 0; step < steps; ++step) {
      const int stage = pipeline.stage;
      const float upper = codes.scales.upper(), lower = codes.scales.lower();
      multiply_32<COLUMNS>(rows_of(stage, 0), fragments[0], false, partial);
      codes.template widen_whole<1>(fragments[1]);
      multiply_32<COLUMNS>(rows_of(stage, 0) + 4, fragments[1], true, partial);
      codes.template widen_whole<2>(fragments[0]);
      multiply_32<COLUMNS>(rows_of(stage, 1), fragments[0], true, partial);
      codes.template widen_whole<3>(fragments[1]);
      multiply_32<COLUMNS>(rows_of(stage, 1) + 4, fragments[1], true, partial);
      if (step + 1 < steps) pipeline.advance();  // behind the last the same again: no branch
      barrier_wait(shared.full[pipeline.stage], pipeline.parity);
      codes = Codes(record_of(pipeline.stage), thread_of_group());
      codes.template widen_whole<0>(fragments[0]);
      wgmma_wait<0>();
      pin(partial);
      arrive_once(shared.empty[stage]);
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; ++i)
        sums[i] += (i / 2 % 2 == 0 ? upper : lower) * partial[i];
    }
    pipeline.advance();
  }

  __device__ __forceinline__ const char* record_of(int stage) const {
    return shared.weights[stage] + half * Codes::kRecordBytes;
  }
  static __device__ __forceinline__ int thread_of_group() {
    return static_cast<int>(threadIdx.x) % kWarpGroup;
  }
  // The descriptor of 64 inputs of a stage; those from the 32nd on are four further.
  __device__ __forceinline__ uint64_t rows_of(int stage, int box) const {
    return first_rows + static_cast<uint32_t>(stage * D::kBoxes + box) * (D::kBoxBytes / 16);
  }

  // Starts to multiply 32 inputs; returns when the multiplication before is done.
  template <int COLUMNS>
  __device__ __forceinline__ void multiply_32(uint64_t x, const uint32_t (&fragments)[2][4],
                                              bool added, float (&sums)[COLUMNS / 2]) {
    pin(sums);
    wgmma_begin();
    wgmma_weights(sums, fragments[0], x, added);
    wgmma_weights(sums, fragments[1], x + 2, true);
    wgmma_commit();
    wgmma_wait<1>();
  }

  // Of a half that the item lacks.
  __device__ void pass(int steps) {
    for (int step = 0; step < steps; ++step) {
      barrier_wait(shared.full[pipeline.stage], pipeline.parity);
      arrive_once(shared.empty[pipeline.stage]);
      pipeline.advance();
    }
  }
};

template <typename D, bool GATED, int COLUMNS>
__device__ __forceinline__ void compute(const CodedParams& p, Consumer<D>& consumer,
                                        const ExpertItem& item) {
  float sums[COLUMNS / 2];
  consumer.template multiply<COLUMNS>(p.steps, sums);
  const int warp = consumer.half * 4 + static_cast<int>(threadIdx.x) % kWarpGroup / 32;
  CodedWriter<GATED>(p, item, warp, D::kWhole).write(sums);
}

template <typename D, bool GATED>
__device__ void consume(const CodedParams& p, Shared<D>& shared) {
  // The shuffle makes the group's index uniform for the compiler, which then keeps stages and
  // descriptors in uniform registers.
  const int half = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpGroup, 0) - 1;
  Consumer<D> consumer{shared, half, matrix_descriptor(shared.x[0], 16), {}};
  ExpertItems<D::kRows> items(shared.experts, p.groups, p.chunks);
  ExpertItem item;
  while (items.next(item)) {
    const bool narrows = D::kNarrows && !p.row_invariant;
    if (consumer.half >= p.halves(item)) {
      consumer.pass(p.steps);
    } else if (narrows && item.rows <= D::kRows / 4) {
      if constexpr (D::kNarrows) compute<D, GATED, D::kRows / 4>(p, consumer, item);
    } else if (narrows && item.rows <= D::kRows / 2) {
      if constexpr (D::kNarrows) compute<D, GATED, D::kRows / 2>(p, consumer, item);
    } else {
      compute<D, GATED, D::kRows>(p, consumer, item);
    }
  }
}

template <typename D, bool GATED>
__global__ void __launch_bounds__(kThreads, 1) coded_experts_kernel(const CodedParams p) {
  extern __shared__ char raw[];
  auto& shared = *reinterpret_cast<Shared<D>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  release_next();
  if (threadIdx.x == 0) {
    for (int i = 0; i < D::kStages; ++i) {
      // The thread that expects TMA's bytes, and the warps whose copies have landed.
      barrier_init(shared.full[i], 1 + kWarpGroup / 32);
      barrier_init(shared.empty[i], kItemHalves * kWarpGroup / 32);
    }
    barrier_init_done();
  }
  wait_for_previous();
  divide_experts<D::kRows, kThreads>(p.begins, p.groups, shared.experts);
  __syncthreads();
  if (threadIdx.x < kWarpGroup) {
    give_registers<56>();
    produce<D, GATED>(p, shared);
  } else {
    take_registers<224>();
    consume<D, GATED>(p, shared);
  }
}

// --- on the host ---

template <typename D, bool GATED>
Status start(const GroupedArgs& args, const DeviceTraits& traits, const LaunchOptions& launch) {
  auto* kernel = coded_experts_kernel<D, GATED>;
  constexpr size_t kBytes = sizeof(Shared<D>) + 1024;
  static_assert(kBytes <= kMostBytes);
  ESP_RETURN_IF_ERROR(allow_shared("grouped linear", kernel, kBytes));
  return launch_kernel("grouped linear", kernel,
                       dim3(static_cast<unsigned>(traits.num_multiprocessors)), kThreads, kBytes,
                       launch, coded_params<typename D::Codes>(args));
}

template <typename D>
Status start_division(const GroupedArgs& args, const DeviceTraits& traits,
                      const LaunchOptions& launch) {
  return args.activation ? start<D, true>(args, traits, launch)
                         : start<D, false>(args, traits, launch);
}

// Steps whose rows may not depend on how many there are take one division.
template <typename CODES>
Status start_codes(const GroupedArgs& args, const DeviceTraits& traits,
                   const LaunchOptions& launch) {
  const int32_t each = args.num_pairs / num_routed(args);
  if (each <= kFewRows || args.row_invariant)
    return start_division<Division<CODES, 64>>(args, traits, launch);
  return each <= kSomeRows ? start_division<Division<CODES, 128>>(args, traits, launch)
                           : start_division<Division<CODES, 256>>(args, traits, launch);
}

// Whole records of int4.
bool takes_inputs(const GroupedArgs& args) {
  if (!args.int4) return args.in_features % 8 == 0;
  const Int4ExpertShape shape{.group = args.int4_group};
  return (args.int4_group == kInt4ExpertInputs || shape.small_groups()) &&
         args.in_features % shape.record_inputs() == 0;
}

}  // namespace

bool coded_experts_supports(const GroupedArgs& args, const DeviceTraits& traits) {
  const bool gathers = args.pairs_per_row > 0;
  return traits.compute_capability == 90 && args.mxfp4 != args.int4 &&
         args.type == DType::kBFloat16 && args.plan != nullptr &&
         gathers == args.activation.has_value() && args.weight_scales == nullptr &&
         args.num_groups <= kMaxExperts && takes_inputs(args) && args.x_stride % 8 == 0 &&
         args.weights_stride % 16 == 0 && aligned(args.x, 16) && aligned(args.weights, 16);
}

Status coded_experts(const GroupedArgs& args, const DeviceTraits& traits,
                     const LaunchOptions& launch) {
  if (coded_experts_decode_suits(args)) return coded_experts_decode(args, traits, launch);
  if (!args.int4) return start_codes<Mxfp4Codes>(args, traits, launch);
  return args.int4_group == kInt4SmallGroup ? start_codes<Int4SmallCodes>(args, traits, launch)
                                            : start_codes<Int4ExpertCodes>(args, traits, launch);
}

}  // namespace espalier::kernels::cuda
