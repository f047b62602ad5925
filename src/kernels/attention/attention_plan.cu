// The plan of a step: one block, two prefix sums over the lanes. Once a step, not once a layer; a
// few microseconds.
#include "kernels/attention/attention_device.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kThreads = 1024;

struct Counts {
  int units = 0, tiles = 0;
};

__device__ Counts counts_of(const AttentionShape& shape, const EntryArrays& entries, int entry,
                            bool shared) {
  if (entry >= entries.num_entries) return {};
  const int tokens = entries.query_begin[entry + 1] - entries.query_begin[entry];
  if (tokens <= 0) return {};
  const int group = shape.num_heads / shape.num_kv_heads;
  const int split = shape.fixed_split;
  if (split > 0 && tokens == 1) {
    const int last = entries.prefix_len[entry];
    const int splits = last / split - first_seen(last, shape.sliding_window) / split + 1;
    return {.units = splits * shape.num_kv_heads};
  }
  if (split > 0 || tokens * group > kSplitRows)
    return {.tiles = (tokens + kTileRows / group - 1) / (kTileRows / group)};
  const int end = entries.prefix_len[entry] + tokens;
  const int positions = end - max(first_seen(entries.prefix_len[entry], shape.sliding_window),
                                  shared ? entries.shared.own_begin[entry] : 0);
  return {.units = (positions + kSplitUnit - 1) / kSplitUnit * shape.num_kv_heads};
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

struct RunSize {
  int blocks, tiles;  // units of an item, items of a kv head
};
__device__ RunSize size_of(const AttentionShape& shape, const SharedSegment& run) {
  const int per_tile = kTileRows / (shape.num_heads / shape.num_kv_heads);
  return {.blocks = (run.end - run.begin + kSharedBlock - 1) / kSharedBlock,
          .tiles = (run.num_members + per_tile - 1) / per_tile};
}

// The shared runs' units, where each block begins, and where each lane finds its parts.
__device__ void plan_shared(const AttentionShape& shape, const EntryArrays& entries,
                            const PlanView& plan, int* scratch) {
  __shared__ int carried;
  const SharedSegments& shared = entries.shared;
  const int num_segments = *shared.num_segments;
  if (threadIdx.x == 0) carried = plan.run_unit_begin[0] = 0;
  __syncthreads();
  for (int first = 0; first < num_segments; first += kThreads) {
    const int index = first + static_cast<int>(threadIdx.x);
    int units = 0;
    if (index < num_segments) {
      const RunSize size = size_of(shape, shared.segments[index]);
      units = size.blocks * size.tiles * shape.num_kv_heads;
    }
    units = carried + inclusive_sum(units, scratch);
    if (index < num_segments) plan.run_unit_begin[index + 1] = units;
    __syncthreads();
    if (threadIdx.x == kThreads - 1) carried = units;
    __syncthreads();
  }
  const int chunk = max((carried + plan.shared_blocks - 1) / plan.shared_blocks, 1);
  if (threadIdx.x == 0) plan.header->shared_chunk = chunk;
  for (int block = threadIdx.x; block < plan.shared_blocks; block += kThreads) {
    SharedStart start{.unit = block * chunk, .unit_end = min((block + 1) * chunk, carried)};
    if (start.unit < start.unit_end) {
      start.run = entry_with(plan.run_unit_begin, num_segments, start.unit);
      start.run_unit = plan.run_unit_begin[start.run];
    }
    plan.shared_starts[block] = start;
  }
  const int group = shape.num_heads / shape.num_kv_heads, per_tile = kTileRows / group;
  for (int i = threadIdx.x; i < entries.num_entries * kSegmentsPerEntry; i += kThreads) {
    EntrySegment found;
    const int index = shared.memberships[2 * i], place = shared.memberships[2 * i + 1];
    if (index >= 0) {
      const SharedSegment run = shared.segments[index];
      const RunSize size = size_of(shape, run);
      found = {.blocks = size.blocks,
               .unit = plan.run_unit_begin[index] + place / per_tile * size.blocks,
               .units_per_head = size.tiles * size.blocks,
               .tile_row = place % per_tile * group,
               .member = run.first_member + place,
               .chunk = chunk};
    }
    plan.entry_segments[i] = found;
  }
}

__global__ void __launch_bounds__(kThreads)
    plan_kernel(AttentionShape shape, EntryArrays entries, PlanView plan, int split_blocks) {
  __shared__ int scratch[32];
  __shared__ Counts carried;
  release_next();
  wait_for_previous();
  const bool shared = plan.entry_segments != nullptr && entries.shared.segments != nullptr;
  if (threadIdx.x == 0) {
    carried = {};
    plan.unit_begin[0] = plan.tile_begin[0] = 0;
  }
  __syncthreads();
  for (int first = 0; first < entries.num_entries; first += kThreads) {
    const int entry = first + static_cast<int>(threadIdx.x);
    const Counts counts = counts_of(shape, entries, entry, shared);
    const int units = carried.units + inclusive_sum(counts.units, scratch);
    const int tiles = carried.tiles + inclusive_sum(counts.tiles, scratch);
    if (entry < entries.num_entries) {
      plan.unit_begin[entry + 1] = units;
      plan.tile_begin[entry + 1] = tiles;
    }
    __syncthreads();
    if (threadIdx.x == kThreads - 1) carried = {units, tiles};
    __syncthreads();
  }
  for (int i = threadIdx.x; i < entries.num_entries * shape.num_kv_heads; i += kThreads)
    plan.arrived[i] = 0;
  const int chunk = max((carried.units + split_blocks - 1) / split_blocks, kMinChunk);
  if (threadIdx.x == 0)
    *plan.header = {.num_units = carried.units, .chunk = chunk, .num_tiles = carried.tiles};
  __syncthreads();
  for (int block = threadIdx.x; block < split_blocks; block += kThreads) {
    SplitStart start{
        .unit = block * chunk, .unit_end = min((block + 1) * chunk, carried.units), .chunk = chunk};
    if (start.unit < start.unit_end) {
      start.entry = entry_with(plan.unit_begin, entries.num_entries, start.unit);
      start.entry_unit = plan.unit_begin[start.entry];
      start.blocks = (plan.unit_begin[start.entry + 1] - start.entry_unit) / shape.num_kv_heads;
      start.query_begin = entries.query_begin[start.entry];
      start.tokens = entries.query_begin[start.entry + 1] - start.query_begin;
      start.prefix_len = entries.prefix_len[start.entry];
      start.page_begin = entries.page_begin[start.entry];
      start.own_begin = shared ? entries.shared.own_begin[start.entry] : 0;
    }
    plan.starts[block] = start;
  }
  if (shared) plan_shared(shape, entries, plan, scratch);
}

}  // namespace

PlanView plan_view(const AttentionShape& shape, int32_t num_entries, const DeviceTraits& traits,
                   void* workspace) {
  PlanView view;
  const int32_t blocks = split_blocks(shape, traits);
  char* at = static_cast<char*>(workspace);
  size_t used = 0;
  const auto take = [&](size_t bytes) {
    char* begin = at == nullptr ? nullptr : at + used;
    used += (bytes + 255) / 256 * 256;
    return begin;
  };
  const auto entries = static_cast<size_t>(num_entries);
  size_t parts = static_cast<size_t>(2 * blocks) * kSplitRows;
  if (shape.fixed_split > 0)
    parts = entries * static_cast<size_t>(shape.num_heads) *
            static_cast<size_t>((shape.max_context + shape.fixed_split - 1) / shape.fixed_split);
  view.header = reinterpret_cast<PlanHeader*>(take(sizeof(PlanHeader)));
  view.starts =
      reinterpret_cast<SplitStart*>(take(static_cast<size_t>(blocks) * sizeof(SplitStart)));
  view.unit_begin = reinterpret_cast<int32_t*>(take((entries + 1) * 4));
  view.tile_begin = reinterpret_cast<int32_t*>(take((entries + 1) * 4));
  view.arrived =
      reinterpret_cast<int32_t*>(take(entries * static_cast<size_t>(shape.num_kv_heads) * 4));
  view.part_out = reinterpret_cast<float*>(take(parts * static_cast<size_t>(shape.head_dim) * 4));
  view.part_sum = reinterpret_cast<float2*>(take(parts * sizeof(float2)));
  if (shape.fixed_split == 0 && shape.sliding_window == 0 && num_entries > 1 &&
      hopper_shape(shape, traits)) {
    view.shared_blocks = traits.num_multiprocessors;
    view.continued_rows = int64_t{num_entries} * kSegmentsPerEntry * shape.num_heads;
    const auto shared = static_cast<size_t>(view.shared_blocks);
    const size_t rows = static_cast<size_t>(view.continued_rows) + shared * kTileRows;
    view.run_unit_begin = reinterpret_cast<int32_t*>(take((entries + 1) * 4));
    view.shared_starts = reinterpret_cast<SharedStart*>(take(shared * sizeof(SharedStart)));
    view.entry_segments =
        reinterpret_cast<EntrySegment*>(take(entries * kSegmentsPerEntry * sizeof(EntrySegment)));
    view.shared_out =
        reinterpret_cast<float*>(take(rows * static_cast<size_t>(shape.head_dim) * 4));
    view.shared_sum = reinterpret_cast<float2*>(take(rows * sizeof(float2)));
  }
  view.bytes = used;
  return view;
}

Status attention_plan(const AttentionShape& shape, const EntryArrays& entries, void* workspace,
                      size_t workspace_bytes, const LaunchOptions& launch) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  if (!fast_shape(shape, traits) || entries.num_entries == 0) return {};
  const PlanView view = plan_view(shape, entries.num_entries, traits, workspace);
  if (workspace_bytes < view.bytes || !aligned(workspace, 256))
    return invalid_argument(
        "attention_plan: the workspace has {} bytes, but {} entries need {}, at a 256-byte "
        "boundary",
        workspace_bytes, entries.num_entries, view.bytes);
  return launch_kernel("attention_plan", plan_kernel, dim3(1), kThreads, 0, launch, shape, entries,
                       view, split_blocks(shape, traits));
}

}  // namespace espalier::kernels::cuda
