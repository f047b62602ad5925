// Grouped GEMM: y = x W^T (+ bias), each group of rows (an expert, or a head of latent attention)
// by its own matrix. x [rows, in], W [groups, out, in], y [rows, out]; bfloat16, or float32 by a
// kernel without tensor cores.
// Parallel: a block has a tile of 16, 64 or 128 rows by 64 or 128 outputs; mma.sync m16n8k16 with
// float32 sums.
// Pipeline: rows and matrices by cp.async, four stages of 64 inputs.
// Roof: memory at decode (each selected expert's matrix once, 2 x out x in bytes; 16 rows cost
// nothing more), tensor cores at prefill (2 x pairs x out x in operations). Rows that a group lacks
// are zeros in its last tile.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/moe/coded_experts.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/experts_decode.h"
#include "kernels/moe/grouped_gemm_sm90.h"
#include "kernels/moe/grouped_gemm_tiles.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kDepth = 64;  // of in_features at a time
constexpr int kDepthPitch = kDepth + 8;
constexpr int kStages = 4;

// The kernel parameters: GroupedArgs with its plan by value.
struct GroupedParams {
  GroupedArgs args;
  ExpertPlan plan;
  int32_t group_tiles = 0;  // without a plan: of each group
};

// The rows [first, end) of y that a block computes, of `group`; first == end: none.
struct Tile {
  int group = 0, first = 0, end = 0;
};

__device__ Tile tile_of(const GroupedParams& params, int index, int tile_rows) {
  Tile tile;
  if (params.args.plan == nullptr) {
    tile.group = index / params.group_tiles;
    tile.first = index % params.group_tiles * tile_rows;
    tile.end = min(params.args.rows, tile.first + tile_rows);
    return tile;
  }
  const ExpertPlan& plan = params.plan;
  const int groups = params.args.num_groups;
  if (index >= plan.tiles[groups]) return tile;
  tile.group = bucket_of(plan.tiles, groups, index);
  tile.first = plan.begins[tile.group] + (index - plan.tiles[tile.group]) * tile_rows;
  tile.end = min(plan.begins[tile.group + 1], tile.first + tile_rows);
  return tile;
}

// The start of the row of x for row `index` of y, in elements.
__device__ int64_t x_row(const GroupedParams& params, int group, int index) {
  const GroupedArgs& args = params.args;
  if (args.plan == nullptr) return group * args.x_group_stride + index * args.x_stride;
  const int row = args.pairs_per_row == 0 ? index : params.plan.pairs[index] / args.pairs_per_row;
  return row * args.x_stride;
}

// ROWS x OUTPUTS a block; WARP_ROWS x WARP_OUTPUTS a warp.
template <int ROWS, int OUTPUTS, int WARP_ROWS, int WARP_OUTPUTS>
struct Shape {
  static constexpr int kRows = ROWS, kOutputs = OUTPUTS;
  static constexpr int kWarpRows = WARP_ROWS, kWarpOutputs = WARP_OUTPUTS;
  static constexpr int kWarpsAcross = OUTPUTS / WARP_OUTPUTS;
  static constexpr int kThreads = ROWS / WARP_ROWS * kWarpsAcross * 32;
  static constexpr int kStageElements = (ROWS + OUTPUTS) * kDepthPitch;
  static constexpr size_t kSharedBytes = kStages * kStageElements * sizeof(bf16);
};

template <typename S>
__device__ void fetch(const GroupedParams& params, const int64_t* rows, const bf16* weights,
                      int num_rows, int num_outputs, int depth, bf16* stage) {
  const int in = params.args.in_features;
  const auto* x = static_cast<const bf16*>(params.args.x);
  constexpr int kParts = kDepth / 8;
  for (int i = static_cast<int>(threadIdx.x); i < (S::kRows + S::kOutputs) * kParts;
       i += S::kThreads) {
    const int row = i / kParts, at = depth + i % kParts * 8;
    bf16* to = stage + row * kDepthPitch + i % kParts * 8;
    const bool is_x = row < S::kRows;
    const int output = row - S::kRows;
    const bool known = at < in && (is_x ? row < num_rows : output < num_outputs);
    const bf16* from = x;
    if (known) from = is_x ? x + rows[row] + at : weights + int64_t{output} * in + at;
    copy_async(to, from, known);
  }
}

template <typename S>
__device__ void multiply(const bf16* stage, int warp_row, int warp_output, int lane,
                         float (&sums)[S::kWarpRows / 16][S::kWarpOutputs / 8][4]) {
  const bf16* x = stage + warp_row * kDepthPitch;
  const bf16* w = stage + (S::kRows + warp_output) * kDepthPitch;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    uint32_t a[S::kWarpRows / 16][4];
#pragma unroll
    for (int m = 0; m < S::kWarpRows / 16; ++m)
      load_matrices(a[m], x + (m * 16 + lane % 16) * kDepthPitch + k + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < S::kWarpOutputs / 16; ++n) {
      uint32_t b[4];
      load_matrices(b,
                    w + (n * 16 + lane % 8 + lane / 16 * 8) * kDepthPitch + k + lane / 8 % 2 * 8);
#pragma unroll
      for (int m = 0; m < S::kWarpRows / 16; ++m) {
        mma(sums[m][2 * n], a[m], b[0], b[1]);
        mma(sums[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads) grouped_kernel(GroupedParams params) {
  extern __shared__ __align__(16) bf16 stages[];
  __shared__ int64_t rows[S::kRows];
  release_next();
  wait_for_previous();
  const GroupedArgs& args = params.args;
  const Tile tile = tile_of(params, static_cast<int>(blockIdx.x), S::kRows);
  if (tile.first >= tile.end) return;
  const int num_rows = tile.end - tile.first;
  const int first_output = static_cast<int>(blockIdx.y) * S::kOutputs;
  const int num_outputs = min(S::kOutputs, args.out_features - first_output);
  for (int i = static_cast<int>(threadIdx.x); i < num_rows; i += S::kThreads)
    rows[i] = x_row(params, tile.group, tile.first + i);
  __syncthreads();
  const bf16* weights = static_cast<const bf16*>(args.weights) + tile.group * args.weights_stride +
                        int64_t{first_output} * args.in_features;
  const int steps = (args.in_features + kDepth - 1) / kDepth;
  const auto fetch_step = [&](int step) {
    if (step < steps)
      fetch<S>(params, rows, weights, num_rows, num_outputs, step * kDepth,
               stages + step % kStages * S::kStageElements);
    copy_commit();
  };
  for (int step = 0; step < kStages - 1; ++step) fetch_step(step);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = warp / S::kWarpsAcross * S::kWarpRows;
  const int warp_output = warp % S::kWarpsAcross * S::kWarpOutputs;
  float sums[S::kWarpRows / 16][S::kWarpOutputs / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    copy_wait<kStages - 2>();
    __syncthreads();
    fetch_step(step + kStages - 1);
    multiply<S>(stages + step % kStages * S::kStageElements, warp_row, warp_output, lane, sums);
  }
  const auto* bias = args.bias == nullptr ? nullptr
                                          : static_cast<const bf16*>(args.bias) +
                                                int64_t{tile.group} * args.out_features;
  bf16* y = static_cast<bf16*>(args.y) +
            (args.plan == nullptr ? tile.group * args.y_group_stride : int64_t{0});
#pragma unroll
  for (int m = 0; m < S::kWarpRows / 16; ++m) {
#pragma unroll
    for (int n = 0; n < S::kWarpOutputs / 8; ++n) {
      const int output = first_output + warp_output + n * 8 + lane % 4 * 2;
      if (output >= args.out_features) continue;
      const float b0 = bias == nullptr ? 0.0f : to_float(bias[output]);
      const float b1 = bias == nullptr ? 0.0f : to_float(bias[output + 1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + m * 16 + half * 8 + lane / 4;
        if (row >= num_rows) continue;
        *reinterpret_cast<uint32_t*>(y + int64_t{tile.first + row} * args.y_stride + output) =
            pack_bf16(sums[m][n][half * 2] + b0, sums[m][n][half * 2 + 1] + b1);
      }
    }
  }
}

// In float32 without tensor cores, a warp for a row's output: for tests and small models.
constexpr int kAnyWarps = 4, kAnyOutputs = 8;  // of a warp

__global__ void __launch_bounds__(kAnyWarps * 32) grouped_any_kernel(GroupedParams params) {
  release_next();
  wait_for_previous();
  const GroupedArgs& args = params.args;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int row = static_cast<int>(blockIdx.x), group = 0;
  if (args.plan == nullptr) {
    group = row / args.rows;
    row %= args.rows;
  } else {
    if (row >= params.plan.begins[args.num_groups]) return;  // a pair of another rank
    group = bucket_of(params.plan.begins, args.num_groups, row);
  }
  const float* x = static_cast<const float*>(args.x) + x_row(params, group, row);
  const float* weights = static_cast<const float*>(args.weights) + group * args.weights_stride;
  float* y = static_cast<float*>(args.y) + int64_t{row} * args.y_stride +
             (args.plan == nullptr ? group * args.y_group_stride : int64_t{0});
  for (int i = 0; i < kAnyOutputs; ++i) {
    const int output = (static_cast<int>(blockIdx.y) * kAnyWarps + warp) * kAnyOutputs + i;
    if (output >= args.out_features) return;
    float sum = 0;
    for (int k = lane; k < args.in_features; k += 32)
      sum += x[k] * weights[int64_t{output} * args.in_features + k];
    sum = warp_sum(sum);
    if (lane != 0) continue;
    const auto* bias = static_cast<const float*>(args.bias);
    y[output] = sum + (bias == nullptr ? 0.0f : bias[int64_t{group} * args.out_features + output]);
  }
}

template <typename S>
Status launch_tiles(GroupedParams& params, const LaunchOptions& launch) {
  const GroupedArgs& args = params.args;
  const auto cover = [](int32_t count, int32_t by) { return (count + by - 1) / by; };
  params.group_tiles = cover(args.rows, S::kRows);
  const int32_t tiles = args.plan == nullptr
                            ? args.num_groups * params.group_tiles
                            : most_tiles(args.num_pairs, args.num_groups, S::kRows);
  const dim3 grid(static_cast<unsigned>(tiles),
                  static_cast<unsigned>(cover(args.out_features, S::kOutputs)));
  ESP_RETURN_IF_ERROR(allow_shared("grouped linear", grouped_kernel<S>, S::kSharedBytes));
  return launch_kernel("grouped linear", grouped_kernel<S>, grid,
                       dim3(static_cast<unsigned>(S::kThreads)), S::kSharedBytes, launch, params);
}

Status check(const GroupedArgs& args) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "grouped linear: F16 is not supported");
  if ((args.x_scales == nullptr) != (args.weight_scales == nullptr))
    return invalid_argument("grouped linear: scales of rows or of weights are missing");
  if (args.block_scales && args.weight_scales == nullptr)
    return invalid_argument("grouped linear: scales of blocks are missing");
  if (args.num_groups < 1 || args.in_features < 8 || args.in_features % 8 != 0 ||
      args.out_features < 2 || args.out_features % 2 != 0 || args.rows < 0 || args.num_pairs < 0)
    return invalid_argument("grouped linear: {} groups of {} x {}", args.num_groups,
                            args.out_features, args.in_features);
  const bool vectors = aligned(args.x, 16) && aligned(args.weights, 16) && aligned(args.y, 4) &&
                       args.x_stride % 8 == 0 && args.weights_stride % 8 == 0 &&
                       args.x_group_stride % 8 == 0 && args.y_stride % 2 == 0 &&
                       args.y_group_stride % 2 == 0;
  if (!vectors)
    return invalid_argument("grouped linear: rows and matrices must lie at multiples of 16 bytes");
  return {};
}

}  // namespace

Status grouped_linear(const GroupedArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check(args));
  const bool by_plan = args.plan != nullptr;
  const int32_t rows = by_plan ? args.num_pairs : args.num_groups * args.rows;
  if (rows == 0) return {};
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  if (coded_experts_supports(args, traits)) return coded_experts(args, traits, launch);
  if (args.mxfp4 || args.int4)
    return error(StatusCode::kUnimplemented, "grouped linear: no {} of these shapes here",
                 args.mxfp4 ? "MXFP4" : "int4");
  if (experts_decode_supports(args, traits)) return experts_decode(args, traits, launch);
  if (grouped_gemm_sm90_supports(args, traits)) return grouped_gemm_sm90(args, traits, launch);
  if (args.activation || args.weight_scales != nullptr)
    return error(StatusCode::kUnimplemented,
                 "grouped linear: no activation and no e4m3 of these shapes here");
  GroupedParams params{.args = args, .plan = {}};
  if (by_plan) params.plan = *args.plan;
  const int32_t tile_rows = grouped_tile_rows(rows, num_routed(args));
  if (args.type == DType::kFloat32) {
    constexpr int kOutputs = kAnyWarps * kAnyOutputs;
    const dim3 grid(static_cast<unsigned>(rows),
                    static_cast<unsigned>((args.out_features + kOutputs - 1) / kOutputs));
    return launch_kernel("grouped linear", grouped_any_kernel, grid, kAnyWarps * 32, 0, launch,
                         params);
  }
  if (tile_rows == 16) return launch_tiles<Shape<16, 64, 16, 16>>(params, launch);
  if (tile_rows == 64) return launch_tiles<Shape<64, 128, 32, 64>>(params, launch);
  return launch_tiles<Shape<128, 128, 64, 32>>(params, launch);
}

Result<bool> grouped_linear_fuses(const GroupedArgs& args) {
  if (!args.activation) return false;
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  return args.mxfp4 || args.int4 ? coded_experts_supports(args, traits)
                                 : grouped_gemm_sm90_supports(args, traits);
}

}  // namespace espalier::kernels::cuda
