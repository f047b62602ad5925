// score and route: router logits of every expert, and the top-k experts of each row.
// score: x [rows, dim], weights [outputs, dim] float32; a warp has one output and eight rows, so
// each weight is read from L2 once for eight rows. A layer of Qwen3-30B-A3B has 1 MB of weights;
// 8,192 tokens read 1 GB from L2.
// route: one warp a row, its scores in shared memory, top_k times the largest (router_topk.cuh).
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/router/cuda.h"
#include "kernels/router/router_topk.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kWarps = 8, kRows = 8;
constexpr int kRouteWarps = 4;

template <typename T>
__global__ void __launch_bounds__(kWarps * 32) score_kernel(ScoreArgs args) {
  release_next();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int output = static_cast<int>(blockIdx.y) * kWarps + warp;
  const int64_t first = int64_t{blockIdx.x} * kRows;
  if (output >= args.outputs) return;
  wait_for_previous();
  const int rows = static_cast<int>(min(int64_t{kRows}, args.rows - first));
  const T* x = static_cast<const T*>(args.x) + first * args.x_stride;
  const float* weights = args.weights + int64_t{output} * args.dim;
  float sums[kRows] = {};
  for (int at = lane * 8; at < args.dim; at += 32 * 8) {
    float w[8];
    load8(weights + at, w);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      float v[8];
      load8(x + r * args.x_stride + at, v);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[r] += v[i] * w[i];
    }
  }
  const float bias = args.bias == nullptr ? 0.0f : args.bias[output];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
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

Status score(const ScoreArgs& args, const LaunchOptions& launch) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "score: F16 is not supported");
  if (args.rows < 0 || args.dim < 8 || args.dim % 8 != 0 || args.x_stride % 8 != 0 ||
      args.outputs < 1 || !aligned(args.x, 16) || !aligned(args.weights, 16))
    return invalid_argument("score: {} rows of {} for {} outputs", args.rows, args.dim,
                            args.outputs);
  if (args.rows == 0) return {};
  const dim3 grid(static_cast<unsigned>((args.rows + kRows - 1) / kRows),
                  static_cast<unsigned>((args.outputs + kWarps - 1) / kWarps));
  return launch_kernel("score",
                       args.type == DType::kBFloat16 ? score_kernel<bf16> : score_kernel<float>,
                       grid, kWarps * 32, 0, launch, args);
}

Status route(const RouteArgs& args, const LaunchOptions& launch) {
  const RouterSpec& spec = args.spec;
  if (args.rows < 0 || spec.num_experts < 1 || spec.num_experts > kMaxExperts || spec.top_k < 1 ||
      spec.num_groups < 1 || spec.num_experts % spec.num_groups != 0 ||
      spec.top_k > spec.num_experts / spec.num_groups * spec.top_groups)
    return invalid_argument("route: {} of {} experts in {} of {} groups", spec.top_k,
                            spec.num_experts, spec.top_groups, spec.num_groups);
  if (spec.correction != (args.correction != nullptr))
    return invalid_argument("route: a correction is given where there is none, or missing");
  if (args.rows == 0) return {};
  const size_t bytes = size_t{kRouteWarps} * static_cast<size_t>(route_words(spec)) * 4;
  return launch_kernel("route", route_kernel,
                       dim3(static_cast<unsigned>((args.rows + kRouteWarps - 1) / kRouteWarps)),
                       kRouteWarps * 32, bytes, launch, args);
}

}  // namespace espalier::kernels::cuda
