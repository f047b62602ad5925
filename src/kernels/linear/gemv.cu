// GEMV for 1 and 2 rows on Hopper: y = x W^T as a stream of the weights, with RMSNorm in front and
// bias, SiLU or residual behind.
// x [rows, in], W [out, in] bfloat16, y [rows, out] bfloat16 or float32; sums in float32. A row's
// result depends on that row and the weights alone.
// Parallel: one block on each multiprocessor has a range of outputs, taken by pairs (adjacent
// outputs, or one of gate and the same of up with SiLU). Eight warps multiply with plain FMAs; x
// stays in shared memory. After eight pairs the sums are added across the warp by add_by_halves()
// and across the warps in shared memory, in two buffers by turns: one barrier for 16 outputs.
// Pipeline: a ninth warp issues TMA bulk copies of tiles of a pair, up to 4,096 inputs of both
// rows, as many stages ahead as shared memory holds (64 KiB and more in flight a multiprocessor),
// from before wait_for_previous(): no kernel writes weights.
// Roof: memory, 2 x out x in bytes. The 129 GEMVs of a Llama-3.1-8B step take 3.62 ms at one row on
// an H200 that reads 4.65 TB/s, 89 to 92 % of the read rate. History: docs/notes/gemv.md.
#include <algorithm>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/linear/gemv.h"
#include "kernels/linear/warp_sums.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kWarps = 8;  // consumers
constexpr int kMathThreads = kWarps * 32;
constexpr int kThreads = kMathThreads + 32;
constexpr int kPairs = 8;                      // pairs whose sums are added up together
constexpr int kMaxTileInputs = 4096;           // of a tile, of each of its two rows
constexpr int kMaxStages = 8, kMinStages = 4;  // ahead

struct Params {
  const bf16* x;
  int64_t x_stride;
  const bf16* weights;
  void* y;
  int64_t y_stride;
  const bf16* bias;
  const bf16* residual;
  const bf16* norm_weight;
  float norm_epsilon;
  int rows, in, out;
  int num_pairs;
  int tile_inputs;  // a multiple of 8
  int num_stages;
  bool silu, float_out;
};

struct Barriers {
  Barrier full[kMaxStages], empty[kMaxStages];
};

// Shared memory: stages [num_stages][2][tile_inputs], sums [2][warp][16 outputs x ROWS], x
// [ROWS][in], the norm's weight [in], barriers.
template <int ROWS>
struct Shared {
  static constexpr int kSums = 2 * kPairs * ROWS;  // of a warp
  bf16* stages;
  float* sums;
  bf16* x;
  bf16* norm_weight;
  Barriers* barriers;

  static size_t fixed_bytes(int in, bool norm) {
    return size_t{2} * kWarps * kSums * 4 +
           static_cast<size_t>(ROWS + (norm ? 1 : 0)) * static_cast<size_t>(in) * 2 +
           sizeof(Barriers);
  }
  __device__ Shared(char* at, const Params& p) {
    stages = reinterpret_cast<bf16*>(at);
    at += p.num_stages * p.tile_inputs * 4;
    sums = reinterpret_cast<float*>(at);
    at += 2 * kWarps * kSums * 4;
    x = reinterpret_cast<bf16*>(at);
    at += ROWS * p.in * 2;
    norm_weight = reinterpret_cast<bf16*>(at);
    if (p.norm_weight != nullptr) at += p.in * 2;
    barriers = reinterpret_cast<Barriers*>(at);
  }
};

// The range of pairs of this block.
struct Range {
  int begin, end;
  __device__ explicit Range(const Params& p)
      : begin(static_cast<int>(int64_t{p.num_pairs} * blockIdx.x / gridDim.x)),
        end(static_cast<int>(int64_t{p.num_pairs} * (blockIdx.x + 1) / gridDim.x)) {}
};

// Lane 0 of the producer warp: issues copies of all weights of the block.
template <int ROWS>
__device__ void fetch_weights(const Params& p, const Shared<ROWS>& shared, const Range& range) {
  int slot = 0;
  uint32_t parity = 1;  // a fresh barrier's phase before the first counts as complete
  for (int pair = range.begin; pair < range.end; ++pair) {
    const int first = p.silu ? pair : 2 * pair, second = p.silu ? p.out + pair : first + 1;
    const bf16* from[2] = {p.weights + static_cast<int64_t>(first) * p.in,
                           p.weights + static_cast<int64_t>(second) * p.in};
    for (int begin = 0; begin < p.in; begin += p.tile_inputs) {
      const int inputs = min(p.tile_inputs, p.in - begin);
      const auto bytes = static_cast<uint32_t>(inputs) * 2;
      Barrier& full = shared.barriers->full[slot];
      bf16* to = shared.stages + slot * 2 * p.tile_inputs;
      barrier_wait(shared.barriers->empty[slot], parity);
      barrier_expect(full, 2 * bytes);
      if (!p.silu && inputs == p.in) {  // adjacent rows in one
        bulk_copy(to, from[0], 2 * bytes, full);
      } else {
        bulk_copy(to, from[0] + begin, bytes, full);
        bulk_copy(to + inputs, from[1] + begin, bytes, full);
      }
      if (++slot == p.num_stages) slot = 0, parity ^= 1;
    }
  }
}

// Loads x into shared memory, as it is or normalised as rms_norm() does it (rounded to bfloat16);
// zeros for rows that do not exist.
template <int ROWS>
__device__ void load_rows(const Params& p, const Shared<ROWS>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int eights = p.in / 8;
  const bool norm = p.norm_weight != nullptr;
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    float sum = 0;
    for (int c = threadIdx.x; c < eights; c += kMathThreads) {
      uint4 raw{};
      if (row < p.rows) raw = *reinterpret_cast<const uint4*>(p.x + row * p.x_stride + c * 8);
      *reinterpret_cast<uint4*>(shared.x + row * p.in + c * 8) = raw;
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (uint32_t word : words)
        sum += low_half(word) * low_half(word) + high_half(word) * high_half(word);
    }
    if (!norm) continue;
    sum = warp_sum(sum);
    if (lane == 0) shared.sums[row * kWarps + warp] = sum;
  }
  named_barrier_sync(1, kMathThreads);
  if (!norm) return;
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    const float sum = warp_sum(lane < kWarps ? shared.sums[row * kWarps + lane] : 0.0f);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(p.in) + p.norm_epsilon);
    for (int c = threadIdx.x; c < eights; c += kMathThreads) {
      float value[8], weight[8];
      load8(shared.x + row * p.in + c * 8, value);
      load8(shared.norm_weight + c * 8, weight);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = value[i] * scale * weight[i];
      store8(shared.x + row * p.in + c * 8, value);
    }
  }
  named_barrier_sync(1, kMathThreads);
}

// One thread's share of a tile, for both rows of the pair.
template <int ROWS>
__device__ __forceinline__ void multiply_tile(const Params& p, const bf16* tile, const bf16* x,
                                              int inputs, float* first, float* second) {
  for (int k = static_cast<int>(threadIdx.x) * 8; k < inputs; k += kMathThreads * 8) {
    float a[8], b[8];
    load8(tile + k, a);
    load8(tile + inputs + k, b);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      float value[8];
      load8(x + row * p.in + k, value);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        first[row] += a[i] * value[i];
        second[row] += b[i] * value[i];
      }
    }
  }
}

__device__ __forceinline__ void write_out(const Params& p, int row, int out, float value) {
  const int64_t at = row * p.y_stride + out;
  if (p.residual != nullptr) value += __bfloat162float(p.residual[at]);
  if (p.float_out)
    static_cast<float*>(p.y)[at] = value;
  else
    static_cast<bf16*>(p.y)[at] = __float2bfloat16_rn(value);
}

// Turns the sums of `pairs` pairs, [warp][pair][2][ROWS], into outputs. `round` moves this work
// from warp to warp.
template <int ROWS>
__device__ __forceinline__ void finish_pairs(const Params& p, const float* sums, int first_pair,
                                             int pairs, int round) {
  constexpr int kSums = Shared<ROWS>::kSums;
  const int thread = (static_cast<int>(threadIdx.x) + round * 32) % kMathThreads;
  const int each = p.silu ? 1 : 2;  // outputs of a pair
  if (thread >= pairs * each * ROWS) return;
  const int row = thread % ROWS, output = thread / ROWS;
  const int out = first_pair * each + output;
  if (row >= p.rows || out >= p.out) return;
  const int at = p.silu ? output * 2 * ROWS + row : thread;
  float value = 0, up = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    value += sums[w * kSums + at];
    if (p.silu) up += sums[w * kSums + at + ROWS];
  }
  if (p.bias != nullptr) {
    value += __bfloat162float(p.bias[out]);
    if (p.silu) up += __bfloat162float(p.bias[p.out + out]);
  }
  write_out(p, row, out, p.silu ? silu(value) * up : value);
}

template <int ROWS>
__device__ void multiply(const Params& p, const Shared<ROWS>& shared, const Range& range) {
  constexpr int kSums = Shared<ROWS>::kSums;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int slot = 0, round = 0;
  uint32_t parity = 0;
  for (int pair = range.begin; pair < range.end; pair += kPairs, ++round) {
    float acc[kSums] = {};
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (pair + i >= range.end) break;
      for (int begin = 0; begin < p.in; begin += p.tile_inputs) {
        barrier_wait(shared.barriers->full[slot], parity);
        multiply_tile<ROWS>(p, shared.stages + slot * 2 * p.tile_inputs, shared.x + begin,
                            min(p.tile_inputs, p.in - begin), acc + 2 * i * ROWS,
                            acc + (2 * i + 1) * ROWS);
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.barriers->empty[slot]);
        if (++slot == p.num_stages) slot = 0, parity ^= 1;
      }
    }
    add_by_halves(acc);
    float* sums = shared.sums + round % 2 * kWarps * kSums;
    if (ROWS == 2 || lane % 2 == 0) sums[warp * kSums + lane * ROWS / 2] = acc[0];
    named_barrier_sync(1, kMathThreads);
    finish_pairs<ROWS>(p, sums, pair, min(kPairs, range.end - pair), round);
  }
}

template <int ROWS>
__global__ void __launch_bounds__(kThreads, 2) gemv_kernel(const Params p) {
  extern __shared__ __align__(128) char raw[];
  const Shared<ROWS> shared(raw, p);
  const Range range(p);
  release_next();
  if (threadIdx.x == kMathThreads) {
    for (int i = 0; i < p.num_stages; ++i) {
      barrier_init(shared.barriers->full[i], 1);
      barrier_init(shared.barriers->empty[i], kWarps);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x >= kMathThreads) {
    if (threadIdx.x == kMathThreads) fetch_weights<ROWS>(p, shared, range);
  } else {
    for (int c = threadIdx.x; p.norm_weight != nullptr && c < p.in / 8; c += kMathThreads)
      *reinterpret_cast<uint4*>(shared.norm_weight + c * 8) =
          *reinterpret_cast<const uint4*>(p.norm_weight + c * 8);  // read by this thread alone
    wait_for_previous();
    load_rows<ROWS>(p, shared);
    multiply<ROWS>(p, shared, range);
  }
}

// The pipeline's shape; num_stages is 0 where it does not fit.
struct Plan {
  int tile_inputs = 0, num_stages = 0;
  size_t bytes = 0;
};

Plan plan_for(const LinearArgs& args, const DeviceTraits& traits) {
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  const int stages = (args.in_features + kMaxTileInputs - 1) / kMaxTileInputs;
  Plan plan{.tile_inputs = ((args.in_features + stages - 1) / stages + 7) / 8 * 8};
  const auto stage_bytes = static_cast<size_t>(plan.tile_inputs) * 4;
  const bool norm = args.norm_weight != nullptr;
  const size_t fixed = args.rows == 1 ? Shared<1>::fixed_bytes(args.in_features, norm)
                                      : Shared<2>::fixed_bytes(args.in_features, norm);
  // It is fastest with room for the next kernel's block on the same multiprocessor.
  for (const size_t room : {most / 2 - 1024, most}) {
    if (fixed + kMinStages * stage_bytes > room) continue;
    plan.num_stages = std::min(static_cast<int>((room - fixed) / stage_bytes), kMaxStages);
    plan.bytes = fixed + static_cast<size_t>(plan.num_stages) * stage_bytes;
    return plan;
  }
  return {};
}

template <int ROWS>
Status start(const Params& params, int blocks, size_t bytes, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(allow_shared("linear", gemv_kernel<ROWS>, bytes));
  return launch_kernel("linear", gemv_kernel<ROWS>, dim3(static_cast<unsigned>(blocks)), kThreads,
                       bytes, launch, params);
}

}  // namespace

bool gemv_supports(const LinearArgs& args, const DeviceTraits& traits) {
  return traits.compute_capability >= 90 && args.type == DType::kBFloat16 &&
         args.rows <= kSmallRows && args.in_features % 8 == 0 && args.out_features % 8 == 0 &&
         args.x_stride % 8 == 0 && aligned(args.x, 16) && aligned(args.weights, 16) &&
         (args.norm_weight == nullptr || aligned(args.norm_weight, 16)) &&
         plan_for(args, traits).num_stages > 0;
}

Status gemv(const LinearArgs& args, const DeviceTraits& traits, const LaunchOptions& launch) {
  const Plan plan = plan_for(args, traits);
  const Params params{.x = static_cast<const bf16*>(args.x),
                      .x_stride = args.x_stride,
                      .weights = static_cast<const bf16*>(args.weights),
                      .y = args.y,
                      .y_stride = args.y_stride,
                      .bias = static_cast<const bf16*>(args.bias),
                      .residual = static_cast<const bf16*>(args.residual),
                      .norm_weight = static_cast<const bf16*>(args.norm_weight),
                      .norm_epsilon = args.norm_epsilon,
                      .rows = args.rows,
                      .in = args.in_features,
                      .out = args.out_features,
                      .num_pairs = args.silu_mul ? args.out_features : args.out_features / 2,
                      .tile_inputs = plan.tile_inputs,
                      .num_stages = plan.num_stages,
                      .silu = args.silu_mul,
                      .float_out = args.out_type == DType::kFloat32};
  const int blocks = std::min(params.num_pairs, traits.num_multiprocessors);
  if (args.rows == 1) return start<1>(params, blocks, plan.bytes, launch);
  // At two rows a second block on the same multiprocessor only slows this one down, so PDL is off.
  return start<2>(params, blocks, plan.bytes, {.stream = launch.stream});
}

}  // namespace espalier::kernels::cuda
