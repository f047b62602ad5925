// arrange, combine and copy_parts: the permutation of rows by expert, and back.
// arrange: one cluster of one or eight blocks, each with a part of the pairs: a histogram of their
// experts in shared memory, prefix sums over experts and blocks, then a slot for each pair; two
// passes over the pairs (65,536 at 8,192 tokens of 8 experts).
// route_and_arrange: the same cluster, whose warps first choose the experts of up to 256 rows.
// combine: one block a row, eight elements a thread; roof memory, (top_k + 2) x rows x dim x size
// bytes. copy_parts: one block a row, element by element; small.
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/grouped_gemm_tiles.h"
#include "kernels/router/op.h"
#include "kernels/router/replicas.cuh"
#include "kernels/router/router_topk.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kArrangeThreads = 1024;
static_assert(kArrangeThreads >= kMaxExperts);
constexpr int32_t kArrangeBlocks = 8;  // of a cluster, where there are enough pairs for them
constexpr int32_t kPairsOfOneBlock = 2 * kArrangeThreads;
constexpr int kPermuteThreads = 128;
constexpr size_t kMostRouteBytes = 128 << 10;  // of shared memory

// Returns the sum over the threads before this one; `total` is the sum over all.
__device__ int exclusive_sum(int value, int* scratch, int& total) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kArrangeThreads / 32; ++w) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  __syncthreads();
  return before + sum - value;
}

// The index of a pair's expert, or of its slot, among those that are here; without one a number at
// or above their count.
__device__ __forceinline__ uint32_t local_expert(const ArrangeArgs& args, int pair) {
  int32_t expert = args.experts[pair];
  if (args.replicas.table != nullptr)
    expert = slot_of(args.replicas, expert, pair / args.pairs_per_row);
  return static_cast<uint32_t>(expert - args.first_local);
}

// Adds the pairs [first, end) that are no padding to the counts of their experts. counts: shared
// memory, [threads].
__device__ void count_pairs(const ArrangeArgs& args, int first, int end, int* counts) {
  const int thread = static_cast<int>(threadIdx.x);
  end = min(end, *args.counts.num_rows * args.pairs_per_row);
  __syncthreads();
  counts[thread] = 0;
  __syncthreads();
  const auto num_local = static_cast<uint32_t>(args.num_local);
  for (int i = first; i < end; i += kArrangeThreads) {
    const uint32_t local = local_expert(args, i);
    if (local < num_local) atomicAdd(&counts[local], 1);
  }
  __syncthreads();
  const auto count = static_cast<unsigned long long>(counts[thread]);
  if (count > 0) atomicAdd(&args.counts.pairs[thread], count);
}

// Which of an expert's slots a pair gets depends on the order of atomics, without effect on
// results: a slot's result depends on its own row alone.
// per_row: pairs of a row, whose experts are in one block.
__device__ void arrange_pairs(const ArrangeArgs& args, int per_row, int tile_rows) {
  __shared__ int counts[kArrangeThreads], next_slot[kArrangeThreads];
  __shared__ int scratch[kArrangeThreads / 32];
  const int rank = cluster_rank(), blocks = cluster_size();
  const int expert = static_cast<int>(threadIdx.x);
  const int64_t rows = args.num_pairs / per_row;
  const int end = static_cast<int>(rows * (rank + 1) / blocks) * per_row;
  const int first = static_cast<int>(rows * rank / blocks) * per_row + expert;
  counts[expert] = 0;
  __syncthreads();
  const auto num_local = static_cast<uint32_t>(args.num_local);
  for (int i = first; i < end; i += kArrangeThreads) {
    const uint32_t local = local_expert(args, i);
    if (local < num_local) atomicAdd(&counts[local], 1);
  }
  __syncthreads();
  if (blocks > 1) cluster_arrive(), cluster_wait();
  int count = 0, before = 0;  // of this expert, in all blocks and in those before this one
  for (int block = 0; block < blocks; ++block) {
    const int of_block = cluster_load(&counts[expert], block);
    count += of_block;
    if (block < rank) before += of_block;
  }
  int num_slots, num_tiles;
  const int begin = exclusive_sum(count, scratch, num_slots);
  const int tile = exclusive_sum((count + tile_rows - 1) / tile_rows, scratch, num_tiles);
  next_slot[expert] = begin + before;
  if (rank == 0) {
    if (expert < args.num_local) args.plan.begins[expert] = begin, args.plan.tiles[expert] = tile;
    if (expert == 0) {
      args.plan.begins[args.num_local] = num_slots;
      args.plan.tiles[args.num_local] = num_tiles;
    }
  }
  __syncthreads();
  for (int i = first; i < end; i += kArrangeThreads) {
    const uint32_t local = local_expert(args, i);
    const int slot = local < num_local ? atomicAdd(&next_slot[local], 1) : kNoSlot;
    args.plan.slots[i] = slot;
    if (slot != kNoSlot) args.plan.pairs[slot] = i;
  }
  if (blocks > 1) cluster_arrive(), cluster_wait();  // no block reads this one's counts any more
  if (args.counts.pairs != nullptr) count_pairs(args, first, end, counts);
}

__global__ void __launch_bounds__(kArrangeThreads) arrange_kernel(ArrangeArgs args, int tile_rows) {
  release_next();
  wait_for_previous();
  arrange_pairs(args, 1, tile_rows);
}

// A block chooses the experts of its rows, a warp for each, then arranges their pairs.
__global__ void __launch_bounds__(kArrangeThreads)
    route_and_arrange_kernel(RouteArgs chosen, ArrangeArgs args, int tile_rows) {
  extern __shared__ float words[];  // [warps][route_words()]
  release_next();
  wait_for_previous();
  const RouterSpec& spec = chosen.spec;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t rank = cluster_rank(), blocks = cluster_size();
  const int end = static_cast<int>(chosen.rows * (rank + 1) / blocks);
  float* of_warp = words + warp * route_words(spec);
  for (int row = static_cast<int>(chosen.rows * rank / blocks) + warp; row < end;
       row += kArrangeThreads / 32) {
    for (int i = lane; i < spec.num_experts; i += 32)
      of_warp[i] = chosen.logits[int64_t{row} * spec.num_experts + i];
    __syncwarp();
    route_row(spec, chosen.correction, of_warp, lane, chosen.experts + row * spec.top_k,
              chosen.weights + row * spec.top_k);
    __syncwarp();
  }
  __syncthreads();
  arrange_pairs(args, spec.top_k, tile_rows);
}

// LACKS_SLOTS: see CombineArgs; without it the loads of several pairs are in flight.
template <typename T, bool LACKS_SLOTS>
__global__ void __launch_bounds__(kPermuteThreads) combine_kernel(CombineArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const float gate =
      args.shared_gate == nullptr ? 1.0f : 1.0f / (1.0f + expf(-args.shared_gate[row]));
  for (int at = static_cast<int>(threadIdx.x) * 8; at < args.dim; at += kPermuteThreads * 8) {
    float sum[8] = {}, value[8];
    for (int i = 0; i < args.top_k; ++i) {
      const int64_t slot = args.slots[row * args.top_k + i];
      if (LACKS_SLOTS && slot == kNoSlot) continue;
      const float weight = args.weights[row * args.top_k + i];
      load8(static_cast<const T*>(args.x) + slot * args.dim + at, value);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += weight * value[j];
    }
    if (args.shared != nullptr) {
      load8(static_cast<const T*>(args.shared) + row * args.dim + at, value);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += gate * value[j];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] *= args.scale;
    if (args.residual != nullptr) {
      load8(static_cast<const T*>(args.residual) + row * args.dim + at, value);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += value[j];
    }
    store8(static_cast<T*>(args.y) + row * args.dim + at, sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(kPermuteThreads) copy_parts_kernel(CopyPartsArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < args.heads * args.count; i += kPermuteThreads) {
    const int64_t head = i / args.count, at = i % args.count;
    static_cast<T*>(args.y)[row * args.y_stride + head * args.y_head + args.to_begin + at] =
        static_cast<const T*>(
            args.x)[row * args.x_stride + head * args.x_head + args.from_begin + at];
  }
}

// num_local becomes the count of those that are here.
Result<ArrangeArgs> resolve(ArrangeArgs args) {
  if (args.num_pairs < 0 || args.num_experts < 1 || args.num_experts > kMaxExperts)
    return fail(
        invalid_argument("arrange: {} pairs of {} experts", args.num_pairs, args.num_experts));
  if (args.num_local == 0) args.num_local = args.num_experts - args.first_local;
  if (args.replicas.table != nullptr &&
      (args.replicas.positions == nullptr || args.replicas.num_slots != args.num_experts ||
       args.pairs_per_row < 1))
    return fail(invalid_argument("arrange: replicas in {} of {} slots", args.replicas.num_slots,
                                 args.num_experts));
  if (args.first_local < 0 || args.num_local < 1 ||
      args.num_local > args.num_experts - args.first_local)
    return fail(invalid_argument("arrange: experts {} to {} of {}", args.first_local,
                                 args.first_local + args.num_local - 1, args.num_experts));
  return args;
}

}  // namespace

Status arrange(const ArrangeArgs& arguments, const LaunchOptions& launch) {
  ESP_ASSIGN_OR_RETURN(const ArrangeArgs args, resolve(arguments));
  if (args.num_pairs == 0) return {};
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const bool alone = args.num_pairs <= kPairsOfOneBlock || traits.compute_capability < 90;
  const int32_t blocks = alone ? 1 : kArrangeBlocks;
  return launch_clusters("arrange", arrange_kernel, dim3(static_cast<unsigned>(blocks)),
                         kArrangeThreads, blocks, 0, launch, args,
                         grouped_tile_rows(args.num_pairs, args.num_experts));
}

Status route_and_arrange(const RouteArgs& chosen, const ArrangeArgs& arguments,
                         const LaunchOptions& launch) {
  ESP_ASSIGN_OR_RETURN(const ArrangeArgs args, resolve(arguments));
  const int32_t num_experts =
      args.replicas.table == nullptr ? args.num_experts : args.replicas.num_experts;
  if (args.experts != chosen.experts || num_experts != chosen.spec.num_experts ||
      args.num_pairs != chosen.rows * chosen.spec.top_k)
    return invalid_argument("route_and_arrange: {} pairs of {} experts, {} rows", args.num_pairs,
                            args.num_experts, chosen.rows);
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  constexpr int32_t kRowsOfBlock = kArrangeThreads / 32;
  const bool alone = chosen.rows <= kRowsOfBlock;
  const size_t bytes = sizeof(float) * kRowsOfBlock * static_cast<size_t>(route_words(chosen.spec));
  const bool together =
      chosen.rows > 0 && bytes <= kMostRouteBytes &&
      (alone || (traits.compute_capability >= 90 && chosen.rows <= kRowsOfBlock * kArrangeBlocks));
  if (!together) {
    ESP_RETURN_IF_ERROR(route(chosen, launch));
    return arrange(args, launch);
  }
  ESP_RETURN_IF_ERROR(check_route(chosen));
  ESP_RETURN_IF_ERROR(allow_shared("route", route_and_arrange_kernel, bytes));
  const int32_t blocks = alone ? 1 : kArrangeBlocks;
  return launch_clusters("route", route_and_arrange_kernel, dim3(static_cast<unsigned>(blocks)),
                         kArrangeThreads, blocks, bytes, launch, chosen, args,
                         grouped_tile_rows(args.num_pairs, args.num_experts));
}

Status combine(const CombineArgs& args, const LaunchOptions& launch) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "combine: F16 is not supported");
  if (args.rows < 0 || args.dim < 8 || args.dim % 8 != 0 || args.top_k < 0)
    return invalid_argument("combine: {} rows of {}, {} experts each", args.rows, args.dim,
                            args.top_k);
  if (args.rows == 0) return {};
  const auto start = [&](auto* kernel) {
    return launch_kernel("combine", kernel, dim3(static_cast<unsigned>(args.rows)), kPermuteThreads,
                         0, launch, args);
  };
  if (args.type == DType::kBFloat16)
    return start(args.lacks_slots ? combine_kernel<bf16, true> : combine_kernel<bf16, false>);
  return start(args.lacks_slots ? combine_kernel<float, true> : combine_kernel<float, false>);
}

Status copy_parts(const CopyPartsArgs& args, const LaunchOptions& launch) {
  if (args.rows < 0 || args.heads < 1 || args.count < 1)
    return invalid_argument("copy_parts: {} of {} heads in {} rows", args.count, args.heads,
                            args.rows);
  if (args.rows == 0) return {};
  return launch_kernel(
      "copy_parts",
      args.type == DType::kFloat32 ? copy_parts_kernel<float> : copy_parts_kernel<bf16>,
      dim3(static_cast<unsigned>(args.rows)), kPermuteThreads, 0, launch, args);
}

}  // namespace espalier::kernels::cuda
