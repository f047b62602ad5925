// GEMM for 1 to 256 rows with weights of 4 bits on Hopper: y = x W^T with bias, SiLU or residual
// behind. x [rows, in] bfloat16, W records of int4_weights.h, y [rows, out] bfloat16 or float32.
// Computed as y^T = W x^T with the weights as mma.sync's 16 rows: a code becomes the whole number
// code - zero, exact in bfloat16, and the sum over a group's inputs is multiplied with the group's
// scale in float32. A code of NVFP4 becomes its number with the group's scale, which bfloat16 has
// exactly, and the sum over all inputs is multiplied with the row's scale. Parallel: blocks of up
// to 16 groups of 16 outputs and of 64 rows of x; a warp has one or two groups, and where the block
// has few, two or four warps take turns at tiles of 256 inputs. With two splits a cluster of two
// blocks halves the inputs. Pipeline: one producer thread copies tiles of weights, the first before
// wait_for_previous(), and of x. Roof: memory, the weights once, 4.13 to 5 bits each; from 64 rows
// on the tensor cores. History: docs/notes/gemm_int4.md.
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/gemm_int4.h"
#include "kernels/linear/int4_codes.cuh"
#include "kernels/linear/nvfp4_codes.cuh"
#include "kernels/linear/nvfp4_weights.h"
#include "kernels/linear/small_batch_output.cuh"

namespace espalier::kernels::cuda {

namespace {

constexpr int kMaxStages = 16;  // ahead
constexpr int kMinStages = 3;
constexpr int kMostColumns = 64;
constexpr int kBoxes = 4;                 // of x in a stage
constexpr int kBoxInputs = 64;            // of x: 128 bytes, the width of the swizzle
constexpr size_t kReservedShared = 1024;  // of a multiprocessor for each block, by the driver

struct Params {
  SmallBatchOutput output;
  const char* weights;
  int eights;   // of rows of weights in all
  int k_tiles;  // of kInt4Inputs inputs
  int num_stages;
  int record_bytes;
  bool zeros;
};

struct Barriers {
  Barrier full[kMaxStages], empty[kMaxStages];
};

__host__ __device__ constexpr size_t x_bytes(int columns) {
  return static_cast<size_t>(columns) * kInt4Inputs * 2;
}

// Shared memory: x [num_stages][four boxes][COLUMNS][128 bytes], weights [num_stages][2 groups]
// records (with SiLU those of gate, then those of up), barriers; in the end the sums in place of x
// and weights.
template <int COLUMNS>
struct Shared {
  char* base;
  int weights_bytes;  // of a stage
  char* weights_base;
  Barriers* barriers;

  __device__ Shared(char* raw, const Params& p)
      : base(raw + (1024 - shared_address(raw) % 1024) % 1024),
        weights_bytes(p.output.groups * 2 * p.record_bytes),
        weights_base(base + p.num_stages * x_bytes(COLUMNS)),
        barriers(reinterpret_cast<Barriers*>(weights_base + p.num_stages * weights_bytes)) {}
  __device__ char* x(int slot) const { return base + slot * x_bytes(COLUMNS); }
  __device__ char* weights(int slot) const { return weights_base + slot * weights_bytes; }
  __device__ float* sums() const { return reinterpret_cast<float*>(base); }
};

// The producer: one thread issues all copies, first those of weights alone, for as many stages as
// there are.
template <int COLUMNS>
struct Fetcher {
  const Params& p;
  const Shared<COLUMNS>& shared;
  const BlockWork& work;
  const CUtensorMap& x_map;

  __device__ int first_stages() const { return min(p.num_stages, work.end - work.begin); }

  // The matrix's last block may have fewer groups.
  __device__ void weights(int k_tile, int slot) const {
    Barrier& full = shared.barriers->full[slot];
    const int in_each = p.output.groups * (p.output.silu ? 1 : 2);  // eights
    const int half = p.output.silu ? p.eights / 2 : p.eights, first = work.tile * in_each;
    const auto bytes = static_cast<uint32_t>(min(in_each, half - first) * p.record_bytes);
    const char* from =
        p.weights + (int64_t{work.begin + k_tile} * p.eights + first) * p.record_bytes;
    barrier_expect(full, (p.output.silu ? 2 : 1) * bytes + static_cast<uint32_t>(x_bytes(COLUMNS)));
    bulk_copy(shared.weights(slot), from, bytes, full);
    if (p.output.silu)
      bulk_copy(shared.weights(slot) + in_each * p.record_bytes,
                from + int64_t{half} * p.record_bytes, bytes, full);
  }
  __device__ void rows(int k_tile, int slot) const {
    copy_box(shared.x(slot), x_map, 0, static_cast<int>(blockIdx.y) * COLUMNS,
             (work.begin + k_tile) * kBoxes, shared.barriers->full[slot]);
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

// Sixteen rows of weights and half of a stage's inputs: what a lane has of them, in the rows
// lane / 4 (low) and lane / 4 + 8 (high).
template <int GROUP, int COLUMNS>
struct Tile {
  static constexpr int kGroups = kInt4Inputs / 2 / GROUP;
  uint32_t low_codes[4], high_codes[4];
  const char *low, *high;          // scales
  uint32_t low_zeros, high_zeros;  // a byte for each group

  __device__ __forceinline__ void load(const Shared<COLUMNS>& shared, int slot, int group, int half,
                                       const Params& p) {
    const int low_eight = p.output.silu ? group : 2 * group;
    const int high_eight = p.output.silu ? p.output.groups + group : 2 * group + 1;
    low = shared.weights(slot) + low_eight * p.record_bytes;
    high = shared.weights(slot) + high_eight * p.record_bytes;
    const int vector = half * 32 + static_cast<int>(threadIdx.x) % 32;
    const uint4 a = reinterpret_cast<const uint4*>(low)[vector];
    const uint4 b = reinterpret_cast<const uint4*>(high)[vector];
    low_codes[0] = a.x, low_codes[1] = a.y, low_codes[2] = a.z, low_codes[3] = a.w;
    high_codes[0] = b.x, high_codes[1] = b.y, high_codes[2] = b.z, high_codes[3] = b.w;
    low_zeros = high_zeros = kInt4Zero * 0x01010101u;
    if (p.zeros) low_zeros = zeros_of(low, half), high_zeros = zeros_of(high, half);
    const int scales_at = kInt4CodeBytes + half * kGroups * 2 * kInt4Rows;
    low += scales_at, high += scales_at;
  }

  static __device__ __forceinline__ int row() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  static __device__ __forceinline__ float scale(const char* scales, int group) {
    return kInt4Whole *
           __half2float(reinterpret_cast<const __half*>(scales)[group * kInt4Rows + row()]);
  }
  static __device__ __forceinline__ uint32_t zeros_of(const char* record, int half) {
    constexpr int kZerosAt = kInt4CodeBytes + 2 * kGroups * 2 * kInt4Rows;
    const auto* from = reinterpret_cast<const uint8_t*>(record) + kZerosAt + row();
    uint32_t all = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      all |= uint32_t{from[(half * kGroups + g) * kInt4Rows]} << 8 * g;
    return all;
  }
  static __device__ __forceinline__ __nv_bfloat162 zero(uint32_t zeros, int group) {
    return int4_zero_pair(zeros >> 8 * group & 0xffu);
  }
  // The fragment of 16 inputs, the first or second half of a word of codes.
  __device__ __forceinline__ void fragment(int word, int half, __nv_bfloat162 low_zero,
                                           __nv_bfloat162 high_zero, uint32_t (&a)[4]) const {
    const uint32_t from_low = low_codes[word] >> half * 8;
    const uint32_t from_high = high_codes[word] >> half * 8;
    a[0] = int4_pair<false>(from_low, low_zero), a[1] = int4_pair<false>(from_high, high_zero);
    a[2] = int4_pair<true>(from_low, low_zero), a[3] = int4_pair<true>(from_high, high_zero);
  }
};

// The same of NVFP4. A step of 16 inputs has a scale of its own.
template <int COLUMNS>
struct Nvfp4Tile {
  uint32_t low_codes[4], high_codes[4];
  uint32_t low_scales[2], high_scales[2];  // of eight steps

  __device__ __forceinline__ void load(const Shared<COLUMNS>& shared, int slot, int group, int half,
                                       const Params& p) {
    const int low_eight = p.output.silu ? group : 2 * group;
    const int high_eight = p.output.silu ? p.output.groups + group : 2 * group + 1;
    load_rows(shared.weights(slot) + low_eight * p.record_bytes, half, low_codes, low_scales);
    load_rows(shared.weights(slot) + high_eight * p.record_bytes, half, high_codes, high_scales);
  }
  static __device__ __forceinline__ void load_rows(const char* record, int half,
                                                   uint32_t (&codes)[4], uint32_t (&scales)[2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint4 a = reinterpret_cast<const uint4*>(record)[half * 32 + lane];
    codes[0] = a.x, codes[1] = a.y, codes[2] = a.z, codes[3] = a.w;
    const uint2 b = reinterpret_cast<const uint2*>(record + kInt4CodeBytes)[lane / 4 * 2 + half];
    scales[0] = b.x, scales[1] = b.y;
  }
  // The fragment of 16 inputs, the first or second half of a word of codes.
  template <int HALF>
  __device__ __forceinline__ void fragment(int word, uint32_t (&a)[4]) const {
    const int step = 2 * word + HALF;
    const uint32_t low = nvfp4_factor(low_scales[step / 4], step % 4);
    const uint32_t high = nvfp4_factor(high_scales[step / 4], step % 4);
    a[0] = nvfp4_weights(e2m1_pair<2 * HALF>(low_codes[word]), low);
    a[1] = nvfp4_weights(e2m1_pair<2 * HALF>(high_codes[word]), high);
    a[2] = nvfp4_weights(e2m1_pair<2 * HALF + 1>(low_codes[word]), low);
    a[3] = nvfp4_weights(e2m1_pair<2 * HALF + 1>(high_codes[word]), high);
  }
};

// What a warp computes: up to TILES groups of 16 outputs.
template <int GROUP, int COLUMNS, int TILES>
struct Multiplier {
  static constexpr int kEights = COLUMNS / 8;           // of rows of x
  static constexpr int kChains = COLUMNS <= 8 ? 2 : 1;  // of dependent multiplications
  using Sums = float[kEights][4];
  Sums sums[TILES], partial[TILES][kChains];  // partial: of a group of inputs
  uint32_t x_lane[2];  // where in eight rows of x a lane's part of 32 inputs lies: swizzled()

  __device__ Multiplier() {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i)
      x_lane[i] = lane % 8 * 128 + ((i * 4 + lane / 8) ^ lane % 8) * 16;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      clear(sums[t]);
#pragma unroll
      for (int c = 0; c < kChains; ++c) clear(partial[t][c]);
    }
  }
  static __device__ __forceinline__ void clear(Sums& values) {
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) values[n][i] = 0;
  }

  // Adds half of a stage's inputs.
  __device__ __forceinline__ void add(const Shared<COLUMNS>& shared, const Params& p, int slot,
                                      int stage_half, const int (&groups)[TILES]) {
    if constexpr (GROUP == kNvfp4Group)
      add_nvfp4(shared, p, slot, stage_half, groups);
    else
      add_int4(shared, p, slot, stage_half, groups);
  }
  __device__ __forceinline__ void add_int4(const Shared<COLUMNS>& shared, const Params& p, int slot,
                                           int stage_half, const int (&groups)[TILES]) {
    using Weights = Tile<GROUP, COLUMNS>;
    Weights tiles[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t) tiles[t].load(shared, slot, groups[t], stage_half, p);
    const uint32_t x = shared_address(shared.x(slot)) + stage_half * COLUMNS * 256;
#pragma unroll
    for (int word = 0; word < 4; ++word) {  // of 32 inputs
      constexpr int kGroupWords = GROUP / 32;
      const int group = word / kGroupWords;
      uint32_t rows[kEights][4];
#pragma unroll
      for (int n = 0; n < kEights; ++n)
        load_matrices(rows[n], x + x_lane[word % 2] + word / 2 * COLUMNS * 128 + n * 1024);
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        const __nv_bfloat162 low_zero = Weights::zero(tiles[t].low_zeros, group);
        const __nv_bfloat162 high_zero = Weights::zero(tiles[t].high_zeros, group);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[4];
          tiles[t].fragment(word, half, low_zero, high_zero, a);
#pragma unroll
          for (int n = 0; n < kEights; ++n)
            mma(partial[t][half % kChains][n], a, rows[n][2 * half], rows[n][2 * half + 1]);
        }
        if ((word + 1) % kGroupWords == 0) {
          const float low = Weights::scale(tiles[t].low, group);
          const float high = Weights::scale(tiles[t].high, group);
#pragma unroll
          for (int n = 0; n < kEights; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              sums[t][n][i] +=
                  (i < 2 ? low : high) *
                  (partial[t][0][n][i] + (kChains > 1 ? partial[t][kChains - 1][n][i] : 0.0f));
#pragma unroll
          for (int c = 0; c < kChains; ++c) clear(partial[t][c]);
        }
      }
    }
  }

  __device__ __forceinline__ void add_nvfp4(const Shared<COLUMNS>& shared, const Params& p,
                                            int slot, int stage_half, const int (&groups)[TILES]) {
    Nvfp4Tile<COLUMNS> tiles[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t) tiles[t].load(shared, slot, groups[t], stage_half, p);
    const uint32_t x = shared_address(shared.x(slot)) + stage_half * COLUMNS * 256;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t rows[kEights][4];
#pragma unroll
      for (int n = 0; n < kEights; ++n)
        load_matrices(rows[n], x + x_lane[word % 2] + word / 2 * COLUMNS * 128 + n * 1024);
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        uint32_t first[4], second[4];
        tiles[t].template fragment<0>(word, first);
        tiles[t].template fragment<1>(word, second);
#pragma unroll
        for (int n = 0; n < kEights; ++n) mma(sums[t][n], first, rows[n][0], rows[n][1]);
#pragma unroll
        for (int n = 0; n < kEights; ++n)
          mma(kChains > 1 ? partial[t][kChains - 1][n] : sums[t][n], second, rows[n][2],
              rows[n][3]);
      }
    }
  }
  // Behind the last inputs: of NVFP4 the chains are added up here alone.
  __device__ __forceinline__ void end() {
    if constexpr (GROUP == kNvfp4Group && kChains > 1) {
#pragma unroll
      for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int n = 0; n < kEights; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[t][n][i] += partial[t][kChains - 1][n][i];
    }
  }

  // To row `row`, output `output` of a part of the block's sums.
  __device__ __forceinline__ void store(float* to, int stride, const int (&groups)[TILES]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
      for (int n = 0; n < kEights; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          to[(n * 8 + lane % 4 * 2 + i % 2) * stride + groups[t] * 16 + i / 2 * 8 + lane / 4] =
              sums[t][n][i];
  }
};

// How the consumer warps of a block share its work: WAYS of them (with wgmma: of warp groups) have
// the same outputs and take turns at stages, and each has kTiles groups of 16 outputs.
template <int COLUMNS, int WAYS>
struct Division {
  static constexpr bool kWide = COLUMNS > 32;  // with wgmma
  static constexpr int kTiles = 2;
  static constexpr int kTeams = kWarps / WAYS;  // of warps with the same outputs
  static constexpr int kOutputs = kWide ? (WAYS == 2 ? 64 : 256) : kTeams * kTiles * 16;
  // The warps that read a stage.
  static __device__ int readers(int groups) {
    if (kWide) return kWarps / WAYS;
    return (groups + kTiles - 1) / kTiles;
  }
};

template <int GROUP, int COLUMNS, int WAYS>
__device__ void multiply(const Params& p, const Shared<COLUMNS>& shared, const BlockWork& work) {
  using D = Division<COLUMNS, WAYS>;
  const int warp = static_cast<int>(threadIdx.x) / 32, way = warp / D::kTeams;
  const int team = warp % D::kTeams;
  Multiplier<GROUP, COLUMNS, D::kTiles> m;
  int groups[D::kTiles];  // those beyond the block's repeat its last one
#pragma unroll
  for (int t = 0; t < D::kTiles; ++t) groups[t] = min(team * D::kTiles + t, p.output.groups - 1);
  const bool works = team * D::kTiles < p.output.groups;
  int slot = way;
  uint32_t parity = 0;
  for (int k_tile = work.begin + way; works && k_tile < work.end; k_tile += WAYS) {
    barrier_wait(shared.barriers->full[slot], parity);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) m.add(shared, p, slot, half, groups);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.barriers->empty[slot]);
    slot += WAYS;
    if (slot >= p.num_stages) slot -= p.num_stages, parity ^= 1;
  }
  m.end();
  named_barrier_sync(1, kMathThreads);  // no warp reads the stages any more
  constexpr int kStride = sums_stride(D::kOutputs);
  if (works) m.store(shared.sums() + way * COLUMNS * kStride, kStride, groups);
}

// --- more than 32 rows: wgmma, with the weights as its 64 rows, from registers ---

// The stages that a warp group reads, `step` apart.
struct Stages {
  Barriers* barriers;
  int num_stages, step;
  int slot;
  uint32_t parity = 0;

  __device__ __forceinline__ void wait() const { barrier_wait(barriers->full[slot], parity); }
  __device__ __forceinline__ void advance() {
    slot += step;
    if (slot >= num_stages) slot -= num_stages, parity ^= 1;
  }
  __device__ __forceinline__ void release(int read) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barriers->empty[read]);
  }
};

// What a warp group computes: TILES times 64 outputs of 64 rows of x. Codes of the next step are
// widened while wgmma multiplies those of this one.
template <int GROUP, int TILES>
struct WideMultiplier {
  static constexpr int kColumns = 64;
  static constexpr bool kNvfp4 = GROUP == kNvfp4Group;
  static constexpr int kInputs = kNvfp4 || GROUP > 64 ? 64 : GROUP;  // of a step
  static constexpr int kSteps = kInt4Inputs / 2 / kInputs;
  static constexpr int kFragments = kInputs / 16;
  using Sums = float[kColumns / 2];
  using Weights =
      std::conditional_t<kNvfp4, Nvfp4Tile<kColumns>, Tile<kNvfp4 ? 32 : GROUP, kColumns>>;

  const Params& p;
  const Shared<kColumns>& shared;
  Weights weights;
  uint32_t fragments[2][kFragments][4];
  Sums sums[TILES];
  Sums partial;  // of a group; NVFP4 has none

  __device__ WideMultiplier(const Params& params, const Shared<kColumns>& memory)
      : p(params), shared(memory) {
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sums[t][i] = 0;
  }

  // Groups beyond the block's repeat its last one, and their sums are not read.
  __device__ __forceinline__ void load(int slot, int half, int tile) {
    const int group = min(tile * 4 + static_cast<int>(threadIdx.x) / 32 % 4, p.output.groups - 1);
    weights.load(shared, slot, group, half, p);
    widen<0>();
  }
  template <int STEP>
  __device__ __forceinline__ void widen() {
    if constexpr (kNvfp4)
      return widen_nvfp4<STEP>();
    else
      widen_int4<STEP>();
  }
  template <int STEP>
  __device__ __forceinline__ void widen_nvfp4() {
#pragma unroll
    for (int i = 0; i < kFragments; i += 2) {
      const int word = (STEP * kFragments + i) / 2;
      weights.template fragment<0>(word, fragments[STEP % 2][i]);
      weights.template fragment<1>(word, fragments[STEP % 2][i + 1]);
    }
  }
  template <int STEP>
  __device__ __forceinline__ void widen_int4() {
    constexpr int kGroup = STEP * kInputs / GROUP;
    const __nv_bfloat162 low_zero = Weights::zero(weights.low_zeros, kGroup);
    const __nv_bfloat162 high_zero = Weights::zero(weights.high_zeros, kGroup);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      constexpr int kFirst = STEP * kFragments;
      weights.fragment((kFirst + i) / 2, (kFirst + i) % 2, low_zero, high_zero,
                       fragments[STEP % 2][i]);
    }
  }
  // One step of the loaded weights; `meanwhile` prepares the next one's fragments.
  template <int TILE, int STEP, typename Meanwhile>
  __device__ __forceinline__ void step(int slot, int half, const Meanwhile& meanwhile) {
    constexpr int kGroup = STEP * kInputs / GROUP;
    constexpr bool kFirst = !kNvfp4 && STEP * kInputs % GROUP == 0;
    constexpr bool kLast = !kNvfp4 && (STEP + 1) * kInputs % GROUP == 0;
    Sums& to = kNvfp4 ? sums[TILE] : partial;
    float scales[2];
    if constexpr (kLast) {
      scales[0] = Weights::scale(weights.low, kGroup);
      scales[1] = Weights::scale(weights.high, kGroup);
    }
    pin(to);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const int at = STEP * kFragments + i;
      const char* x = shared.x(slot) + (half * 2 + at / 4) * kColumns * 128 + at % 4 * 32;
      wgmma_weights(to, fragments[STEP % 2][i], matrix_descriptor(x, 16), !kFirst || i > 0);
    }
    wgmma_commit();
    meanwhile();
    wgmma_wait<0>();
    pin(to);
    if constexpr (kLast) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sums[TILE][i] += scales[i / 2 % 2] * partial[i];
    }
  }
  // Multiplies the loaded weights; `next` loads others.
  template <int TILE, typename Next>
  __device__ __forceinline__ void multiply(int slot, int half, const Next& next) {
    step<TILE, 0>(slot, half, [&] { widen<1>(); });
    if constexpr (kSteps == 4) {
      step<TILE, 1>(slot, half, [&] { widen<2>(); });
      step<TILE, 2>(slot, half, [&] { widen<3>(); });
    }
    step<TILE, kSteps - 1>(slot, half, next);
  }

  // Walks `count` stages for one or TWO tiles of outputs. Behind the last it loads that again,
  // which needs no branch.
  template <bool TWO>
  __device__ __forceinline__ void walk(Stages stages, int count, int first_tile, int second_tile) {
    if (count <= 0) return;
    stages.wait();
    load(stages.slot, 0, first_tile);
    for (int i = 0; i < count; ++i) {
      const int slot = stages.slot;
      if (i + 1 < count) stages.advance();
      const auto next_stage = [&] {
        stages.wait();
        load(stages.slot, 0, first_tile);
      };
      if constexpr (TWO) {
        multiply<0>(slot, 0, [&] { load(slot, 0, second_tile); });
        multiply<1>(slot, 0, [&] { load(slot, 1, first_tile); });
        multiply<0>(slot, 1, [&] { load(slot, 1, second_tile); });
        multiply<1>(slot, 1, next_stage);
      } else {
        multiply<0>(slot, 0, [&] { load(slot, 1, first_tile); });
        multiply<0>(slot, 1, next_stage);
      }
      stages.release(slot);
    }
  }

  __device__ __forceinline__ void store(float* to, int stride, int tile, const Sums& from) const {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i)
      to[(i / 4 * 8 + lane % 4 * 2 + i % 2) * stride + tile * 64 + warp * 16 + i / 2 % 2 * 8 +
         lane / 4] = from[i];
  }
};

// Two ways: up to 64 outputs, the warp groups take turns at stages. One: each has all stages and
// every other tile of 64 outputs.
template <int GROUP, int WAYS>
__device__ void multiply_wide(const Params& p, const Shared<64>& shared, const BlockWork& work) {
  constexpr int kTiles = WAYS == 2 ? 1 : 2;
  const int warp_group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  WideMultiplier<GROUP, kTiles> m(p, shared);
  const int inputs = work.end - work.begin;
  if constexpr (WAYS == 2)
    m.template walk<false>({shared.barriers, p.num_stages, 2, warp_group},
                           (inputs - warp_group + 1) / 2, 0, 0);
  else if ((warp_group + 2) * 4 < p.output.groups)
    m.template walk<true>({shared.barriers, p.num_stages, 1, 0}, inputs, warp_group,
                          warp_group + 2);
  else
    m.template walk<false>({shared.barriers, p.num_stages, 1, 0}, inputs, warp_group, 0);
  named_barrier_sync(1, kMathThreads);  // no warp reads the stages any more
  constexpr int kStride = sums_stride(Division<64, WAYS>::kOutputs);
  float* sums = shared.sums() + (WAYS == 2 ? warp_group * 64 * kStride : 0);
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    m.store(sums, kStride, WAYS == 2 ? 0 : warp_group + 2 * t, m.sums[t]);
}

template <int GROUP, int COLUMNS, int WAYS>
__global__ void __launch_bounds__(kThreads, COLUMNS <= 16 ? 2 : 1)
    gemm_int4_kernel(const __grid_constant__ CUtensorMap x_map, const Params p) {
  extern __shared__ char raw[];
  const Shared<COLUMNS> shared(raw, p);
  const BlockWork work(p.k_tiles, p.output.splits);
  const Fetcher<COLUMNS> fetcher{p, shared, work, x_map};
  using D = Division<COLUMNS, WAYS>;
  const bool fetches = threadIdx.x == kMathThreads;
  release_next();
  if (fetches) {
    for (int i = 0; i < p.num_stages; ++i) {
      barrier_init(shared.barriers->full[i], 1);
      barrier_init(shared.barriers->empty[i], D::readers(p.output.groups));
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
    if constexpr (D::kWide)
      multiply_wide<GROUP, WAYS>(p, shared, work);
    else
      multiply<GROUP, COLUMNS, WAYS>(p, shared, work);
  }
  __syncwarp();
  if (p.output.splits > 1)
    cluster_sync();
  else
    __syncthreads();
  if (threadIdx.x < kMathThreads) {
    SmallBatchOutput output = p.output;  // of this block's rows
    const int first = static_cast<int>(blockIdx.y) * COLUMNS;
    const int64_t skipped = first * output.y_stride;
    output.rows = min(COLUMNS, output.rows - first);
    output.y = static_cast<char*>(output.y) + skipped * (output.float_out ? 4 : 2);
    if (output.residual != nullptr) output.residual += skipped;
    finish<GROUP == kNvfp4Group, WAYS, COLUMNS, D::kOutputs>(output, work, shared.sums());
  }
  __syncwarp();
  if (p.output.splits > 1) cluster_sync();  // no block reads this block's sums any more
}

// --- on the host ---

int columns_for(int rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }
int row_blocks(int rows) { return (rows + kMostColumns - 1) / kMostColumns; }
constexpr int kMostGroups = 16;  // of 16 outputs in a block
int ways_for(int columns, const Int4GemmConfig& config) {
  if (columns > 32) return config.groups > 4 ? 1 : 2;
  return config.groups > 8 ? 1 : config.groups > 4 ? 2 : 4;
}
size_t sums_bytes_for(int columns, int ways) {
  return sums_bytes(ways, columns, columns > 32 && ways == 2 ? 64 : kMostGroups / ways * 16);
}

size_t stage_bytes(const LinearArgs& args, const Int4GemmConfig& config) {
  return x_bytes(columns_for(args.rows)) +
         static_cast<size_t>(config.groups * 2 * args.int4.record_bytes());
}
// The number of stages that fit; 0 where too few do.
int num_stages(const LinearArgs& args, const Int4GemmConfig& config, const DeviceTraits& traits) {
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  const size_t room = config.half_shared ? (most + kReservedShared) / 2 - kReservedShared : most;
  const size_t fixed = 1024 + sizeof(Barriers), stage = stage_bytes(args, config);
  const int fit = std::min(static_cast<int>((room - fixed) / stage), kMaxStages);
  const int columns = columns_for(args.rows), ways = ways_for(columns, config);
  if (fit < std::max(kMinStages, ways + 1) ||
      static_cast<size_t>(fit) * stage < sums_bytes_for(columns, ways))
    return 0;
  return fit;
}

int num_groups(const LinearArgs& args) { return args.out_features / (args.silu_mul ? 8 : 16); }
int num_tiles(const LinearArgs& args, const Int4GemmConfig& config) {
  return (num_groups(args) + config.groups - 1) / config.groups;
}
int num_k_tiles(const LinearArgs& args) {
  return (args.in_features + kInt4Inputs - 1) / kInt4Inputs;
}

template <int GROUP, int COLUMNS, int WAYS>
Status start(const CUtensorMap& x, const Params& params, dim3 grid, size_t stage,
             const LaunchOptions& launch) {
  const size_t bytes = 1024 + sizeof(Barriers) + static_cast<size_t>(params.num_stages) * stage;
  auto* kernel = gemm_int4_kernel<GROUP, COLUMNS, WAYS>;
  ESP_RETURN_IF_ERROR(allow_shared("linear", kernel, bytes));
  return launch_clusters("linear", kernel, grid, kThreads, params.output.splits, bytes, launch, x,
                         params);
}

template <int GROUP>
Status start_group(int columns, int ways, const CUtensorMap& x, const Params& params, dim3 grid,
                   size_t stage, const LaunchOptions& launch) {
  const auto start_columns = [&]<int COLUMNS>() {
    if (ways == 1) return start<GROUP, COLUMNS, 1>(x, params, grid, stage, launch);
    if (ways == 2) return start<GROUP, COLUMNS, 2>(x, params, grid, stage, launch);
    if constexpr (COLUMNS > 32)
      return error(StatusCode::kInternal, "linear: {} ways", ways);
    else
      return start<GROUP, COLUMNS, 4>(x, params, grid, stage, launch);
  };
  switch (columns) {
    case 8:
      return start_columns.template operator()<8>();
    case 16:
      return start_columns.template operator()<16>();
    case 32:
      return start_columns.template operator()<32>();
    default:
      return start_columns.template operator()<64>();
  }
}

}  // namespace

std::optional<Int4GemmConfig> int4_gemm_config(const LinearArgs& args, const DeviceTraits& traits) {
  // As many groups in a block as make all blocks fill the multiprocessors evenly, as few times over
  // as possible. Of up to 16 rows two blocks share a multiprocessor, whose warps hide each other's
  // latencies. Blocks of one or two groups would fetch too much of x: they have four, or two of
  // them have twice as many groups and half of the inputs where these are long.
  const int all = num_groups(args) * row_blocks(args.rows);
  const auto config_of = [&](int blocks_at_once, int most) {
    const int waves = (all + most * blocks_at_once - 1) / (most * blocks_at_once);
    return (all + waves * blocks_at_once - 1) / (waves * blocks_at_once);
  };
  const int blocks = traits.num_multiprocessors;
  const bool few = columns_for(args.rows) <= 16;
  Int4GemmConfig config{.groups = config_of(blocks, kMostGroups)};
  if (few && config.groups > 2) {
    config = {.groups = config_of(2 * blocks, kMostGroups / 2), .half_shared = true};
  } else if (config.groups <= 2 && num_k_tiles(args) >= (few ? 32 : 4)) {
    config = {.groups = config_of(blocks / 2, kMostGroups), .splits = 2};
  } else if (config.groups <= 2) {
    config.groups = 4;
  }
  config.groups = std::clamp(config.groups, 1, kMostGroups);
  if (!gemm_int4_supports(args, config, traits)) return {};
  return config;
}

bool gemm_int4_supports(const LinearArgs& args, const Int4GemmConfig& config,
                        const DeviceTraits& traits) {
  const int64_t of_16_bytes = args.out_type == DType::kFloat32 ? 4 : 8;
  return traits.compute_capability == 90 && tensor_map_encoder() != nullptr &&
         args.int4.group != 0 && args.type == DType::kBFloat16 && args.norm_weight == nullptr &&
         args.rows > 0 && args.rows <= kInt4GemmRows && config.groups >= 1 &&
         config.groups <= kMostGroups && (config.splits == 1 || config.splits == 2) &&
         num_k_tiles(args) >= config.splits && num_stages(args, config, traits) > 0 &&
         args.in_features % kBoxInputs == 0 && args.out_features % (args.silu_mul ? 8 : 16) == 0 &&
         args.x_stride % 8 == 0 && args.y_stride % of_16_bytes == 0 && aligned(args.x, 16) &&
         aligned(args.weights, 16) && aligned(args.y, 16) && aligned(args.bias, 16) &&
         aligned(args.residual, 16);
}

Status gemm_int4(const LinearArgs& args, const Int4GemmConfig& config, const DeviceTraits& traits,
                 const LaunchOptions& launch) {
  const int columns = columns_for(args.rows);
  CUtensorMap x{};
  ESP_RETURN_IF_ERROR(
      encode_tensor_map<3>("linear", x, args.x,
                           {kBoxInputs, static_cast<uint64_t>(args.rows),
                            static_cast<uint64_t>(args.in_features / kBoxInputs)},
                           {static_cast<uint64_t>(args.x_stride) * 2, kBoxInputs * 2},
                           {kBoxInputs, static_cast<uint32_t>(columns), kBoxes}));
  const int64_t outputs = int64_t{args.out_features} * (args.silu_mul ? 2 : 1);
  const auto* weights = static_cast<const char*>(args.weights);
  const char* row_scales =
      args.int4.nvfp4() ? weights + nvfp4_row_scales_at(outputs, args.in_features) : nullptr;
  const Params params{.output = {.y = args.y,
                                 .y_stride = args.y_stride,
                                 .bias = static_cast<const bf16*>(args.bias),
                                 .residual = static_cast<const bf16*>(args.residual),
                                 .x_scales = nullptr,
                                 .weight_scales = reinterpret_cast<const float*>(row_scales),
                                 .rows = args.rows,
                                 .out = args.out_features,
                                 .splits = config.splits,
                                 .groups = config.groups,
                                 .silu = args.silu_mul,
                                 .float_out = args.out_type == DType::kFloat32},
                      .weights = weights,
                      .eights = static_cast<int>(outputs / kInt4Rows),
                      .k_tiles = num_k_tiles(args),
                      .num_stages = num_stages(args, config, traits),
                      .record_bytes = args.int4.record_bytes(),
                      .zeros = args.int4.zeros};
  const dim3 grid(static_cast<unsigned>(num_tiles(args, config) * config.splits),
                  static_cast<unsigned>(row_blocks(args.rows)));
  const int ways = ways_for(columns, config);
  const size_t stage = stage_bytes(args, config);
  if (args.int4.nvfp4())
    return start_group<kNvfp4Group>(columns, ways, x, params, grid, stage, launch);
  return args.int4.group == 32 ? start_group<32>(columns, ways, x, params, grid, stage, launch)
                               : start_group<128>(columns, ways, x, params, grid, stage, launch);
}

}  // namespace espalier::kernels::cuda
