// y = x W^T for 3 to 64 rows on Hopper: a stream of the weights past tensor cores.
//
// y^T = W x^T: the weights are the matrix instruction's rows and the batch its 16, 32 or 64
// columns, so few rows waste nothing. A block has up to 16 groups of 16 outputs, as many as make
// the blocks fill the multiprocessors evenly, and walks the inputs: one thread asks the copy engine
// for a piece of the weights and the same inputs of x, as many pieces ahead as shared memory holds,
// and asks for the first weights before wait_for_previous(): they are nobody's output. Two warp
// groups multiply. With splits two blocks (a cluster) have half of the inputs each; both then add
// up the sums of half of the rows, read from each other's shared memory, in one order. With SiLU a
// group is eight of gate and eight of up, which the tensor map does, so both meet in one thread.
//
// Bytes: the weights once from memory; from the second-level cache also x for every block, which
// makes (1 + rows / (16 x groups)) times the weights. Operations: 2 x rows x out x in, under a
// third of the memory's time.
//
// Measured on an H200 that reads 4.65 TB/s, one product behind the other, launched early: a layer
// of the Llama-3.1-8B shape at 16 rows 111 us (qkv 14.0, o 10.9, gate and up 57.2, down 29.6),
// cuBLASLt's kernels and SiLU 121, the memory alone 94; at 32 rows 114 (122), at 64 rows 124 (122;
// gate and up 61 for 66). A product of 4 MB takes 3 to 4 us, the chain from x to y; early launches
// hide 2 to 3 us of a product, and what is left is this chain and 4.3 TB/s where copies of 128
// bytes of a row follow each other (pieces of whole rows, as for 1 row, reach 4.5).
//
// Tried: clusters of 4 and 8 (30 and 15 of them stand at once, fewer than make 128 blocks, so there
// is a second wave: down 38 to 65 us); blocks of 128 or 256 outputs whatever the shape (1.7 waves
// of gate and up, 61 us); another order of the inputs in each block, other cache hints and prefetch
// sizes, one copy for several rows: all within 2 %; boxes of fewer rows 20 to 40 % slower, for one
// multiprocessor starts a copy about every 0.3 us then.
//
// Tried against the memory's rest between two products (4 to 6 us each at 16 rows, by the bytes),
// whole steps of 16 lanes, 4.91 to 4.94 ms as it is: the next product's first weights asked for in
// the second-level cache behind a product's own last ones, 4.99 with 8 MB of them, 5.14 with 16,
// 5.23 with 24 (probably they come before its own last ones, which then are late, and the rest
// between the two stays); also by the norm in front 5.31; further weights of its own asked for
// there at the start 5.28; three pieces of weights, then x, then the rest of the ring 5.01; the
// first pieces' x by loads instead of copies 5.04, 2 to 3 us more for o and qkv. All four products
// of a layer from o to the next qkv, with both norms, as one kernel whose ring of weights goes on
// through them and whose blocks wait for each other by counts: predicted 101 us, found 135 (148 at
// 64 rows), steps of 16 lanes 5.47, of 64 7.48 beside 6.99; about 10 us go at each wait (count,
// norm, count, x). One piece's products under way while the next one's start, with room for 7
// pieces instead of 6: o and qkv 0.3 to 0.6 us less alone, no gain in a step (4.94; 7.11 of 64
// lanes beside 7.04).
//
// Tried for 65 to 128 rows, gate and up by 128 columns (cuBLASLt 66 us and SiLU): weights and x in
// one ring 71; x in 3 or 4 slots of its own 84 and 78; x for two blocks by multicast 107 to 122,
// copies to pairs of blocks bring 3.1 TB/s from the second-level cache into all shared memory where
// copies to each bring 9.0; x loaded by three warps 107. The others have too much of x to fetch:
// down 40.5 with two splits, 50 with four (29 clusters), cuBLASLt 36; qkv 25 for 17, o 18 for 13.
#include <algorithm>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/gemm_small_batch.h"

namespace espalier::kernels::cuda {

namespace {

constexpr int kWarps = 8;  // that multiply
constexpr int kMathThreads = kWarps * 32;
constexpr int kThreads = kMathThreads + 32;
constexpr int kBoxInputs = 64;   // 128 bytes: what the swizzle takes
constexpr int kMostPieces = 12;  // ahead
constexpr int kFewPieces = 3;
constexpr size_t kReservedShared = 1024;  // of a multiprocessor for each block, by the driver

struct Params {
  void* y;
  int64_t y_stride;
  const bf16* bias;
  const bf16* residual;
  int rows, out;
  int pieces;  // of the inputs
  int splits, pieces_ahead;
  int groups;  // of 16 rows of weights that a block has
  bool silu, float_out;
};

struct Barriers {
  Barrier full[kMostPieces], empty[kMostPieces];
};

// A block has room for OUTPUTS rows of weights, 64 or 256. A warp group multiplies 64 or 128 of
// them: the two groups have different inputs, or different outputs.
__host__ __device__ constexpr int groups_of_inputs(int outputs) { return outputs == 64 ? 2 : 1; }
__host__ __device__ constexpr int piece_inputs(int outputs) {
  return kBoxInputs * groups_of_inputs(outputs);
}
__host__ __device__ constexpr size_t piece_bytes(int columns, int outputs) {
  return static_cast<size_t>((outputs + columns) * piece_inputs(outputs) * 2);
}
// A row of sums: the outputs, and what keeps a warp's stores in banks of their own.
__host__ __device__ constexpr int sums_stride(int outputs) { return outputs + 4; }
__host__ __device__ constexpr size_t sums_bytes(int columns, int outputs) {
  return static_cast<size_t>(groups_of_inputs(outputs) * columns * sums_stride(outputs)) * 4;
}

// --- what clusters and tensor maps need ---

__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}
__device__ __forceinline__ void cluster_sync() {
  ESP_HOPPER_ASM("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
// The address of what lies at `address` here, in the shared memory of another block.
__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t rank) {
  uint32_t there = address;
  ESP_HOPPER_ASM("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ float4 load_in(uint32_t address) {
  float4 v{};
  ESP_HOPPER_ASM("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
  return v;
}
// Weights are read once: first to leave the second-level cache.
__device__ __forceinline__ void copy_weights(void* to, const CUtensorMap& map, int input, int group,
                                             Barrier& barrier) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;
  ESP_HOPPER_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(input), "r"(0), "r"(group), "r"(barrier_address(barrier)), "l"(kEvictFirst)
      : "memory");
}
__device__ __forceinline__ void copy_rows(void* to, const CUtensorMap& map, int input, int row,
                                          Barrier& barrier) {
  ESP_HOPPER_ASM(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(&map), "r"(input), "r"(row), "r"(barrier_address(barrier))
      : "memory");
}
// What this block has of the product; its rank in the cluster is the split.
struct Part {
  int tile, split;
  int begin, end;  // pieces of the inputs
  __device__ explicit Part(const Params& p) {
    tile = static_cast<int>(blockIdx.x) / p.splits;
    split = static_cast<int>(blockIdx.x) % p.splits;
    begin = p.pieces * split / p.splits;
    end = p.pieces * (split + 1) / p.splits;
  }
};

// Shared memory: pieces [ahead][inputs / 64][weights [OUTPUTS][64]], as many times x [COLUMNS][64],
// barriers; in the end the sums [groups of inputs][COLUMNS][sums_stride] where the pieces were.
template <int COLUMNS, int OUTPUTS>
struct Shared {
  static constexpr int kBoxes = groups_of_inputs(OUTPUTS);
  static constexpr int kWeightsBox = OUTPUTS * kBoxInputs * 2, kRowsBox = COLUMNS * kBoxInputs * 2;
  static constexpr int kPieceBytes = static_cast<int>(piece_bytes(COLUMNS, OUTPUTS));
  static constexpr int kTiles = OUTPUTS == 64 ? 1 : 2;  // of 64 outputs that a warp group has
  char* pieces;
  Barriers* barriers;

  __device__ Shared(char* raw, const Params& p)
      : pieces(raw + (1024 - shared_address(raw) % 1024) % 1024),
        barriers(reinterpret_cast<Barriers*>(pieces + p.pieces_ahead * kPieceBytes)) {}
  __device__ char* weights(int slot) const { return pieces + slot * kPieceBytes; }
  __device__ char* x(int slot) const { return weights(slot) + kBoxes * kWeightsBox; }
  __device__ float* sums() const { return reinterpret_cast<float*>(pieces); }
};

// One thread asks for everything: first for weights alone, as many as there is room for.
template <int COLUMNS, int OUTPUTS>
struct Fetcher {
  using Memory = Shared<COLUMNS, OUTPUTS>;
  const Params& p;
  const Memory& shared;
  const Part& part;
  const CUtensorMap& weights_map;
  const CUtensorMap& x_map;

  __device__ int first_pieces() const { return min(p.pieces_ahead, part.end - part.begin); }

  __device__ void weights(int piece, int slot) const {
    Barrier& full = shared.barriers->full[slot];
    barrier_expect(full, Memory::kBoxes * (p.groups * 16 * kBoxInputs * 2 + Memory::kRowsBox));
    const int input = (part.begin + piece) * piece_inputs(OUTPUTS);
#pragma unroll
    for (int i = 0; i < Memory::kBoxes; ++i)
      copy_weights(shared.weights(slot) + i * Memory::kWeightsBox, weights_map,
                   input + i * kBoxInputs, part.tile * p.groups, full);
  }
  __device__ void rows(int piece, int slot) const {
    const int input = (part.begin + piece) * piece_inputs(OUTPUTS);
#pragma unroll
    for (int i = 0; i < Memory::kBoxes; ++i)
      copy_rows(shared.x(slot) + i * Memory::kRowsBox, x_map, input + i * kBoxInputs, 0,
                shared.barriers->full[slot]);
  }
  __device__ void rest() const {
    int slot = 0;
    uint32_t parity = 0;
    for (int piece = p.pieces_ahead; piece < part.end - part.begin; ++piece) {
      barrier_wait(shared.barriers->empty[slot], parity);
      weights(piece, slot);
      rows(piece, slot);
      if (++slot == p.pieces_ahead) slot = 0, parity ^= 1;
    }
  }
};

// Rows of weights that the block has no groups for are whatever lies there, and so are their sums.
template <int COLUMNS, int OUTPUTS, int TILES>
__device__ void multiply(const Params& p, const Shared<COLUMNS, OUTPUTS>& shared, const Part& part,
                         float (&sums)[TILES][COLUMNS / 2]) {
  const int group = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  const int rows_at = groups_of_inputs(OUTPUTS) == 2 ? group * COLUMNS * kBoxInputs * 2 : 0;
  int slot = 0;
  uint32_t parity = 0;
  for (int piece = part.begin; piece < part.end; ++piece) {
    barrier_wait(shared.barriers->full[slot], parity);
#pragma unroll
    for (int t = 0; t < TILES; ++t) pin(sums[t]);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kBoxInputs; i += 16)
#pragma unroll
      for (int t = 0; t < TILES; ++t)  // 64 rows of weights are 8,192 bytes
        wgmma_scores(
            sums[t],
            matrix_descriptor(shared.weights(slot) + (group * TILES + t) * 8192 + i * 2, 16),
            matrix_descriptor(shared.x(slot) + rows_at + i * 2, 16), piece > part.begin || i > 0);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < TILES; ++t) pin(sums[t]);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.barriers->empty[slot]);
    if (++slot == p.pieces_ahead) slot = 0, parity ^= 1;
  }
}

// The sums of eight adjacent outputs of a row, from all parts of the inputs; `at`: where the first
// part of a block has them.
template <int COLUMNS, int OUTPUTS>
__device__ __forceinline__ void add_parts(const Params& p, uint32_t at, float (&to)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = 0;
  for (int split = 0; split < p.splits; ++split) {
    const uint32_t there = address_in(at, static_cast<uint32_t>(split));
#pragma unroll
    for (int group = 0; group < groups_of_inputs(OUTPUTS); ++group) {
      const uint32_t from = there + group * COLUMNS * sums_stride(OUTPUTS) * 4;
      const float4 a = load_in(from), b = load_in(from + 16);
      to[0] += a.x, to[1] += a.y, to[2] += a.z, to[3] += a.w;
      to[4] += b.x, to[5] += b.y, to[6] += b.z, to[7] += b.w;
    }
  }
}

__device__ __forceinline__ void add8(const bf16* from, float (&to)[8]) {
  float values[8];
  load8(from, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] += values[i];
}

// This block's share of the rows, with what comes after the product.
template <int COLUMNS, int OUTPUTS>
__device__ void finish(const Params& p, const Part& part, const float* sums) {
  const int outputs = p.groups * (p.silu ? 8 : 16);  // of the block
  const int eights = outputs / 8, first = part.tile * outputs;
  const int row_begin = p.rows * part.split / p.splits;
  const int row_end = p.rows * (part.split + 1) / p.splits;
  const uint32_t base = shared_address(sums);
  for (int i = threadIdx.x; i < (row_end - row_begin) * eights; i += kMathThreads) {
    const int row = row_begin + i / eights, eight = i % eights, output = first + eight * 8;
    if (output >= p.out) continue;
    const uint32_t from =
        base + static_cast<uint32_t>(row * sums_stride(OUTPUTS) + eight * (p.silu ? 16 : 8)) * 4;
    float values[8];
    add_parts<COLUMNS, OUTPUTS>(p, from, values);
    if (p.bias != nullptr) add8(p.bias + output, values);
    if (p.silu) {
      float up[8];
      add_parts<COLUMNS, OUTPUTS>(p, from + 32, up);
      if (p.bias != nullptr) add8(p.bias + p.out + output, up);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = silu(values[j]) * up[j];
    }
    const int64_t at = row * p.y_stride + output;
    if (p.residual != nullptr) add8(p.residual + at, values);
    if (p.float_out)
      store8(static_cast<float*>(p.y) + at, values);
    else
      store8(static_cast<bf16*>(p.y) + at, values);
  }
}

template <int COLUMNS, int OUTPUTS>
__global__ void __launch_bounds__(kThreads, 2)
    batch_kernel(const __grid_constant__ CUtensorMap weights_map,
                 const __grid_constant__ CUtensorMap x_map, const Params p) {
  extern __shared__ char raw[];
  const Shared<COLUMNS, OUTPUTS> shared(raw, p);
  const Part part(p);
  const Fetcher<COLUMNS, OUTPUTS> fetcher{p, shared, part, weights_map, x_map};
  const bool fetches = threadIdx.x == kMathThreads;
  release_next();
  if (fetches) {
    for (int i = 0; i < p.pieces_ahead; ++i) {
      barrier_init(shared.barriers->full[i], 1);
      barrier_init(shared.barriers->empty[i], kWarps);
    }
    barrier_init_done();
    for (int i = 0; i < fetcher.first_pieces(); ++i) fetcher.weights(i, i);
  }
  __syncthreads();
  wait_for_previous();
  if (fetches) {
    for (int i = 0; i < fetcher.first_pieces(); ++i) fetcher.rows(i, i);
    fetcher.rest();
  } else if (threadIdx.x < kMathThreads) {
    constexpr int kTiles = Shared<COLUMNS, OUTPUTS>::kTiles;
    float sums[kTiles][COLUMNS / 2];
    multiply<COLUMNS, OUTPUTS>(p, shared, part, sums);
    part_sync(1, kMathThreads);  // the pieces are nobody's any more
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int group_at = groups_of_inputs(OUTPUTS) == 2 ? warp / 4 * COLUMNS * sums_stride(OUTPUTS)
                                                        : warp / 4 * kTiles * 64;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; ++i) {
        const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int output = t * 64 + warp % 4 * 16 + i / 2 % 2 * 8 + lane / 4;
        if (row < p.rows)
          shared.sums()[group_at + row * sums_stride(OUTPUTS) + output] = sums[t][i];
      }
  }
  __syncwarp();
  if (p.splits > 1)
    cluster_sync();
  else
    __syncthreads();
  if (threadIdx.x < kMathThreads) finish<COLUMNS, OUTPUTS>(p, part, shared.sums());
  __syncwarp();
  if (p.splits > 1) cluster_sync();  // nobody reads this block's sums any more
}

// --- on the host ---

int columns_for(int rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

int outputs_for(const BatchWay& way) { return way.groups <= 4 ? 64 : 256; }

// Pieces that fit; 0 where too few do.
int pieces_ahead(int columns, const BatchWay& way, const DeviceTraits& traits) {
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  const size_t room = way.half ? (most + kReservedShared) / 2 - kReservedShared : most;
  const size_t fixed = 1024 + sizeof(Barriers), piece = piece_bytes(columns, outputs_for(way));
  const size_t fit = (room - fixed) / piece;
  if (fit < kFewPieces || fit * piece < sums_bytes(columns, outputs_for(way))) return 0;
  return std::min(static_cast<int>(fit), kMostPieces);
}

int num_groups(const LinearArgs& args) { return args.out_features / (args.silu_mul ? 8 : 16); }
int num_tiles(const LinearArgs& args, const BatchWay& way) {
  return (num_groups(args) + way.groups - 1) / way.groups;
}
int num_pieces(const LinearArgs& args, const BatchWay& way) {
  const int inputs = piece_inputs(outputs_for(way));
  return (args.in_features + inputs - 1) / inputs;
}

template <int COLUMNS, int OUTPUTS>
Status start(const CUtensorMap& weights, const CUtensorMap& x, const Params& params, int blocks,
             const LaunchOptions& launch) {
  const size_t bytes = 1024 + sizeof(Barriers) +
                       static_cast<size_t>(params.pieces_ahead) * piece_bytes(COLUMNS, OUTPUTS);
  auto* kernel = batch_kernel<COLUMNS, OUTPUTS>;
  ESP_RETURN_IF_ERROR(allow_shared("linear", kernel, bytes));
  return launch_clusters("linear", kernel, dim3(static_cast<unsigned>(blocks)), kThreads,
                         params.splits, bytes, launch, weights, x, params);
}

}  // namespace

std::optional<BatchWay> batch_way(const LinearArgs& args, const DeviceTraits& traits) {
  // As many groups for a block that all blocks together fill the multiprocessors evenly, once or,
  // where that is too much for a block, two at a time and some times over. Blocks of one or two
  // groups have more of x to fetch than is good: two of them have twice as many and half the
  // inputs.
  const auto way_of = [&](int splits, bool half) {
    const int places = traits.num_multiprocessors * (half ? 2 : 1) / splits;
    const int turns = (num_groups(args) + 16 * places - 1) / (16 * places);
    return BatchWay{.groups = (num_groups(args) + turns * places - 1) / (turns * places),
                    .splits = splits,
                    .half = half};
  };
  const bool once = num_groups(args) <= 16 * traits.num_multiprocessors;
  BatchWay way = way_of(1, !once);
  if (way.groups <= 2 && num_pieces(args, way) >= 4) way = way_of(2, false);
  if (!batch_linear_takes(args, way, traits)) return {};
  return way;
}

bool batch_linear_takes(const LinearArgs& args, const BatchWay& way, const DeviceTraits& traits) {
  const int64_t of_16_bytes = args.out_type == DType::kFloat32 ? 4 : 8;
  return traits.compute_capability == 90 && tensor_map_encoder() != nullptr &&
         args.type == DType::kBFloat16 && args.norm_weight == nullptr && args.rows > 0 &&
         args.rows <= kBatchRows && way.groups >= 1 && way.groups <= 16 &&
         (way.splits == 1 || way.splits == 2) && num_pieces(args, way) >= way.splits &&
         pieces_ahead(columns_for(args.rows), way, traits) > 0 && args.in_features % 8 == 0 &&
         args.out_features % (args.silu_mul ? 8 : 16) == 0 && args.x_stride % 8 == 0 &&
         args.y_stride % of_16_bytes == 0 && aligned(args.x, 16) && aligned(args.weights, 16) &&
         aligned(args.y, 16) && aligned(args.bias, 16) && aligned(args.residual, 16);
}

Status batch_linear(const LinearArgs& args, const BatchWay& way, const DeviceTraits& traits,
                    const LaunchOptions& launch) {
  const int columns = columns_for(args.rows);
  const auto in = static_cast<uint64_t>(args.in_features);
  const auto out = static_cast<uint64_t>(args.out_features);
  CUtensorMap weights{}, x{};
  // [groups of 16][gate and up, or twice eight][8][in].
  const uint64_t eight = 8 * in * 2;
  ESP_RETURN_IF_ERROR(encode_tensor_map<4>(
      "linear", weights, args.weights, {in, 8, 2, args.silu_mul ? out / 8 : out / 16},
      {in * 2, args.silu_mul ? out * in * 2 : eight, args.silu_mul ? eight : 2 * eight},
      {kBoxInputs, 8, 2, static_cast<uint32_t>(way.groups)}));
  ESP_RETURN_IF_ERROR(encode_tensor_map<2>(
      "linear", x, args.x, {in, static_cast<uint64_t>(args.rows)},
      {static_cast<uint64_t>(args.x_stride) * 2}, {kBoxInputs, static_cast<uint32_t>(columns)}));
  const Params params{.y = args.y,
                      .y_stride = args.y_stride,
                      .bias = static_cast<const bf16*>(args.bias),
                      .residual = static_cast<const bf16*>(args.residual),
                      .rows = args.rows,
                      .out = args.out_features,
                      .pieces = num_pieces(args, way),
                      .splits = way.splits,
                      .pieces_ahead = pieces_ahead(columns, way, traits),
                      .groups = way.groups,
                      .silu = args.silu_mul,
                      .float_out = args.out_type == DType::kFloat32};
  const int blocks = num_tiles(args, way) * way.splits;
  const auto start_outputs = [&]<int COLUMNS>() {
    return outputs_for(way) == 64 ? start<COLUMNS, 64>(weights, x, params, blocks, launch)
                                  : start<COLUMNS, 256>(weights, x, params, blocks, launch);
  };
  if (columns == 16) return start_outputs.template operator()<16>();
  if (columns == 32) return start_outputs.template operator()<32>();
  return start_outputs.template operator()<64>();
}

}  // namespace espalier::kernels::cuda
