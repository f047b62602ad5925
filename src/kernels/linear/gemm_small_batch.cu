// GEMM for 3 to 64 rows on Hopper (of e4m3: 1 to 128): y = x W^T as a stream of the weights past
// the tensor cores, with scales, bias, SiLU or residual behind. x [rows, in], W [out, in] bfloat16
// or e4m3, y [rows, out] bfloat16 or float32. Scales of e4m3 are of rows, or of blocks of 128
// inputs, whose sums are scaled on their way to float32 ones. Computed as y^T = W x^T: the weights
// are wgmma's 64 rows and the batch its 16 to 128 columns. Parallel: a block has up to 16 groups of
// 16 outputs, as many as make the blocks fill the multiprocessors evenly, and two consumer warp
// groups. With two splits a cluster of two blocks halves the inputs; each block then adds up half
// of the rows, read from the other's shared memory, in one order. With SiLU a group is eight of
// gate and eight of up (by the tensor map), so both meet in one thread. Pipeline: one producer
// thread issues TMA copies of a tile of weights and of x, as many stages ahead as shared memory
// holds, the first weights before wait_for_previous(). Roof: memory, the weights once, and L2: (1 +
// rows / (16 x groups)) times the weights. A Llama-3.1-8B layer at 16 rows 111 us on an H200,
// memory alone 94; at 64 rows 124. History: docs/notes/gemm_small_batch.md.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_copy.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/gemm_small_batch.h"
#include "kernels/linear/quantize_rows.h"
#include "kernels/linear/small_batch_output.cuh"

namespace espalier::kernels::cuda {

namespace {

using E4m3 = uint8_t;
// e4m3 whose scales are of blocks of 128 inputs, of which a box is one.
struct BlockE4m3 {
  uint8_t bits;
};
template <typename T>
constexpr bool kHasBlocks = std::is_same_v<T, BlockE4m3>;

constexpr int kBoxBytes = 128;  // of a row in a box: the width of the swizzle
constexpr int kMaxStages = 12;  // ahead
constexpr int kMinStages = 3;
constexpr size_t kReservedShared = 1024;  // of a multiprocessor for each block, by the driver

struct Params {
  SmallBatchOutput output;
  int k_tiles;  // tiles along the inputs
  int num_stages;
  // Of scales of blocks: from 128 inputs to the next, of x; from 128 outputs to the next.
  int x_scale_stride, weight_scale_stride;
  int blocks;  // of inputs
};

struct Barriers {
  Barrier full[kMaxStages], empty[kMaxStages];
};

// A block has room for OUTPUTS rows of weights, 64, 128 or 256. Each consumer warp group multiplies
// 64 or 128 of them: the two groups have different inputs, or different outputs.
__host__ __device__ constexpr int groups_of_inputs(int outputs) { return outputs == 64 ? 2 : 1; }
// The bytes of a row in a stage.
__host__ __device__ constexpr int k_tile_bytes(int outputs) {
  return kBoxBytes * groups_of_inputs(outputs);
}
__host__ __device__ constexpr size_t stage_bytes(int columns, int outputs) {
  return static_cast<size_t>((outputs + columns) * k_tile_bytes(outputs));
}
// Of the scales of x's rows that a stage has beside it.
__host__ __device__ constexpr size_t scale_bytes(bool blocks, int columns, int outputs) {
  return blocks ? sizeof(float) * static_cast<size_t>(columns * groups_of_inputs(outputs)) : 0;
}
// Weights are read once, so they are evicted from L2 first.
__device__ __forceinline__ void copy_weights(void* to, const CUtensorMap& map, int input, int group,
                                             Barrier& barrier) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;
  ESP_HOPPER_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(input), "r"(0), "r"(group), "r"(barrier_address(barrier)), "l"(kEvictFirst)
      : "memory");
}
// Shared memory: stages [num_stages][boxes][weights [OUTPUTS][128 bytes]], as many times x
// [COLUMNS][128 bytes], scales of blocks [num_stages][boxes][COLUMNS], barriers; in the end the
// sums [groups of inputs][COLUMNS][sums_stride] in place of the stages.
template <typename T, int COLUMNS, int OUTPUTS>
struct Shared {
  static constexpr int kBoxes = groups_of_inputs(OUTPUTS);
  static constexpr int kWeightsBox = OUTPUTS * kBoxBytes, kRowsBox = COLUMNS * kBoxBytes;
  static constexpr int kStageBytes = static_cast<int>(stage_bytes(COLUMNS, OUTPUTS));
  static constexpr int kTiles = OUTPUTS == 256 ? 2 : 1;  // of 64 outputs that a warp group has
  static constexpr int kScaleBytes = static_cast<int>(scale_bytes(kHasBlocks<T>, COLUMNS, OUTPUTS));
  char *stages, *scales;
  Barriers* barriers;

  __device__ Shared(char* raw, const Params& p)
      : stages(raw + (1024 - shared_address(raw) % 1024) % 1024),
        scales(stages + p.num_stages * kStageBytes),
        barriers(reinterpret_cast<Barriers*>(scales + p.num_stages * kScaleBytes)) {}
  __device__ float* x_scales(int slot, int box) const {
    return reinterpret_cast<float*>(scales + slot * kScaleBytes) + box * COLUMNS;
  }
  __device__ char* weights(int slot) const { return stages + slot * kStageBytes; }
  __device__ char* x(int slot) const { return weights(slot) + kBoxes * kWeightsBox; }
  __device__ float* sums() const { return reinterpret_cast<float*>(stages); }
};

// The producer: one thread issues all copies, first those of weights alone, for as many stages as
// there are.
template <typename T, int COLUMNS, int OUTPUTS>
struct Fetcher {
  using Memory = Shared<T, COLUMNS, OUTPUTS>;
  static constexpr int kBoxInputs = kBoxBytes / static_cast<int>(sizeof(T));
  static constexpr int kTileInputs = kBoxInputs * Memory::kBoxes;
  const Params& p;
  const Memory& shared;
  const BlockWork& work;
  const CUtensorMap& weights_map;
  const CUtensorMap& x_map;

  __device__ int first_stages() const { return min(p.num_stages, work.end - work.begin); }

  __device__ void weights(int k_tile, int slot) const {
    Barrier& full = shared.barriers->full[slot];
    barrier_expect(full, Memory::kBoxes * (p.output.groups * 16 * kBoxBytes + Memory::kRowsBox +
                                           row_scale_bytes()));
    const int input = (work.begin + k_tile) * kTileInputs;
#pragma unroll
    for (int i = 0; i < Memory::kBoxes; ++i)
      copy_weights(shared.weights(slot) + i * Memory::kWeightsBox, weights_map,
                   input + i * kBoxInputs, work.tile * p.output.groups, full);
  }
  __device__ void rows(int k_tile, int slot) const {
    const int input = (work.begin + k_tile) * kTileInputs;
    Barrier& full = shared.barriers->full[slot];
#pragma unroll
    for (int i = 0; i < Memory::kBoxes; ++i) {
      copy_box(shared.x(slot) + i * Memory::kRowsBox, x_map, input + i * kBoxInputs, 0, full);
      if constexpr (kHasBlocks<T>) {  // a box behind the last inputs is zeros, whatever its scales
        const int block = min(input / kBoxInputs + i, p.blocks - 1);
        bulk_copy(shared.x_scales(slot, i), p.output.x_scales + block * p.x_scale_stride,
                  static_cast<uint32_t>(row_scale_bytes()), full);
      }
    }
  }
  __device__ int row_scale_bytes() const {
    return kHasBlocks<T> ? (p.output.rows + 3) / 4 * 16 : 0;
  }
  __device__ void rest() const {
    int slot = 0;
    uint32_t parity = 0;
    for (int k_tile = p.num_stages; k_tile < work.end - work.begin; ++k_tile) {
      barrier_wait(shared.barriers->empty[slot], parity);
      weights(k_tile, slot);
      rows(k_tile, slot);
      if (++slot == p.num_stages) slot = 0, parity ^= 1;
    }
  }
};

template <typename T, int COUNT>
__device__ __forceinline__ void multiply_add(float (&sums)[COUNT], uint64_t weights, uint64_t x,
                                             bool added) {
  if constexpr (sizeof(T) == 1)
    wgmma_e4m3(sums, weights, x, added);
  else
    wgmma_scores(sums, weights, x, added);
}

// The scales of a lane's two rows of weights in each tile, box by box; a warp's sixteen rows are
// those of one group, the upper eight of which are gate's with SiLU and the others up's.
template <int TILES>
class WeightScales {
 public:
  // first: the first output of the warp group's first tile in the block.
  __device__ WeightScales(const Params& p, const BlockWork& work, int first) {
    const int eights = p.output.silu ? 8 : 16;  // outputs of a group
    const int last = p.output.out - eights;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
      const int group = work.tile * p.output.groups + (first + t * 64) / 16 + warp;
      const int upper = min(group * eights, last);
      const int lower = upper + (p.output.silu ? p.output.out : 0);
      from_[t][0] = p.output.weight_scales + upper / kScaleBlock * p.weight_scale_stride;
      from_[t][1] = p.output.weight_scales + lower / kScaleBlock * p.weight_scale_stride;
    }
  }
  __device__ __forceinline__ void load(int block, float (&to)[TILES][2]) const {
#pragma unroll
    for (int t = 0; t < TILES; ++t) to[t][0] = from_[t][0][block], to[t][1] = from_[t][1][block];
  }

 private:
  const float* from_[TILES][2];
};

// Adds the sums of a box, as wgmma leaves them, times the scales.
template <int COLUMNS>
__device__ __forceinline__ void add_scaled(const float (&part)[COLUMNS / 2], const float* x_scales,
                                           const float (&weights)[2], float (&sums)[COLUMNS / 2]) {
  const float* of_lane = x_scales + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < COLUMNS / 8; ++i) {
    const float2 x = *reinterpret_cast<const float2*>(of_lane + i * 8);
    sums[i * 4] += part[i * 4] * (x.x * weights[0]);
    sums[i * 4 + 1] += part[i * 4 + 1] * (x.y * weights[0]);
    sums[i * 4 + 2] += part[i * 4 + 2] * (x.x * weights[1]);
    sums[i * 4 + 3] += part[i * 4 + 3] * (x.y * weights[1]);
  }
}

// As multiply(), with scales of blocks: a tile's sums of a box are complete before the next tile's
// begin, so that both take the same registers.
template <int COLUMNS, int OUTPUTS, int TILES>
__device__ void multiply_blocks(const Params& p, const Shared<BlockE4m3, COLUMNS, OUTPUTS>& shared,
                                const BlockWork& work, float (&sums)[TILES][COLUMNS / 2]) {
  constexpr int kBoxes = groups_of_inputs(OUTPUTS);
  const int group = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  const int box = kBoxes == 2 ? group : 0;
  const WeightScales<TILES> walk(p, work, kBoxes == 2 ? 0 : group * TILES * 64);
  const auto block_of = [&](int k_tile) { return min(k_tile * kBoxes + box, p.blocks - 1); };
#pragma unroll
  for (int t = 0; t < TILES; ++t)
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sums[t][i] = 0;
  float scales[TILES][2];
  walk.load(block_of(work.begin), scales);
  int slot = 0;
  uint32_t parity = 0;
  for (int k_tile = work.begin; k_tile < work.end; ++k_tile) {
    float next[TILES][2];
    walk.load(block_of(min(k_tile + 1, work.end - 1)), next);
    barrier_wait(shared.barriers->full[slot], parity);
    const char* x = shared.x(slot) + box * COLUMNS * kBoxBytes;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      float part[COLUMNS / 2];
      pin(part);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kBoxBytes; i += 32)
        wgmma_e4m3(part,
                   matrix_descriptor(shared.weights(slot) + (group * TILES + t) * 8192 + i, 16),
                   matrix_descriptor(x + i, 16), i > 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(part);
      add_scaled<COLUMNS>(part, shared.x_scales(slot, box), scales[t], sums[t]);
      scales[t][0] = next[t][0], scales[t][1] = next[t][1];
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.barriers->empty[slot]);
    if (++slot == p.num_stages) slot = 0, parity ^= 1;
  }
}

// Rows of weights beyond the block's groups are undefined, and so are their sums, which finish()
// does not read.
template <typename T, int COLUMNS, int OUTPUTS, int TILES>
__device__ void multiply(const Params& p, const Shared<T, COLUMNS, OUTPUTS>& shared,
                         const BlockWork& work, float (&sums)[TILES][COLUMNS / 2]) {
  const int group = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  const int rows_at = groups_of_inputs(OUTPUTS) == 2 ? group * COLUMNS * kBoxBytes : 0;
  int slot = 0;
  uint32_t parity = 0;
  for (int k_tile = work.begin; k_tile < work.end; ++k_tile) {
    barrier_wait(shared.barriers->full[slot], parity);
#pragma unroll
    for (int t = 0; t < TILES; ++t) pin(sums[t]);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kBoxBytes; i += 32)  // the bytes of a row that an instruction takes
#pragma unroll
      for (int t = 0; t < TILES; ++t)  // 64 rows of weights are 8,192 bytes
        multiply_add<T>(
            sums[t], matrix_descriptor(shared.weights(slot) + (group * TILES + t) * 8192 + i, 16),
            matrix_descriptor(shared.x(slot) + rows_at + i, 16), k_tile > work.begin || i > 0);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < TILES; ++t) pin(sums[t]);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.barriers->empty[slot]);
    if (++slot == p.num_stages) slot = 0, parity ^= 1;
  }
}

// Writes a thread's sums of rows, as wgmma leaves them, to shared memory.
// first: the place of the tile's first output in a row of `sums`.
template <int COLUMNS, int OUTPUTS>
__device__ __forceinline__ void store_sums(const float (&from)[COLUMNS / 2], float* sums, int first,
                                           int rows) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int output = first + warp % 4 * 16 + i / 2 % 2 * 8 + lane / 4;
    if (row < rows) sums[row * sums_stride(OUTPUTS) + output] = from[i];
  }
}

// Sums of blocks take as many registers again, so that two blocks have too few for many rows.
template <typename T, int COLUMNS>
constexpr int kBlocksAtOnce = kHasBlocks<T>&& COLUMNS > 32 ? 1 : 2;

template <typename T, int COLUMNS, int OUTPUTS>
__global__ void __launch_bounds__(kThreads, (kBlocksAtOnce<T, COLUMNS>))
    gemm_small_batch_kernel(const __grid_constant__ CUtensorMap weights_map,
                            const __grid_constant__ CUtensorMap x_map, const Params p) {
  extern __shared__ char raw[];
  const Shared<T, COLUMNS, OUTPUTS> shared(raw, p);
  const BlockWork work(p.k_tiles, p.output.splits);
  const Fetcher<T, COLUMNS, OUTPUTS> fetcher{p, shared, work, weights_map, x_map};
  const bool fetches = threadIdx.x == kMathThreads;
  release_next();
  if (fetches) {
    for (int i = 0; i < p.num_stages; ++i) {
      barrier_init(shared.barriers->full[i], 1);
      barrier_init(shared.barriers->empty[i], kWarps);
    }
    barrier_init_done();
    for (int i = 0; i < fetcher.first_stages(); ++i) fetcher.weights(i, i);
  }
  __syncthreads();
  wait_for_previous();
  if (fetches) {
    for (int i = 0; i < fetcher.first_stages(); ++i) fetcher.rows(i, i);
    fetcher.rest();
  } else if (threadIdx.x < kMathThreads) {
    constexpr int kTiles = Shared<T, COLUMNS, OUTPUTS>::kTiles;
    float sums[kTiles][COLUMNS / 2];
    if constexpr (kHasBlocks<T>)
      multiply_blocks<COLUMNS, OUTPUTS>(p, shared, work, sums);
    else
      multiply<T, COLUMNS, OUTPUTS>(p, shared, work, sums);
    named_barrier_sync(1, kMathThreads);  // no warp reads the stages any more
    const int warp_group = static_cast<int>(threadIdx.x) / 128;
    const bool parts = groups_of_inputs(OUTPUTS) == 2;
    float* to = shared.sums() + (parts ? warp_group * COLUMNS * sums_stride(OUTPUTS) : 0);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      store_sums<COLUMNS, OUTPUTS>(sums[t], to, (parts ? 0 : warp_group * kTiles * 64) + t * 64,
                                   p.output.rows);
  }
  __syncwarp();
  if (p.output.splits > 1)
    cluster_sync();
  else
    __syncthreads();
  if (threadIdx.x < kMathThreads)
    finish<std::is_same_v<T, E4m3>, groups_of_inputs(OUTPUTS), COLUMNS, OUTPUTS>(p.output, work,
                                                                                 shared.sums());
  __syncwarp();
  if (p.output.splits > 1) cluster_sync();  // no block reads this block's sums any more
}

// --- on the host ---

bool is_e4m3(const LinearArgs& args) { return args.weight_scales != nullptr; }
int element_bytes(const LinearArgs& args) { return is_e4m3(args) ? 1 : 2; }

int columns_for(int rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128; }

// More than 64 columns leave registers for 64 outputs in a warp group.
int most_groups(int columns) { return columns > 64 ? 8 : 16; }
int outputs_for(int columns, const SmallBatchConfig& config) {
  return config.groups <= 4 ? 64 : columns > 64 ? 128 : 256;
}

// The number of stages that fit; 0 where too few do.
int num_stages(const LinearArgs& args, const SmallBatchConfig& config, const DeviceTraits& traits) {
  const int columns = columns_for(args.rows);
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  const size_t room = config.half_shared ? (most + kReservedShared) / 2 - kReservedShared : most;
  const int outputs = outputs_for(columns, config);
  const size_t fixed = 1024 + sizeof(Barriers), k_tile = stage_bytes(columns, outputs);
  const size_t fit = (room - fixed) / (k_tile + scale_bytes(args.block_scales, columns, outputs));
  if (fit < kMinStages || fit * k_tile < sums_bytes(groups_of_inputs(outputs), columns, outputs))
    return 0;
  return std::min(static_cast<int>(fit), kMaxStages);
}

int num_groups(const LinearArgs& args) { return args.out_features / (args.silu_mul ? 8 : 16); }
int num_tiles(const LinearArgs& args, const SmallBatchConfig& config) {
  return (num_groups(args) + config.groups - 1) / config.groups;
}
int num_k_tiles(const LinearArgs& args, const SmallBatchConfig& config) {
  const int inputs =
      k_tile_bytes(outputs_for(columns_for(args.rows), config)) / element_bytes(args);
  return (args.in_features + inputs - 1) / inputs;
}

template <typename T, int COLUMNS, int OUTPUTS>
Status start(const CUtensorMap& weights, const CUtensorMap& x, const Params& params, int blocks,
             const LaunchOptions& launch) {
  const size_t bytes =
      1024 + sizeof(Barriers) +
      static_cast<size_t>(params.num_stages) *
          (stage_bytes(COLUMNS, OUTPUTS) + scale_bytes(kHasBlocks<T>, COLUMNS, OUTPUTS));
  auto* kernel = gemm_small_batch_kernel<T, COLUMNS, OUTPUTS>;
  ESP_RETURN_IF_ERROR(allow_shared("linear", kernel, bytes));
  return launch_clusters("linear", kernel, dim3(static_cast<unsigned>(blocks)), kThreads,
                         params.output.splits, bytes, launch, weights, x, params);
}

}  // namespace

std::optional<SmallBatchConfig> small_batch_config(const LinearArgs& args,
                                                   const DeviceTraits& traits) {
  // As many groups in a block as make all blocks fill the multiprocessors evenly: once, or, where
  // that is too much for a block, two at a time and several times over. Blocks of one or two groups
  // would fetch too much of x, so two of them have twice as many groups and half of the inputs.
  if (num_groups(args) < 1) return {};  // fewer outputs than one group has
  const int most = most_groups(columns_for(args.rows));
  const auto config_of = [&](int splits, bool half) {
    const int blocks_at_once = traits.num_multiprocessors * (half ? 2 : 1) / splits;
    const int waves = (num_groups(args) + most * blocks_at_once - 1) / (most * blocks_at_once);
    return SmallBatchConfig{
        .groups = (num_groups(args) + waves * blocks_at_once - 1) / (waves * blocks_at_once),
        .splits = splits,
        .half_shared = half};
  };
  const bool once = num_groups(args) <= most * traits.num_multiprocessors ||
                    (args.block_scales && columns_for(args.rows) > 32);
  SmallBatchConfig config = config_of(1, !once);
  if (config.groups <= 2 && num_k_tiles(args, config) >= 4) config = config_of(2, false);
  if (!gemm_small_batch_supports(args, config, traits)) return {};
  return config;
}

bool gemm_small_batch_supports(const LinearArgs& args, const SmallBatchConfig& config,
                               const DeviceTraits& traits) {
  const int64_t of_16_bytes = args.out_type == DType::kFloat32 ? 4 : 8;
  return traits.compute_capability == 90 && tensor_map_encoder() != nullptr &&
         args.type == DType::kBFloat16 && args.norm_weight == nullptr && args.rows > 0 &&
         args.rows <= (is_e4m3(args) ? kSmallBatchRowsE4m3 : kSmallBatchRows) &&
         is_e4m3(args) == (args.x_scales != nullptr) && config.groups >= 1 &&
         config.groups <= most_groups(columns_for(args.rows)) &&
         (config.splits == 1 || config.splits == 2) && num_k_tiles(args, config) >= config.splits &&
         num_stages(args, config, traits) > 0 &&
         (!args.block_scales || (args.x_scale_stride % 4 == 0 && aligned(args.x_scales, 16))) &&
         args.in_features * element_bytes(args) % 16 == 0 &&
         args.out_features % (args.silu_mul ? 8 : 16) == 0 &&
         args.x_stride * element_bytes(args) % 16 == 0 && aligned(args.weight_scales, 16) &&
         args.y_stride % of_16_bytes == 0 && aligned(args.x, 16) && aligned(args.weights, 16) &&
         aligned(args.y, 16) && aligned(args.bias, 16) && aligned(args.residual, 16);
}

Status gemm_small_batch(const LinearArgs& args, const SmallBatchConfig& config,
                        const DeviceTraits& traits, const LaunchOptions& launch) {
  const int columns = columns_for(args.rows);
  const auto in = static_cast<uint64_t>(args.in_features);
  const auto out = static_cast<uint64_t>(args.out_features);
  const auto size = static_cast<uint64_t>(element_bytes(args));
  const auto type =
      is_e4m3(args) ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto box_inputs = static_cast<uint32_t>(kBoxBytes / size);
  CUtensorMap weights{}, x{};
  // [groups of 16][gate and up, or twice eight][8][in].
  const uint64_t eight = 8 * in * size;
  ESP_RETURN_IF_ERROR(encode_tensor_map<4>(
      "linear", weights, args.weights, {in, 8, 2, args.silu_mul ? out / 8 : out / 16},
      {in * size, args.silu_mul ? out * in * size : eight, args.silu_mul ? eight : 2 * eight},
      {box_inputs, 8, 2, static_cast<uint32_t>(config.groups)}, type));
  ESP_RETURN_IF_ERROR(encode_tensor_map<2>("linear", x, args.x,
                                           {in, static_cast<uint64_t>(args.rows)},
                                           {static_cast<uint64_t>(args.x_stride) * size},
                                           {box_inputs, static_cast<uint32_t>(columns)}, type));
  const Params params{.output = {.y = args.y,
                                 .y_stride = args.y_stride,
                                 .bias = static_cast<const bf16*>(args.bias),
                                 .residual = static_cast<const bf16*>(args.residual),
                                 .x_scales = args.x_scales,
                                 .weight_scales = args.weight_scales,
                                 .rows = args.rows,
                                 .out = args.out_features,
                                 .splits = config.splits,
                                 .groups = config.groups,
                                 .silu = args.silu_mul,
                                 .float_out = args.out_type == DType::kFloat32},
                      .k_tiles = num_k_tiles(args, config),
                      .num_stages = num_stages(args, config, traits),
                      .x_scale_stride = static_cast<int>(args.x_scale_stride),
                      .weight_scale_stride = static_cast<int>(block_scale_stride(args.in_features)),
                      .blocks = static_cast<int>(scale_blocks(args.in_features))};
  const int blocks = num_tiles(args, config) * config.splits;
  const int outputs = outputs_for(columns, config);
  const auto start_columns = [&]<typename T, int COLUMNS>() {
    constexpr int kMost = COLUMNS > 64 ? 128 : 256;
    return outputs == 64 ? start<T, COLUMNS, 64>(weights, x, params, blocks, launch)
                         : start<T, COLUMNS, kMost>(weights, x, params, blocks, launch);
  };
  const auto start_of = [&]<typename T>() {
    if (columns == 16) return start_columns.template operator()<T, 16>();
    if (columns == 32) return start_columns.template operator()<T, 32>();
    return start_columns.template operator()<T, 64>();
  };
  if (!is_e4m3(args)) return start_of.template operator()<bf16>();
  if (args.block_scales)
    return columns == 128 ? start_columns.template operator()<BlockE4m3, 128>()
                          : start_of.template operator()<BlockE4m3>();
  if (columns == 128) return start_columns.template operator()<E4m3, 128>();
  return start_of.template operator()<E4m3>();
}

}  // namespace espalier::kernels::cuda
