// score and route: router logits of every expert, and the top-k experts of each row.
// score: x [rows, dim], weights [outputs, dim] float32. Rows in bfloat16 by tensor cores: a weight
// is the exact sum of three bfloat16, so three multiplications with float32 sums lose nothing. A
// block has 16 rows by 8 or 32 outputs or 64 by 64, its eight warps an eighth of the inputs each,
// added up in one order: a row's bits do not depend on the number of rows. Roof: L2, at 8,192 rows
// of 2,048 and 128 outputs 200 MB. Rows in float32: a warp has one output and eight rows. route:
// one warp a row, its scores in shared memory, top_k times the largest (router_topk.cuh).
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/router/cuda.h"
#include "kernels/router/router_topk.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kScoreWarps = 8, kScoreRows = 8;
constexpr int kRouteWarps = 4;

// The tile of a block: 16 rows by 8 outputs, so many times.
template <int ROW_TILES, int OUTPUT_TILES>
struct ScoreShape {
  static constexpr int kScoreRows = ROW_TILES * 16, kOutputs = OUTPUT_TILES * 8;
  static constexpr int kSums = kScoreRows * kOutputs;
  static constexpr size_t kSharedBytes = sizeof(float) * kScoreWarps * kSums;
};

// Eight adjacent float32 as the exact sum of three times eight bfloat16.
struct SplitWeights {
  uint32_t high[4], middle[4], low[4];

  __device__ __forceinline__ explicit SplitWeights(const float (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float a = w[2 * i], b = w[2 * i + 1];
      high[i] = pack_bf16(a, b);
      a -= low_half(high[i]), b -= high_half(high[i]);
      middle[i] = pack_bf16(a, b);
      low[i] = pack_bf16(a - low_half(middle[i]), b - high_half(middle[i]));
    }
  }
};

// A lane loads eight adjacent inputs of its rows and outputs; inputs 0 to 3 and 4 to 7 of all four
// lanes are the sixteen of an mma, in the same order on both sides.
template <int ROW_TILES, int OUTPUT_TILES>
__global__ void __launch_bounds__(kScoreWarps * 32) score_by_mma_kernel(ScoreArgs args) {
  using Shape = ScoreShape<ROW_TILES, OUTPUT_TILES>;
  extern __shared__ float partial[];  // [kScoreWarps][kScoreRows][kOutputs]
  release_next();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first_row = int64_t{blockIdx.x} * Shape::kScoreRows;
  const int rows = static_cast<int>(min(int64_t{Shape::kScoreRows}, args.rows - first_row));
  const int first_output = static_cast<int>(blockIdx.y) * Shape::kOutputs;
  const int outputs = min(Shape::kOutputs, args.outputs - first_output);
  const bf16* x = static_cast<const bf16*>(args.x) + first_row * args.x_stride;
  const float* weights = args.weights + int64_t{first_output} * args.dim;
  const int units = (args.dim + 31) / 32;
  constexpr int kUnroll = ROW_TILES == 1 ? 4 : 1;  // few rows wait for memory
  float sums[ROW_TILES][OUTPUT_TILES][4] = {};
#pragma unroll kUnroll
  for (int unit = units * warp / kScoreWarps; unit < units * (warp + 1) / kScoreWarps; ++unit) {
    const int at = unit * 32 + lane % 4 * 8;
    uint4 rows_of[ROW_TILES][2];
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane / 4;
        rows_of[m][half] = row < rows && at < args.dim
                               ? *reinterpret_cast<const uint4*>(x + row * args.x_stride + at)
                               : uint4{};
      }
#pragma unroll
    for (int n = 0; n < OUTPUT_TILES; ++n) {
      const int output = n * 8 + lane / 4;
      float w[8] = {};
      if (output < outputs && at < args.dim) load8(weights + int64_t{output} * args.dim + at, w);
      const SplitWeights split(w);
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) {
        const uint4 &upper = rows_of[m][0], &lower = rows_of[m][1];
        const uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y};
        const uint32_t second[4] = {upper.z, lower.z, upper.w, lower.w};
        mma(sums[m][n], first, split.low[0], split.low[1]);
        mma(sums[m][n], second, split.low[2], split.low[3]);
        mma(sums[m][n], first, split.middle[0], split.middle[1]);
        mma(sums[m][n], second, split.middle[2], split.middle[3]);
        mma(sums[m][n], first, split.high[0], split.high[1]);
        mma(sums[m][n], second, split.high[2], split.high[3]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
    for (int n = 0; n < OUTPUT_TILES; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp * Shape::kScoreRows + m * 16 + half * 8 + lane / 4;
        *reinterpret_cast<float2*>(partial + row * Shape::kOutputs + n * 8 + lane % 4 * 2) = {
            sums[m][n][half * 2], sums[m][n][half * 2 + 1]};
      }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * Shape::kOutputs; i += kScoreWarps * 32) {
    const int output = i % Shape::kOutputs;
    if (output >= outputs) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kScoreWarps; ++w) sum += partial[w * Shape::kSums + i];
    if (args.bias != nullptr) sum += args.bias[first_output + output];
    args.y[(first_row + i / Shape::kOutputs) * args.outputs + first_output + output] = sum;
  }
}

__global__ void __launch_bounds__(kScoreWarps * 32) score_kernel(ScoreArgs args) {
  release_next();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int output = static_cast<int>(blockIdx.y) * kScoreWarps + warp;
  const int64_t first = int64_t{blockIdx.x} * kScoreRows;
  if (output >= args.outputs) return;
  wait_for_previous();
  const int rows = static_cast<int>(min(int64_t{kScoreRows}, args.rows - first));
  const float* x = static_cast<const float*>(args.x) + first * args.x_stride;
  const float* weights = args.weights + int64_t{output} * args.dim;
  float sums[kScoreRows] = {};
  for (int at = lane * 8; at < args.dim; at += 32 * 8) {
    float w[8];
    load8(weights + at, w);
#pragma unroll
    for (int r = 0; r < kScoreRows; ++r) {
      if (r >= rows) break;
      float v[8];
      load8(x + r * args.x_stride + at, v);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[r] += v[i] * w[i];
    }
  }
  const float bias = args.bias == nullptr ? 0.0f : args.bias[output];
#pragma unroll
  for (int r = 0; r < kScoreRows; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == 0 && r < rows) args.y[(first + r) * args.outputs + output] = sum + bias;
  }
}

__global__ void __launch_bounds__(kRouteWarps * 32) route_kernel(RouteArgs args) {
  extern __shared__ float shared[];
  release_next();
  wait_for_previous();
  const RouterSpec& spec = args.spec;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{blockIdx.x} * kRouteWarps + warp;
  if (row >= args.rows) return;
  float* words = shared + warp * route_words(spec);
  for (int i = lane; i < spec.num_experts; i += 32)
    words[i] = args.logits[row * spec.num_experts + i];
  __syncwarp();
  route_row(spec, args.correction, words, lane, args.experts + row * spec.top_k,
            args.weights + row * spec.top_k);
}

}  // namespace

namespace {

template <int ROW_TILES, int OUTPUT_TILES>
Status score_by_mma(const ScoreArgs& args, const LaunchOptions& launch) {
  using Shape = ScoreShape<ROW_TILES, OUTPUT_TILES>;
  auto* kernel = score_by_mma_kernel<ROW_TILES, OUTPUT_TILES>;
  ESP_RETURN_IF_ERROR(allow_shared("score", kernel, Shape::kSharedBytes));
  const dim3 grid(static_cast<unsigned>((args.rows + Shape::kScoreRows - 1) / Shape::kScoreRows),
                  static_cast<unsigned>((args.outputs + Shape::kOutputs - 1) / Shape::kOutputs));
  return launch_kernel("score", kernel, grid, kScoreWarps * 32, Shape::kSharedBytes, launch, args);
}

}  // namespace

Status score(const ScoreArgs& args, const LaunchOptions& launch) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "score: F16 is not supported");
  if (args.rows < 0 || args.dim < 8 || args.dim % 8 != 0 || args.x_stride % 8 != 0 ||
      args.outputs < 1 || !aligned(args.x, 16) || !aligned(args.weights, 16))
    return invalid_argument("score: {} rows of {} for {} outputs", args.rows, args.dim,
                            args.outputs);
  if (args.rows == 0) return {};
  // Tiles as large as fill the GPU.
  if (args.type == DType::kBFloat16)
    return args.rows <= 128   ? score_by_mma<1, 1>(args, launch)
           : args.rows < 1024 ? score_by_mma<1, 4>(args, launch)
                              : score_by_mma<4, 8>(args, launch);
  const dim3 grid(static_cast<unsigned>((args.rows + kScoreRows - 1) / kScoreRows),
                  static_cast<unsigned>((args.outputs + kScoreWarps - 1) / kScoreWarps));
  return launch_kernel("score", score_kernel, grid, kScoreWarps * 32, 0, launch, args);
}

Status check_route(const RouteArgs& args) {
  const RouterSpec& spec = args.spec;
  if (args.rows < 0 || spec.num_experts < 1 || spec.num_experts > kMaxExperts || spec.top_k < 1 ||
      spec.num_groups < 1 || spec.num_experts % spec.num_groups != 0 ||
      spec.top_k > spec.num_experts / spec.num_groups * spec.top_groups)
    return invalid_argument("route: {} of {} experts in {} of {} groups", spec.top_k,
                            spec.num_experts, spec.top_groups, spec.num_groups);
  if (spec.correction != (args.correction != nullptr))
    return invalid_argument("route: a correction is given where there is none, or missing");
  return {};
}

Status route(const RouteArgs& args, const LaunchOptions& launch) {
  const RouterSpec& spec = args.spec;
  ESP_RETURN_IF_ERROR(check_route(args));
  if (args.rows == 0) return {};
  const size_t bytes = size_t{kRouteWarps} * static_cast<size_t>(route_words(spec)) * 4;
  return launch_kernel("route", route_kernel,
                       dim3(static_cast<unsigned>((args.rows + kRouteWarps - 1) / kRouteWarps)),
                       kRouteWarps * 32, bytes, launch, args);
}

}  // namespace espalier::kernels::cuda
