// attention_plan: divides a step's attention among blocks from the lengths on the device.
// One block of 1,024 threads makes prefix sums of work items and tiles over the entries (and over
// the shared segments), then writes where each block of the attention kernels begins
// (attention_plan.h). Runs once a step and shape, not once a layer; a few microseconds, bound by
// latency.
#include "kernels/attention/attention_device.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kPlanThreads = 1024;

struct Counts {
  int work_items = 0, tiles = 0;
  int widened = 0;  // positions
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
    const int splits = last / split - first_visible(last, shape.sliding_window) / split + 1;
    return {.work_items = splits * shape.num_kv_heads};
  }
  const int end = entries.prefix_len[entry] + tokens;
  const int first = first_visible(entries.prefix_len[entry], shape.sliding_window);
  if (split > 0 || tokens * group > kDecodeRows)
    return {.tiles = (tokens + kTileRows / group - 1) / (kTileRows / group),
            .widened = end - first};
  const int positions = end - max(first, shared ? entries.shared.own_begin[entry] : 0);
  return {.work_items = (positions + kWorkPositions - 1) / kWorkPositions * shape.num_kv_heads};
}

// Returns the sum over threads up to this one; every thread calls it. scratch: [32] in shared
// memory.
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

struct SegmentSize {
  int blocks, tiles;  // work items of a tile, tiles of a kv head
};
__device__ SegmentSize size_of(const AttentionShape& shape, const SharedSegment& segment) {
  const int per_tile = kTileRows / (shape.num_heads / shape.num_kv_heads);
  return {.blocks = (segment.end - segment.begin + kSegmentBlock - 1) / kSegmentBlock,
          .tiles = (segment.num_members + per_tile - 1) / per_tile};
}

// Plans the shared segments: their work items, where each block begins, and where each entry finds
// its partial results.
__device__ void plan_shared(const AttentionShape& shape, const EntryArrays& entries,
                            const PlanView& plan, int* scratch) {
  __shared__ int carried;
  const SharedSegments& shared = entries.shared;
  const int num_segments = *shared.num_segments;
  if (threadIdx.x == 0) carried = plan.segment_work_begin[0] = 0;
  __syncthreads();
  for (int first = 0; first < num_segments; first += kPlanThreads) {
    const int index = first + static_cast<int>(threadIdx.x);
    int work_items = 0;
    if (index < num_segments) {
      const SegmentSize size = size_of(shape, shared.segments[index]);
      work_items = size.blocks * size.tiles * shape.num_kv_heads;
    }
    work_items = carried + inclusive_sum(work_items, scratch);
    if (index < num_segments) plan.segment_work_begin[index + 1] = work_items;
    __syncthreads();
    if (threadIdx.x == kPlanThreads - 1) carried = work_items;
    __syncthreads();
  }
  const int chunk = max((carried + plan.cascade_blocks - 1) / plan.cascade_blocks, 1);
  if (threadIdx.x == 0) plan.header->cascade_chunk = chunk;
  for (int block = threadIdx.x; block < plan.cascade_blocks; block += kPlanThreads) {
    CascadeStart start{.work = block * chunk, .work_end = min((block + 1) * chunk, carried)};
    if (start.work < start.work_end) {
      start.segment = bucket_of(plan.segment_work_begin, num_segments, start.work);
      start.segment_work = plan.segment_work_begin[start.segment];
    }
    plan.cascade_starts[block] = start;
  }
  const int group = shape.num_heads / shape.num_kv_heads, per_tile = kTileRows / group;
  for (int i = threadIdx.x; i < entries.num_entries * kSegmentsPerEntry; i += kPlanThreads) {
    EntrySegment lookup;
    const int index = shared.memberships[2 * i], index_in_segment = shared.memberships[2 * i + 1];
    if (index >= 0) {
      const SharedSegment segment = shared.segments[index];
      const SegmentSize size = size_of(shape, segment);
      lookup = {.blocks = size.blocks,
                .work = plan.segment_work_begin[index] + index_in_segment / per_tile * size.blocks,
                .work_per_head = size.tiles * size.blocks,
                .tile_row = index_in_segment % per_tile * group,
                .member = segment.first_member + index_in_segment,
                .chunk = chunk};
    }
    plan.entry_segments[i] = lookup;
  }
}

__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(AttentionShape shape, EntryArrays entries, PlanView plan, int decode_blocks) {
  __shared__ int scratch[32];
  __shared__ Counts carried;
  __shared__ int widened_rows;
  release_next();
  wait_for_previous();
  const bool shared = plan.entry_segments != nullptr && entries.shared.segments != nullptr;
  if (threadIdx.x == 0) {
    carried = {};
    widened_rows = 0;
    plan.work_begin[0] = plan.tile_begin[0] = 0;
    if (plan.widen_begin != nullptr) plan.widen_begin[0] = 0;
  }
  __syncthreads();
  for (int first = 0; first < entries.num_entries; first += kPlanThreads) {
    const int entry = first + static_cast<int>(threadIdx.x);
    const Counts counts = counts_of(shape, entries, entry, shared);
    const int work_items = carried.work_items + inclusive_sum(counts.work_items, scratch);
    const int tiles = carried.tiles + inclusive_sum(counts.tiles, scratch);
    int widened = 0;
    if (plan.widen_begin != nullptr) {
      widened = carried.widened + inclusive_sum(counts.widened, scratch);
      if (entry < entries.num_entries) plan.widen_begin[entry + 1] = widened;
      if (widened <= shape.widened_positions) atomicMax(&widened_rows, widened);
    }
    if (entry < entries.num_entries) {
      plan.work_begin[entry + 1] = work_items;
      plan.tile_begin[entry + 1] = tiles;
    }
    __syncthreads();
    if (threadIdx.x == kPlanThreads - 1) carried = {work_items, tiles, widened};
    __syncthreads();
  }
  for (int i = threadIdx.x; i < entries.num_entries * shape.num_kv_heads; i += kPlanThreads)
    plan.arrived[i] = 0;
  const int chunk = max((carried.work_items + decode_blocks - 1) / decode_blocks, kMinChunk);
  if (threadIdx.x == 0)
    *plan.header = {.num_work_items = carried.work_items,
                    .chunk = chunk,
                    .num_tiles = carried.tiles,
                    .widened_rows = widened_rows};
  __syncthreads();
  for (int block = threadIdx.x; block < decode_blocks; block += kPlanThreads) {
    DecodeStart start{.work = block * chunk,
                      .work_end = min((block + 1) * chunk, carried.work_items),
                      .chunk = chunk};
    if (start.work < start.work_end) {
      start.entry = bucket_of(plan.work_begin, entries.num_entries, start.work);
      start.entry_work = plan.work_begin[start.entry];
      start.blocks = (plan.work_begin[start.entry + 1] - start.entry_work) / shape.num_kv_heads;
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
  const int32_t blocks = decode_blocks(shape, traits);
  char* at = static_cast<char*>(workspace);
  size_t used = 0;
  const auto take = [&](size_t bytes) {
    char* begin = at == nullptr ? nullptr : at + used;
    used += (bytes + 255) / 256 * 256;
    return begin;
  };
  const auto entries = static_cast<size_t>(num_entries);
  size_t parts = static_cast<size_t>(2 * blocks) * kDecodeRows;
  if (shape.fixed_split > 0)
    parts = entries * static_cast<size_t>(shape.num_heads) *
            static_cast<size_t>((shape.max_context + shape.fixed_split - 1) / shape.fixed_split);
  view.header = reinterpret_cast<PlanHeader*>(take(sizeof(PlanHeader)));
  view.starts =
      reinterpret_cast<DecodeStart*>(take(static_cast<size_t>(blocks) * sizeof(DecodeStart)));
  view.work_begin = reinterpret_cast<int32_t*>(take((entries + 1) * 4));
  view.tile_begin = reinterpret_cast<int32_t*>(take((entries + 1) * 4));
  view.arrived =
      reinterpret_cast<int32_t*>(take(entries * static_cast<size_t>(shape.num_kv_heads) * 4));
  view.partial_out =
      reinterpret_cast<float*>(take(parts * static_cast<size_t>(shape.head_dim) * 4));
  view.partial_sum = reinterpret_cast<float2*>(take(parts * sizeof(float2)));
  if (shape.fixed_split == 0 && shape.sliding_window == 0 && num_entries > 1 &&
      sm90_shape(shape, traits)) {
    view.cascade_blocks = traits.num_multiprocessors;
    view.continued_rows = int64_t{num_entries} * kSegmentsPerEntry * shape.num_heads;
    const auto shared = static_cast<size_t>(view.cascade_blocks);
    const size_t rows = static_cast<size_t>(view.continued_rows) + shared * kTileRows;
    view.segment_work_begin = reinterpret_cast<int32_t*>(take((entries + 1) * 4));
    view.cascade_starts = reinterpret_cast<CascadeStart*>(take(shared * sizeof(CascadeStart)));
    view.entry_segments =
        reinterpret_cast<EntrySegment*>(take(entries * kSegmentsPerEntry * sizeof(EntrySegment)));
    view.segment_out =
        reinterpret_cast<float*>(take(rows * static_cast<size_t>(shape.head_dim) * 4));
    view.segment_sum = reinterpret_cast<float2*>(take(rows * sizeof(float2)));
  }
  if (shape.widened_positions > 0 && sm90_shape(shape, traits)) {
    const size_t elements = static_cast<size_t>(shape.widened_positions) *
                            static_cast<size_t>(shape.num_kv_heads) *
                            static_cast<size_t>(shape.head_dim);
    view.widen_begin = reinterpret_cast<int32_t*>(take((entries + 1) * 4));
    view.widened_k = take(elements * sizeof(bf16));
    view.widened_v = take(elements * sizeof(bf16));
  }
  view.bytes = used;
  return view;
}

Status attention_plan(const AttentionShape& shape, const EntryArrays& entries, void* workspace,
                      size_t workspace_bytes, const LaunchOptions& launch) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  if (!tensor_core_shape(shape, traits) || entries.num_entries == 0) return {};
  const PlanView view = plan_view(shape, entries.num_entries, traits, workspace);
  if (workspace_bytes < view.bytes || !aligned(workspace, 256))
    return invalid_argument(
        "attention_plan: the workspace has {} bytes, but {} entries need {}, at a 256-byte "
        "boundary",
        workspace_bytes, entries.num_entries, view.bytes);
  return launch_kernel("attention_plan", plan_kernel, dim3(1), kPlanThreads, 0, launch, shape,
                       entries, view, decode_blocks(shape, traits));
}

}  // namespace espalier::kernels::cuda
