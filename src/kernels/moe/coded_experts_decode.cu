// Grouped GEMM of experts in codes of 4 bits for decode steps on Hopper: a stream of each chosen
// expert's records past mma.sync. Shapes and arguments as coded_experts.cu, of which it takes the
// steps whose experts have few rows. Computed as y^T = W x^T: codes become bfloat16 as the 16 rows
// of m16n8k16, rows of x are its columns, as many eights as the expert has, so that a row's sums do
// not depend on the rows beside it. Parallel: two or three persistent blocks a multiprocessor; an
// item is 128 rows of W by a tile of one expert's rows; eight consumer warps have 16 of W each and
// wait for no other warp, so that one widens codes while others multiply. Pipeline: one producer
// warp, W by TMA bulk copies of 4 to 8 KiB, x by cp.async; it runs across items. Roof: memory, each
// chosen expert's matrix once, 4.2 bits a weight. History: docs/notes/int4_experts.md.
#include "kernels/moe/coded_experts_decode.h"

#include "kernels/cuda/launch.h"
#include "kernels/moe/coded_params.cuh"
#include "kernels/moe/int4_expert_codes.cuh"
#include "kernels/moe/mxfp4_codes.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kConsumerWarps = kExpertItemRows / 16;
constexpr int kThreads = (kConsumerWarps + 1) * 32;
constexpr int kProducer = kConsumerWarps;                                   // the warp
constexpr size_t kMultiprocessorBytes = 228 * 1024, kReservedBytes = 1024;  // the latter of a block

constexpr int kRows = 16;  // of x in a tile

// CODES: Mxfp4Codes, Int4ExpertCodes or Int4SmallCodes. BLOCKS: of a multiprocessor.
template <typename CODES, int BLOCKS>
struct DecodeDivision {
  using Codes = CODES;
  static constexpr int kBlocks = BLOCKS;
  static constexpr int kRowBytes = Codes::kInputs * 2;  // of a row of x in a stage
  static constexpr int kParts = Codes::kInputs / 32;    // of the inputs of a stage
  static constexpr int kWeightBytes = kItemHalves * Codes::kRecordBytes;
  static constexpr size_t kRoom =
      kMultiprocessorBytes / BLOCKS - kReservedBytes - sizeof(ExpertTiles) - 256;
  static constexpr int kFit = static_cast<int>(kRoom / (kWeightBytes + kRows * kRowBytes + 16));
  static constexpr int kStages = kFit < 16 ? kFit : 16;
};

template <typename D>
struct DecodeShared {
  alignas(128) char x[D::kStages][kRows * D::kRowBytes];  // swizzled: x_offset()
  alignas(128) char weights[D::kStages][D::kWeightBytes];
  Barrier full[D::kStages], empty[D::kStages];
  ExpertTiles experts;
};

// Where 16 bytes of a row of x lie in a stage: eight rows' at the same place are in banks of their
// own.
template <typename D>
__device__ __forceinline__ uint32_t x_offset(int row, int sixteen) {
  return static_cast<uint32_t>(row * D::kRowBytes + (sixteen ^ row % 8) * 16);
}

// --- the producer ---

// A lane copies 16 bytes of every kRowStep-th row.
template <typename D, bool GATED>
struct RowCopies {
  static constexpr int kSixteens = D::kRowBytes / 16, kRowStep = 32 / kSixteens;
  static constexpr int kCopies = kRows / kRowStep;
  const int sixteen = static_cast<int>(threadIdx.x) % 32 % kSixteens;
  const int row0 = static_cast<int>(threadIdx.x) % 32 / kSixteens;
  uint32_t offsets[kCopies];  // in units of 16 bytes: 32 bits reach 64 GiB

  __device__ void begin(const CodedParams& p, const ExpertItem& item) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int slot = item.first + min(row0 + i * kRowStep, item.rows - 1);
      const int64_t row = GATED ? p.pairs[slot] / p.pairs_per_row : slot;
      offsets[i] = static_cast<uint32_t>(row * p.x_stride_bytes / 16 + sixteen);
    }
  }
  // Rows that the tile lacks stay what they were: their sums are written nowhere.
  __device__ __forceinline__ void copy(const CodedParams& p, const ExpertItem& item, int step,
                                       uint32_t stage) const {
    const int at = step * kSixteens;
    const bool known = (at + sixteen) * 16 < p.in_bytes;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = row0 + i * kRowStep;
      if (row < item.rows)
        copy_async(stage + x_offset<D>(row, sixteen),
                   p.x + (known ? (uint64_t{offsets[i]} + static_cast<uint32_t>(at)) * 16 : 0),
                   known);
    }
  }
};

template <typename D, bool GATED>
__device__ void produce_stages(const CodedParams& p, DecodeShared<D>& shared) {
  PipelineState<D::kStages> pipeline;
  ExpertItems<kRows> items(shared.experts, p.groups, p.chunks);
  ExpertItem item;
  RowCopies<D, GATED> rows;
  while (items.next(item)) {
    rows.begin(p, item);
    const auto bytes = static_cast<uint32_t>(p.halves(item) * D::Codes::kRecordBytes);
    const char* weights = p.records(item, D::Codes::kRecordBytes);
    for (int step = 0; step < p.steps; ++step) {
      Barrier& full = shared.full[pipeline.stage];
      barrier_wait(shared.empty[pipeline.stage], pipeline.parity ^ 1);
      if (threadIdx.x % 32 == 0) {
        barrier_expect(full, bytes);
        copy_records<true>(shared.weights[pipeline.stage], weights + int64_t{step} * bytes, bytes,
                           full);
      }
      rows.copy(p, item, step, shared_address(shared.x[pipeline.stage]));
      barrier_arrive_after_copies(full);
      pipeline.advance();
    }
  }
  copy_commit();
  copy_wait<0>();
}

// --- the consumers ---

// A warp's 16 rows of W of each item.
template <typename D>
struct ConsumerWarp {
  using Codes = typename D::Codes;
  DecodeShared<D>& shared;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int half = warp / 4;
  const int thread = static_cast<int>(threadIdx.x) % 128;  // of the record's
  // Where the lane's row of eight begins in a stage of x, of even and odd parts of 32 inputs.
  uint32_t x_lane[2];
  PipelineState<D::kStages> pipeline;

  __device__ explicit ConsumerWarp(DecodeShared<D>& memory) : shared(memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) x_lane[i] = x_offset<D>(lane % 8, i * 4 + lane / 8);
  }

  template <int EIGHTS>
  __device__ __forceinline__ void multiply(int steps, float (&sums)[EIGHTS * 4]) {
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; ++i) sums[i] = 0;
    for (int step = 0; step < steps; ++step) {
      barrier_wait(shared.full[pipeline.stage], pipeline.parity);
      const char* record = shared.weights[pipeline.stage] + half * Codes::kRecordBytes;
      const uint32_t x = shared_address(shared.x[pipeline.stage]);
      if constexpr (Codes::kScalesSums)
        add_whole<EIGHTS>(record, x, sums);
      else
        add_weights<EIGHTS>(record, x, sums);
      release();
    }
  }
  // Of a half that the item lacks.
  __device__ void pass(int steps) {
    for (int step = 0; step < steps; ++step) {
      barrier_wait(shared.full[pipeline.stage], pipeline.parity);
      release();
    }
  }

 private:
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.empty[pipeline.stage]);
    pipeline.advance();
  }

  // Whole numbers, whose sums over the record are scaled.
  template <int EIGHTS>
  __device__ __forceinline__ void add_whole(const char* record, uint32_t x,
                                            float (&sums)[EIGHTS * 4]) const {
    const Codes codes(record, thread);
    float partial[2][EIGHTS * 4] = {};
    each_part([&]<int PART>() {
      uint32_t fragments[2][4];
      codes.template widen_whole<PART>(fragments);
      multiply_part<PART, EIGHTS>(fragments, x, partial[0], partial[EIGHTS == 1 ? 1 : 0]);
    });
    const float upper = codes.scales.upper(), lower = codes.scales.lower();
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; ++i)
      sums[i] += (i % 4 < 2 ? upper : lower) *
                 (EIGHTS == 1 ? partial[0][i] + partial[1][i] : partial[0][i]);
  }
  template <int EIGHTS>
  __device__ __forceinline__ void add_weights(const char* record, uint32_t x,
                                              float (&sums)[EIGHTS * 4]) const {
    const typename Codes::Weights weights(record, thread, 0);
    each_part([&]<int PART>() {
      uint32_t fragments[2][4];
      weights.template widen<PART>(fragments);
      multiply_part<PART, EIGHTS>(fragments, x, sums, sums);
    });
  }
  template <typename Body>
  static __device__ __forceinline__ void each_part(const Body& body) {
    body.template operator()<0>();
    body.template operator()<1>();
    if constexpr (D::kParts == 4) {
      body.template operator()<2>();
      body.template operator()<3>();
    }
  }
  // Adds 32 inputs: sixteen to `first`, sixteen to `second`, which may be the same.
  template <int PART, int EIGHTS>
  __device__ __forceinline__ void multiply_part(const uint32_t (&fragments)[2][4], uint32_t x,
                                                float (&first)[EIGHTS * 4],
                                                float (&second)[EIGHTS * 4]) const {
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
      uint32_t rows[4];
      load_matrices(rows, x + x_lane[PART % 2] +
                              static_cast<uint32_t>(PART / 2 * 128 + n * 8 * D::kRowBytes));
      mma(reinterpret_cast<float(&)[4]>(first[n * 4]), fragments[0], rows[0], rows[1]);
      mma(reinterpret_cast<float(&)[4]>(second[n * 4]), fragments[1], rows[2], rows[3]);
    }
  }
};

template <typename D, bool GATED, int EIGHTS>
__device__ __forceinline__ void compute(const CodedParams& p, ConsumerWarp<D>& consumer,
                                        const ExpertItem& item) {
  float sums[EIGHTS * 4];
  consumer.template multiply<EIGHTS>(p.steps, sums);
  CodedWriter<GATED>(p, item, consumer.warp, D::Codes::kWhole).write(sums);
}

template <typename D, bool GATED>
__device__ void consume_stages(const CodedParams& p, DecodeShared<D>& shared) {
  ConsumerWarp<D> consumer(shared);
  ExpertItems<kRows> items(shared.experts, p.groups, p.chunks);
  ExpertItem item;
  while (items.next(item)) {
    if (consumer.half >= p.halves(item)) {
      consumer.pass(p.steps);
    } else if (item.rows <= 8) {
      compute<D, GATED, 1>(p, consumer, item);
    } else {
      compute<D, GATED, 2>(p, consumer, item);
    }
  }
}

template <typename D, bool GATED>
__global__ void __launch_bounds__(kThreads, D::kBlocks)
    coded_experts_decode_kernel(const CodedParams p) {
  extern __shared__ __align__(128) char raw[];
  auto& shared = *reinterpret_cast<DecodeShared<D>*>(raw);
  release_next();
  if (threadIdx.x == 0) {
    for (int i = 0; i < D::kStages; ++i) {
      // The thread that expects TMA's bytes, and the lanes whose copies have landed.
      barrier_init(shared.full[i], 1 + 32);
      barrier_init(shared.empty[i], kConsumerWarps);
    }
    barrier_init_done();
  }
  wait_for_previous();
  divide_experts<kRows, kThreads>(p.begins, p.groups, shared.experts);
  __syncthreads();
  if (threadIdx.x / 32 == kProducer)
    produce_stages<D, GATED>(p, shared);
  else
    consume_stages<D, GATED>(p, shared);
}

// --- on the host ---

template <typename D, bool GATED>
Status start_decode(const GroupedArgs& args, const DeviceTraits& traits,
                    const LaunchOptions& launch) {
  auto* kernel = coded_experts_decode_kernel<D, GATED>;
  constexpr size_t kBytes = sizeof(DecodeShared<D>);
  static_assert(kBytes + kReservedBytes <= kMultiprocessorBytes / D::kBlocks && D::kStages >= 4);
  ESP_RETURN_IF_ERROR(allow_shared("grouped linear", kernel, kBytes));
  const auto blocks = static_cast<unsigned>(traits.num_multiprocessors * D::kBlocks);
  return launch_kernel("grouped linear", kernel, dim3(blocks), kThreads, kBytes, launch,
                       coded_params<typename D::Codes>(args));
}

// Measured: two blocks of int4 and three of MXFP4, whose stages are half as long, as are those of
// int4 in small groups.
template <typename CODES, int BLOCKS>
Status start_decode_codes(const GroupedArgs& args, const DeviceTraits& traits,
                          const LaunchOptions& launch) {
  using D = DecodeDivision<CODES, BLOCKS>;
  return args.activation ? start_decode<D, true>(args, traits, launch)
                         : start_decode<D, false>(args, traits, launch);
}

// With more rows of an expert on average, wgmma's wider tiles are faster.
constexpr int kMostRowsOfGroup = 10;

}  // namespace

bool coded_experts_decode_suits(const GroupedArgs& args) {
  return !args.row_invariant && args.num_pairs <= kMostRowsOfGroup * num_routed(args);
}

Status coded_experts_decode(const GroupedArgs& args, const DeviceTraits& traits,
                            const LaunchOptions& launch) {
  if (!args.int4) return start_decode_codes<Mxfp4Codes, 3>(args, traits, launch);
  return args.int4_group == kInt4SmallGroup
             ? start_decode_codes<Int4SmallCodes, 3>(args, traits, launch)
             : start_decode_codes<Int4ExpertCodes, 2>(args, traits, launch);
}

}  // namespace espalier::kernels::cuda
