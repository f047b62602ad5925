// Grouped GEMMs of decode steps on Hopper: a stream of each chosen expert's weights past the tensor
// cores, with the gather of rows in the loads and the gated activation behind.
// x [tokens, in] by the plan's pairs (gate and up) or [pairs, in] in the order of slots (down), W
// [experts, out, in], y [pairs, out / 2] or [pairs, out]; bfloat16, or x and W e4m3 with a scale
// for each row, or for 128 inputs of a row of x and 128 x 128 of W: then a stage has their scales,
// by which its sums are multiplied on their way to the float32 sums of the item. Computed as y^T =
// W x^T: the weights are wgmma's 64 rows, the expert's rows its 16 to 64 columns. Parallel: a
// persistent block for each multiprocessor; an item is 128 rows of W (64 of gate and the same 64 of
// up) for up to 64 rows of one expert, two consumer warp groups with 64 each. By the tensor map
// eight of gate lie before eight of up, so both meet in one thread. Pipeline: nine stages of 128
// bytes a row, W by TMA, x by cp.async; it runs across items. Roof: memory, each chosen expert's
// matrix once. History: docs/notes/grouped_gemm_sm90.md.
#include <algorithm>
#include <type_traits>

#include "kernels/activation/activation.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/quantize_rows.h"
#include "kernels/moe/expert_items.cuh"
#include "kernels/moe/experts_decode.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kWarpGroup = 128;           // threads
constexpr int kThreads = 3 * kWarpGroup;  // a producer group, two consumer groups
constexpr int kConsumerWarps = 8;
constexpr int kItemOutputs = kExpertItemRows;
constexpr int kTileRows = 64;  // of x
using Items = ExpertItems<kTileRows>;
constexpr int kDepthBytes = 128;  // inputs of a stage: the swizzle's width
constexpr uint32_t kWeightsBytes = kItemOutputs * kDepthBytes;
constexpr uint32_t kStageBytes = kWeightsBytes + kTileRows * kDepthBytes;
// With more rows a group on average, the tiles of 128 rows of grouped_gemm_sm90.cu are faster.
constexpr int kMostRowsOfGroup = 24;

// T: of x and W, bf16 or uint8_t for codes of e4m3.
template <typename T>
constexpr int kDepth = kDepthBytes / static_cast<int>(sizeof(T));  // inputs of a stage

// Codes whose scales are of blocks; a stage of them has those of the rows of x, then two of W.
struct BlockCode {
  uint8_t bits;
};
template <typename T>
constexpr bool kHasBlocks = std::is_same_v<T, BlockCode>;
template <typename T>
constexpr int kStages = kHasBlocks<T> ? 8 : 9;
template <typename T>
constexpr int kStageScales = kHasBlocks<T> ? kTileRows + 4 : 0;

struct Params {
  const char* x;
  int64_t x_stride_bytes;
  const float* x_scales;       // of codes: [rows of x]
  const float* weight_scales;  // of codes: [groups, out_features]
  int64_t x_scale_stride;      // of blocks: from 128 inputs to the next
  int32_t scale_rows;          // of blocks: of each group
  int32_t scale_stride;        // from one of those to the next
  const int32_t* begins;       // [groups + 1]
  const int32_t* pairs;
  int32_t pairs_per_row;
  const bf16* bias;  // [groups, out_features], or none
  bf16* y;
  int64_t y_stride;
  int32_t groups, in_bytes, out_features;  // in_bytes: of a row of x
  int32_t columns;                         // of y
  int32_t chunks;                          // items of a tile of rows
  int32_t steps;                           // stages of an item
  Activation activation;
  float limit;
};

template <typename T>
struct Shared {
  // W [128] and x [64] rows of kDepthBytes, swizzled
  alignas(1024) char stages[kStages<T>][kStageBytes];
  float scales[kStages<T>][kStageScales<T> + 1];
  Barrier full[kStages<T>], empty[kStages<T>];
  ExpertTiles experts;
};

// Weights are read once, so they are evicted from L2 first.
constexpr uint64_t kEvictFirst = 0x12f0000000000000;

template <bool GATED>
__device__ __forceinline__ void copy_weights(void* to, const CUtensorMap& map, int input, int chunk,
                                             int group, Barrier& full) {
  if constexpr (GATED)
    ESP_HOPPER_ASM(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
        "l"(&map), "r"(input), "r"(0), "r"(chunk * kItemOutputs / 16), "r"(group),
        "r"(barrier_address(full)), "l"(kEvictFirst)
        : "memory");
  else
    ESP_HOPPER_ASM(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
        "l"(&map), "r"(input), "r"(chunk * kItemOutputs), "r"(group), "r"(barrier_address(full)),
        "l"(kEvictFirst)
        : "memory");
}

// --- the producer ---

// Four bytes to shared memory.
__device__ __forceinline__ void copy_float(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}

// The scales of the stages of an item that this thread copies: one of a row of x, or one of W.
template <bool GATED>
struct ScaleCopy {
  const float* from = nullptr;  // of the first stage; null: none
  int64_t step = 0;             // to the next stage's

  __device__ ScaleCopy(const Params& p, const ExpertItem& item) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < item.rows) {
      const int slot = item.first + thread;
      from = p.x_scales + (GATED ? p.pairs[slot] / p.pairs_per_row : slot);
      step = p.x_scale_stride;
    } else if (thread >= kTileRows && thread < kTileRows + (GATED ? 2 : 1)) {
      const int first = item.chunk * (GATED ? kItemOutputs / 2 : kItemOutputs);  // output
      const int row = (first + (thread - kTileRows) * p.columns) / kScaleBlock;
      from = p.weight_scales + (int64_t{item.group} * p.scale_rows + row) * p.scale_stride;
      step = 1;
    }
  }
};

template <typename T, bool GATED>
__device__ void produce(const Params& p, Shared<T>& shared, Items& items,
                        const CUtensorMap& weights_map) {
  // A thread copies 16 bytes of each of four rows, 16 rows apart.
  constexpr int kCopies = 4, kRowStep = 16;
  const int thread = static_cast<int>(threadIdx.x);
  const int part = thread % 8, row0 = thread / 8;
  const uint32_t to = static_cast<uint32_t>(row0 * kDepthBytes + (part ^ row0 % 8) * 16);
  PipelineState<kStages<T>> pipeline;
  ExpertItem item;
  while (items.next(item)) {
    [[maybe_unused]] const ScaleCopy<GATED> scale(p, item);
    uint32_t offsets[kCopies];  // in units of 16 bytes: 32 bits reach 64 GiB
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int slot = item.first + min(row0 + i * kRowStep, item.rows - 1);
      const int64_t row = GATED ? p.pairs[slot] / p.pairs_per_row : slot;
      offsets[i] = static_cast<uint32_t>(row * p.x_stride_bytes / 16 + part);
    }
    for (int step = 0; step < p.steps; ++step) {
      Barrier& full = shared.full[pipeline.stage];
      char* stage = shared.stages[pipeline.stage];
      barrier_wait(shared.empty[pipeline.stage], pipeline.parity ^ 1);
      if (thread == 0) {
        barrier_expect(full, kWeightsBytes);
        copy_weights<GATED>(stage, weights_map, step * kDepth<T>, item.chunk, item.group, full);
      }
      const uint32_t rows = shared_address(stage) + kWeightsBytes + to;
      const bool known = step * kDepthBytes + part * 16 < p.in_bytes;
#pragma unroll
      for (int i = 0; i < kCopies; ++i)  // rows that the tile lacks stay what they were
        if (row0 + i * kRowStep < item.rows)
          copy_async(rows + static_cast<uint32_t>(i * kRowStep * kDepthBytes),
                     p.x + (known ? (uint64_t{offsets[i]} + step * 8) * 16 : 0), known);
      if constexpr (kHasBlocks<T>)
        if (scale.from != nullptr)
          copy_float(&shared.scales[pipeline.stage][thread], scale.from + step * scale.step);
      barrier_arrive_after_copies(full);
      pipeline.advance();
    }
  }
  copy_commit();
  copy_wait<0>();
}

// --- the consumers ---

template <typename T>
__device__ __forceinline__ void release_stage(Shared<T>& shared, int stage) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(shared.empty[stage]);
}

// The same with scales of blocks: a stage is one of them.
template <bool GATED, int COLUMNS>
__device__ void multiply_blocks(Shared<BlockCode>& shared,
                                PipelineState<kStages<BlockCode>>& pipeline, int warp_group,
                                int steps, float (&sums)[COLUMNS / 2]) {
  const int row0 = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
  for (int step = 0; step < steps; ++step) {
    const char* w = shared.stages[pipeline.stage] + warp_group * 64 * kDepthBytes;
    const char* x = shared.stages[pipeline.stage] + kWeightsBytes;
    const float* scales = shared.scales[pipeline.stage];
    float part[COLUMNS / 2];
    barrier_wait(shared.full[pipeline.stage], pipeline.parity);
    fence_async();
    pin(part);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kDepthBytes; i += 32)
      wgmma_e4m3(part, matrix_descriptor(w + i, 16), matrix_descriptor(x + i, 16), i > 0);
    wgmma_commit();
    const float upper = scales[kTileRows], lower = scales[kTileRows + (GATED ? 1 : 0)];
    wgmma_wait<0>();
    pin(part);
#pragma unroll
    for (int i = 0; i < COLUMNS / 4; ++i) {  // two rows of W each; as Writer has them
      const float scale = scales[i / 2 * 8 + row0 + i % 2];
      const int at = i / 2 * 4 + i % 2;
      sums[at] += part[at] * (scale * upper);
      sums[at + 2] += part[at + 2] * (scale * lower);
    }
    release_stage(shared, pipeline.stage);
    pipeline.advance();
  }
}

// The sums of the warp group's 64 rows of W by COLUMNS rows of x.
template <typename T, int COLUMNS>
__device__ void multiply(Shared<T>& shared, PipelineState<kStages<T>>& pipeline, int warp_group,
                         int steps, float (&sums)[COLUMNS / 2]) {
  int released = -1;  // the stage that the multiplication in flight reads
  for (int step = 0; step < steps; ++step) {
    barrier_wait(shared.full[pipeline.stage], pipeline.parity);
    fence_async();  // what cp.async wrote becomes visible to wgmma
    const char* w = shared.stages[pipeline.stage] + warp_group * 64 * kDepthBytes;
    const char* x = shared.stages[pipeline.stage] + kWeightsBytes;
    pin(sums);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kDepthBytes; i += 32) {
      const uint64_t matrix = matrix_descriptor(w + i, 16), rows = matrix_descriptor(x + i, 16);
      if constexpr (sizeof(T) == 1)
        wgmma_e4m3(sums, matrix, rows, step > 0 || i > 0);
      else
        wgmma_scores(sums, matrix, rows, step > 0 || i > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (released >= 0) release_stage(shared, released);
    released = pipeline.stage;
    pipeline.advance();
  }
  wgmma_wait<0>();
  pin(sums);
  release_stage(shared, released);
}

// A lane has rows lane / 4 and lane / 4 + 8 of its warp's 16 rows of W, of every eight rows of x
// the two from lane % 4 * 2 on.
template <typename T, bool GATED>
class Writer {
 public:
  __device__ Writer(const Params& p, const ExpertItem& item) : p_(p), item_(item) {
    const int thread = static_cast<int>(threadIdx.x);
    const int warp = thread / 32 - kWarpGroup / 32, lane = thread % 32;
    upper_ = item.chunk * kItemOutputs / (GATED ? 2 : 1) + warp * (GATED ? 8 : 16) + lane / 4;
    lower_ = upper_ + (GATED ? p.columns : 8);  // GATED: gate and up
  }

  template <int COLUMNS>
  __device__ void write(const float (&sums)[COLUMNS / 2]) const {
    const OfRow upper = of_row(upper_), lower = of_row(lower_);
    const int row0 = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < COLUMNS / 4; ++i) {  // of every eight rows two, each with two rows of W
      const int row = i / 2 * 8 + row0 + i % 2;
      if (row >= item_.rows) continue;
      const int slot = item_.first + row;
      const float scale = x_scale(slot);
      const float high = sums[i / 2 * 4 + i % 2] * (scale * upper.scale) + upper.bias;
      const float low = sums[i / 2 * 4 + 2 + i % 2] * (scale * lower.scale) + lower.bias;
      bf16* y = p_.y + int64_t{slot} * p_.y_stride;
      if constexpr (GATED) {
        if (upper_ < p_.columns)
          y[upper_] = from_float<bf16>(activated(p_.activation, high, low, p_.limit));
      } else {
        if (upper_ < p_.columns) y[upper_] = from_float<bf16>(high);
        if (lower_ < p_.columns) y[lower_] = from_float<bf16>(low);
      }
    }
  }

 private:
  // What a row of W multiplies its sums by, and adds to them.
  struct OfRow {
    float scale = 1, bias = 0;
  };
  __device__ OfRow of_row(int row) const {
    OfRow out;
    if (row >= p_.out_features) return out;
    const int64_t at = int64_t{item_.group} * p_.out_features + row;
    if constexpr (std::is_same_v<T, uint8_t>) out.scale = p_.weight_scales[at];
    if (p_.bias != nullptr) out.bias = to_float(p_.bias[at]);
    return out;
  }
  __device__ float x_scale(int slot) const {
    if constexpr (!std::is_same_v<T, uint8_t>) return 1;
    return p_.x_scales[GATED ? p_.pairs[slot] / p_.pairs_per_row : slot];
  }

  const Params& p_;
  const ExpertItem& item_;
  int upper_, lower_;  // the lane's rows of W
};

template <typename T, bool GATED, int COLUMNS>
__device__ __forceinline__ void compute(const Params& p, Shared<T>& shared,
                                        PipelineState<kStages<T>>& pipeline,
                                        const ExpertItem& item) {
  const int warp_group = static_cast<int>(threadIdx.x) / kWarpGroup - 1;
  float sums[COLUMNS / 2];
  if constexpr (kHasBlocks<T>)
    multiply_blocks<GATED, COLUMNS>(shared, pipeline, warp_group, p.steps, sums);
  else
    multiply<T, COLUMNS>(shared, pipeline, warp_group, p.steps, sums);
  Writer<T, GATED>(p, item).template write<COLUMNS>(sums);
}

template <typename T, bool GATED>
__device__ void consume(const Params& p, Shared<T>& shared, Items& items) {
  PipelineState<kStages<T>> pipeline;
  ExpertItem item;
  while (items.next(item)) {
    if (item.rows <= 16)
      compute<T, GATED, 16>(p, shared, pipeline, item);
    else if (item.rows <= 32)
      compute<T, GATED, 32>(p, shared, pipeline, item);
    else
      compute<T, GATED, 64>(p, shared, pipeline, item);
  }
}

template <typename T, bool GATED>
__global__ void __launch_bounds__(kThreads, 1)
    experts_decode_kernel(const __grid_constant__ CUtensorMap weights_map, const Params p) {
  extern __shared__ char raw[];
  auto& shared = *reinterpret_cast<Shared<T>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  release_next();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages<T>; ++i) {
      // The thread that expects TMA's bytes, and those whose copies have landed.
      barrier_init(shared.full[i], 1 + kWarpGroup);
      barrier_init(shared.empty[i], kConsumerWarps);
    }
    barrier_init_done();
  }
  wait_for_previous();
  divide_experts<kTileRows, kThreads>(p.begins, p.groups, shared.experts);
  __syncthreads();
  Items items(shared.experts, p.groups, p.chunks);
  if (threadIdx.x < kWarpGroup)
    produce<T, GATED>(p, shared, items, weights_map);
  else
    consume<T, GATED>(p, shared, items);
}

// --- on the host ---

bool is_codes(const GroupedArgs& args) { return args.weight_scales != nullptr; }

Status encode_weights(const GroupedArgs& args, CUtensorMap& map) {
  const uint64_t size = is_codes(args) ? 1 : 2;
  const auto type =
      is_codes(args) ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto box = static_cast<uint32_t>(kDepthBytes / size);
  const auto in = static_cast<uint64_t>(args.in_features);
  const auto out = static_cast<uint64_t>(args.out_features);
  const auto groups = static_cast<uint64_t>(args.num_groups);
  const uint64_t row = in * size, group = static_cast<uint64_t>(args.weights_stride) * size;
  if (!args.activation)
    return encode_tensor_map<3>("grouped linear", map, args.weights, {in, out, groups},
                                {row, group}, {box, kItemOutputs, 1}, type);
  // [eights][gate and up][8][in]
  return encode_tensor_map<5>("grouped linear", map, args.weights, {in, 8, 2, out / 16, groups},
                              {row, out / 2 * row, 8 * row, group},
                              {box, 8, 2, kItemOutputs / 16, 1}, type);
}

template <typename T, bool GATED>
Status start(const GroupedArgs& args, const DeviceTraits& traits, const LaunchOptions& launch) {
  CUtensorMap weights{};
  ESP_RETURN_IF_ERROR(encode_weights(args, weights));
  const auto in_bytes = static_cast<int32_t>(args.in_features * sizeof(T));
  const Params params{.x = static_cast<const char*>(args.x),
                      .x_stride_bytes = args.x_stride * static_cast<int64_t>(sizeof(T)),
                      .x_scales = args.x_scales,
                      .weight_scales = args.weight_scales,
                      .x_scale_stride = args.x_scale_stride,
                      .scale_rows = static_cast<int32_t>(scale_blocks(args.out_features)),
                      .scale_stride = static_cast<int32_t>(block_scale_stride(args.in_features)),
                      .begins = args.plan->begins,
                      .pairs = args.plan->pairs,
                      .pairs_per_row = args.pairs_per_row,
                      .bias = static_cast<const bf16*>(args.bias),
                      .y = static_cast<bf16*>(args.y),
                      .y_stride = args.y_stride,
                      .groups = args.num_groups,
                      .in_bytes = in_bytes,
                      .out_features = args.out_features,
                      .columns = GATED ? args.out_features / 2 : args.out_features,
                      .chunks = (args.out_features + kItemOutputs - 1) / kItemOutputs,
                      .steps = (in_bytes + kDepthBytes - 1) / kDepthBytes,
                      .activation = args.activation.value_or(Activation::kSilu),
                      .limit = args.limit};
  auto* kernel = experts_decode_kernel<T, GATED>;
  constexpr size_t kBytes = sizeof(Shared<T>) + 1024;
  ESP_RETURN_IF_ERROR(allow_shared("grouped linear", kernel, kBytes));
  return launch_kernel("grouped linear", kernel,
                       dim3(static_cast<unsigned>(traits.num_multiprocessors)), kThreads, kBytes,
                       launch, weights, params);
}

}  // namespace

bool experts_decode_supports(const GroupedArgs& args, const DeviceTraits& traits) {
  const bool gathers = args.pairs_per_row > 0;
  return traits.compute_capability == 90 && tensor_map_encoder() != nullptr &&
         args.type == DType::kBFloat16 && args.plan != nullptr && !args.row_invariant &&
         gathers == args.activation.has_value() && args.num_groups <= kMaxExperts &&
         args.num_pairs <= num_routed(args) * kMostRowsOfGroup &&
         args.out_features % (gathers ? 16 : 8) == 0 &&
         (args.in_features | args.x_stride | args.weights_stride) % (is_codes(args) ? 16 : 8) ==
             0 &&
         (!args.block_scales || !gathers || args.out_features / 2 % kScaleBlock == 0) &&
         aligned(args.x, 16) && aligned(args.weights, 16);
}

Status experts_decode(const GroupedArgs& args, const DeviceTraits& traits,
                      const LaunchOptions& launch) {
  if (args.block_scales)
    return args.activation ? start<BlockCode, true>(args, traits, launch)
                           : start<BlockCode, false>(args, traits, launch);
  if (is_codes(args))
    return args.activation ? start<uint8_t, true>(args, traits, launch)
                           : start<uint8_t, false>(args, traits, launch);
  return args.activation ? start<bf16, true>(args, traits, launch)
                         : start<bf16, false>(args, traits, launch);
}

}  // namespace espalier::kernels::cuda
