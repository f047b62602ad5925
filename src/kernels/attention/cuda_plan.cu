// The plan of a step: one block, two prefix sums over the lanes. Once a step, not once a layer; a
// few microseconds.
#include "kernels/attention/cuda_tile.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kThreads = 1024;

struct Counts {
  int units = 0, tiles = 0;
};

__device__ Counts counts_of(const AttentionShape& shape, const LaneArrays& lanes, int lane) {
  if (lane >= lanes.num_lanes) return {};
  const int tokens = lanes.query_begin[lane + 1] - lanes.query_begin[lane];
  if (tokens <= 0) return {};
  const int group = shape.num_heads / shape.num_kv_heads;
  if (tokens * group > kSplitRows)
    return {.tiles = (tokens + kTileRows / group - 1) / (kTileRows / group)};
  const int end = lanes.prefix_len[lane] + tokens;
  const int positions = end - first_seen(lanes.prefix_len[lane], shape.sliding_window);
  return {.units = (positions + kSplitBlock - 1) / kSplitBlock * shape.num_kv_heads};
}

// The sum over threads up to this one; every thread calls it.
__device__ int inclusive_sum(int value, int* scratch) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto within_warp = [&](int v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, v, step);
      if (lane >= step) v += other;
    }
    return v;
  };
  value = within_warp(value);
  if (lane == 31) scratch[warp] = value;
  __syncthreads();
  if (warp == 0) scratch[lane] = within_warp(scratch[lane]);
  __syncthreads();
  value += warp > 0 ? scratch[warp - 1] : 0;
  __syncthreads();
  return value;
}

__global__ void __launch_bounds__(kThreads)
    plan_kernel(AttentionShape shape, LaneArrays lanes, PlanView plan, int split_blocks) {
  __shared__ int scratch[32];
  __shared__ Counts carried;
  release_next();
  wait_for_previous();
  if (threadIdx.x == 0) {
    carried = {};
    plan.unit_begin[0] = plan.tile_begin[0] = 0;
  }
  __syncthreads();
  for (int first = 0; first < lanes.num_lanes; first += kThreads) {
    const int lane = first + static_cast<int>(threadIdx.x);
    const Counts counts = counts_of(shape, lanes, lane);
    const int units = carried.units + inclusive_sum(counts.units, scratch);
    const int tiles = carried.tiles + inclusive_sum(counts.tiles, scratch);
    if (lane < lanes.num_lanes) {
      plan.unit_begin[lane + 1] = units;
      plan.tile_begin[lane + 1] = tiles;
    }
    __syncthreads();
    if (threadIdx.x == kThreads - 1) carried = {units, tiles};
    __syncthreads();
  }
  for (int i = threadIdx.x; i < lanes.num_lanes * shape.num_kv_heads; i += kThreads)
    plan.arrived[i] = 0;
  const int chunk = max((carried.units + split_blocks - 1) / split_blocks, kMinChunk);
  if (threadIdx.x == 0)
    *plan.header = {.num_units = carried.units, .chunk = chunk, .num_tiles = carried.tiles};
  for (int block = threadIdx.x; block < split_blocks; block += kThreads) {
    SplitStart start{
        .unit = block * chunk, .unit_end = min((block + 1) * chunk, carried.units), .chunk = chunk};
    if (start.unit < start.unit_end) {
      start.lane = lane_with(plan.unit_begin, lanes.num_lanes, start.unit);
      start.lane_unit = plan.unit_begin[start.lane];
      start.blocks = (plan.unit_begin[start.lane + 1] - start.lane_unit) / shape.num_kv_heads;
      start.query_begin = lanes.query_begin[start.lane];
      start.tokens = lanes.query_begin[start.lane + 1] - start.query_begin;
      start.prefix_len = lanes.prefix_len[start.lane];
    }
    plan.starts[block] = start;
  }
}

}  // namespace

PlanView plan_view(const AttentionShape& shape, int32_t num_lanes, int32_t split_blocks,
                   void* workspace) {
  PlanView view;
  char* at = static_cast<char*>(workspace);
  size_t used = 0;
  const auto take = [&](size_t bytes) {
    char* begin = at == nullptr ? nullptr : at + used;
    used += (bytes + 255) / 256 * 256;
    return begin;
  };
  const auto lanes = static_cast<size_t>(num_lanes);
  const auto parts = static_cast<size_t>(2 * split_blocks) * kSplitRows;
  view.header = reinterpret_cast<PlanHeader*>(take(sizeof(PlanHeader)));
  view.starts =
      reinterpret_cast<SplitStart*>(take(static_cast<size_t>(split_blocks) * sizeof(SplitStart)));
  view.unit_begin = reinterpret_cast<int32_t*>(take((lanes + 1) * 4));
  view.tile_begin = reinterpret_cast<int32_t*>(take((lanes + 1) * 4));
  view.arrived =
      reinterpret_cast<int32_t*>(take(lanes * static_cast<size_t>(shape.num_kv_heads) * 4));
  view.part_out = reinterpret_cast<float*>(take(parts * static_cast<size_t>(shape.head_dim) * 4));
  view.part_sum = reinterpret_cast<float2*>(take(parts * sizeof(float2)));
  view.bytes = used;
  return view;
}

Status attention_plan(const AttentionShape& shape, const LaneArrays& lanes, void* workspace,
                      size_t workspace_bytes, const LaunchOptions& launch) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  if (!fast_shape(shape, traits) || lanes.num_lanes == 0) return {};
  const int blocks = split_blocks(shape, traits);
  const PlanView view = plan_view(shape, lanes.num_lanes, blocks, workspace);
  if (workspace_bytes < view.bytes || !aligned(workspace, 256))
    return invalid_argument(
        "attention_plan: the workspace has {} bytes, but {} lanes need {}, at a 256-byte boundary",
        workspace_bytes, lanes.num_lanes, view.bytes);
  return launch_kernel("attention_plan", plan_kernel, dim3(1), kThreads, 0, launch, shape, lanes,
                       view, blocks);
}

}  // namespace espalier::kernels::cuda
