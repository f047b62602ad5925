// attention_widen: keys and values of e4m3 of a step's prompts, widened to bfloat16 rows.
// k, v: pages of codes -> PlanView::widened_k, widened_v [rows][kv head][head_dim] of bfloat16.
// The prefill kernel reads a prompt's keys once for each tile of its queries; widened once, they
// come by bulk copies at the speed of bfloat16, where its producer would widen them for every tile.
// Parallel: 16 codes of a key and of its value a thread, over a fixed grid, since only the device
// knows the number of rows. Roof: memory, 6 x head_dim x kv_heads bytes a position.
#include "kernels/attention/attention_device.cuh"
#include "kernels/attention/kv_e4m3.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kWidenThreads = 256, kWidenBlocks = 8;  // blocks of a multiprocessor

__device__ __forceinline__ void widen(const void* plane, int64_t from, void* rows, int64_t to) {
  const uint4 codes =
      __ldcg(reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(plane) + from));
  uint4 lower, upper;
  bfloat16s_of_e4m3(codes, lower, upper);
  auto* out = reinterpret_cast<uint4*>(static_cast<bf16*>(rows) + to);
  out[0] = lower;
  out[1] = upper;
}

__global__ void __launch_bounds__(kWidenThreads)
    widen_kernel(const AttentionArgs args, const PlanView plan) {
  release_next();
  wait_for_previous();
  const EntryArrays& entries = args.entries;
  const int vectors = args.shape.head_dim / 16, heads = args.shape.num_kv_heads;
  const int row_vectors = vectors * heads;
  const int rows = plan.header->widened_rows;
  const int64_t all = int64_t{rows} * row_vectors;
  const int64_t step = int64_t{gridDim.x} * kWidenThreads;
  for (int64_t i = int64_t{blockIdx.x} * kWidenThreads + threadIdx.x; i < all; i += step) {
    const int row = static_cast<int>(i / row_vectors), in_row = static_cast<int>(i % row_vectors);
    const int entry = bucket_of(plan.widen_begin, entries.num_entries, row);
    const int position = first_visible(entries.prefix_len[entry], args.shape.sliding_window) + row -
                         plan.widen_begin[entry];
    const int page = kv_page(args.kv, entries.page_tables + entries.page_begin[entry], position);
    const int64_t from =
        kv_offset(args.kv, page, position, in_row / vectors) + in_row % vectors * 16;
    widen(args.kv.k, from, plan.widened_k, i * 16);
    widen(args.kv.v, from, plan.widened_v, i * 16);
  }
}

}  // namespace

Status attention_widen(const AttentionArgs& args, const PlanView& plan, int32_t multiprocessors,
                       const LaunchOptions& launch) {
  return launch_kernel("attention_widen", widen_kernel,
                       dim3(static_cast<unsigned>(multiprocessors * kWidenBlocks)), kWidenThreads,
                       0, launch, args, plan);
}

}  // namespace espalier::kernels::cuda
