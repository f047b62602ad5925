// score: a warp has one expert and eight rows, so each weight is read from L2 once for eight rows.
// Bytes of Qwen3-30B-A3B's layer: 1 MB of weights, at 8,192 tokens 1 GB from L2. route: one warp a
// row, its scores in shared memory, top_k times the largest.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/router/cuda.h"

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

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// The index of the largest of values[0, count), the first among equals; for the whole warp.
__device__ int warp_best(const float* values, int count, int lane) {
  float best = -INFINITY;
  int at = INT_MAX;
  for (int i = lane; i < count; i += 32) {
    if (values[i] > best || (values[i] == best && i < at)) best = values[i], at = i;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(~0u, best, step);
    const int other_at = __shfl_xor_sync(~0u, at, step);
    if (other > best || (other == best && other_at < at)) best = other, at = other_at;
  }
  return at;
}

__device__ void score_row(const RouteArgs& args, const float* logits, float* scores, float* choice,
                          int lane) {
  const RouterSpec& spec = args.spec;
  const int count = spec.num_experts;
  float largest = -INFINITY, sum = 0;
  for (int i = lane; i < count; i += 32) largest = fmaxf(largest, logits[i]);
  largest = warp_max(largest);
  const bool sigmoid = spec.scoring == RouterSpec::Scoring::kSigmoid;
  for (int i = lane; i < count; i += 32) {
    scores[i] = sigmoid ? 1.0f / (1.0f + expf(-logits[i])) : expf(logits[i] - largest);
    sum += scores[i];
  }
  sum = sigmoid ? 1.0f : warp_sum(sum);
  for (int i = lane; i < count; i += 32) {
    scores[i] /= sum;
    const float value = scores[i] + (args.correction == nullptr ? 0.0f : args.correction[i]);
    choice[i] = value == value ? value : -INFINITY;
  }
  __syncwarp();
}

// The experts of all groups but the best ones cannot be chosen. groups: [num_groups].
__device__ void close_groups(const RouterSpec& spec, float* choice, float* groups, int lane) {
  const int size = spec.num_experts / spec.num_groups;
  for (int g = lane; g < spec.num_groups; g += 32) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = g * size; i < (g + 1) * size; ++i) {
      second = fmaxf(second, fminf(first, choice[i]));
      first = fmaxf(first, choice[i]);
    }
    groups[g] = spec.group_by_two ? first + second : first;
  }
  __syncwarp();
  for (int i = 0; i < spec.top_groups; ++i) {
    const int best = warp_best(groups, spec.num_groups, lane);
    __syncwarp();
    if (lane == 0) groups[best] = NAN;  // open, and never the largest again
    __syncwarp();
  }
  for (int i = lane; i < spec.num_experts; i += 32)
    if (groups[i / size] == groups[i / size]) choice[i] = -INFINITY;
  __syncwarp();
}

__global__ void __launch_bounds__(kRouteWarps * 32) route_kernel(RouteArgs args) {
  extern __shared__ float shared[];
  release_next();
  wait_for_previous();
  const RouterSpec& spec = args.spec;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{blockIdx.x} * kRouteWarps + warp;
  if (row >= args.rows) return;
  float* scores = shared + 3 * warp * spec.num_experts;
  float* choice = scores + spec.num_experts;
  float* more = choice + spec.num_experts;  // groups, then the experts that are chosen
  const float* logits = args.logits + row * spec.num_experts;
  score_row(args, logits, scores, choice, lane);
  if (spec.num_groups > 1) close_groups(spec, choice, more, lane);
  int* chosen = reinterpret_cast<int*>(more);
  for (int i = 0; i < spec.top_k; ++i) {
    const int best = warp_best(choice, spec.num_experts, lane);
    __syncwarp();
    if (lane == 0) {
      choice[best] = -INFINITY;
      int at = i;  // rising
      for (; at > 0 && chosen[at - 1] > best; --at) chosen[at] = chosen[at - 1];
      chosen[at] = best;
    }
    __syncwarp();
  }
  bool nan = false;
  for (int i = lane; i < spec.num_experts; i += 32) nan |= logits[i] != logits[i];
  nan = __any_sync(~0u, nan);
  float sum = 0;
  for (int i = lane; i < spec.top_k; i += 32) sum += scores[chosen[i]];
  sum = spec.normalise ? warp_sum(sum) : 1.0f;
  for (int i = lane; i < spec.top_k; i += 32) {
    args.experts[row * spec.top_k + i] = chosen[i];
    args.weights[row * spec.top_k + i] = nan ? NAN : scores[chosen[i]] / sum * spec.scale;
  }
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
  const size_t bytes = size_t{3} * kRouteWarps * static_cast<size_t>(spec.num_experts) * 4;
  return launch_kernel("route", route_kernel,
                       dim3(static_cast<unsigned>((args.rows + kRouteWarps - 1) / kRouteWarps)),
                       kRouteWarps * 32, bytes, launch, args);
}

}  // namespace espalier::kernels::cuda
