// Attention for every shape and for float32: one block for a token and a head, four warps over the
// keys in turn, float32 arithmetic without tensor cores, online softmax, merged in shared memory.
// q [tokens, heads, head_dim up to 576], K and V in pages, out as q. It reads all keys once for
// each head, so it is for tests, small models and shapes without a kernel of their own.
#include <cuda_fp8.h>

#include "kernels/attention/attention_device.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kGenericWarps = 4;

// An element of the keys or values: e4m3 in pages of codes, else the type of the queries.
template <typename KV>
__device__ __forceinline__ float kv_float(KV value) {
  if constexpr (std::is_same_v<KV, __nv_fp8_e4m3>)
    return float(value);
  else
    return to_float(value);
}

// KV: of keys and values. PER_LANE: elements of a head that each lane holds. ahead: of tokens that
// see positions behind their own alone.
template <typename T, typename KV, int PER_LANE>
__global__ void __launch_bounds__(kGenericWarps * 32)
    attention_generic_kernel(AttentionArgs args, bool ahead) {
  __shared__ float outs[kGenericWarps][32 * PER_LANE];
  __shared__ float largest[kGenericWarps], sums[kGenericWarps];
  release_next();
  wait_for_previous();
  const EntryArrays& entries = args.entries;
  const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  if (token >= entries.query_begin[entries.num_entries]) return;
  const int entry = bucket_of(entries.query_begin, entries.num_entries, token);
  const int own = entries.prefix_len[entry] + token - entries.query_begin[entry];
  const int seen = args.last_seen != nullptr ? args.last_seen[token] : -1;
  if (ahead && seen < 0) return;
  const int last = seen < 0 ? own : seen;
  const int window = args.shape.sliding_window;
  const int first = window > 0 ? max(0, own - window + 1) : 0;
  const int32_t* pages = entries.page_tables + entries.page_begin[entry];
  const int kv_head = head / (args.shape.num_heads / args.shape.num_kv_heads);
  const int dim = args.shape.head_dim;
  const int warp = static_cast<int>(threadIdx.x) / 32, thread = static_cast<int>(threadIdx.x) % 32;

  const T* query = static_cast<const T*>(args.q) + token * args.q_stride + int64_t{head} * dim;
  float q[PER_LANE] = {}, out[PER_LANE] = {};
#pragma unroll
  for (int i = 0; i < PER_LANE; ++i)
    if (thread + 32 * i < dim) q[i] = to_float(query[thread + 32 * i]);
  float best = kMasked, sum = 0;
  for (int position = first + warp; position <= last; position += kGenericWarps) {
    const int64_t at = kv_offset(args.kv, kv_page(args.kv, pages, position), position, kv_head);
    const KV* key = static_cast<const KV*>(args.kv.k) + at;
    const KV* value = static_cast<const KV*>(args.kv.v) + at;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i)
      if (thread + 32 * i < dim) dot += q[i] * kv_float(key[thread + 32 * i]);
    const float score = to_score(warp_sum(dot), args.scale, args.softcap);
    const float now = fmaxf(best, score);
    const float keep = exp2f(best - now), weight = exp2f(score - now);
    best = now;
    sum = sum * keep + weight;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i)
      if (thread + 32 * i < dim) out[i] = out[i] * keep + weight * kv_float(value[thread + 32 * i]);
  }
#pragma unroll
  for (int i = 0; i < PER_LANE; ++i) outs[warp][thread + 32 * i] = out[i];
  if (thread == 0) largest[warp] = best, sums[warp] = sum;
  __syncthreads();
  float all = args.sinks != nullptr ? args.sinks[head] * kLog2E : kMasked;
  for (int w = 0; w < kGenericWarps; ++w) all = fmaxf(all, largest[w]);
  float total = args.sinks != nullptr ? exp2f(args.sinks[head] * kLog2E - all) : 0.0f;
  for (int w = 0; w < kGenericWarps; ++w) total += sums[w] * exp2f(largest[w] - all);
  T* to = static_cast<T*>(args.out) + token * args.out_stride + int64_t{head} * dim;
  for (int i = threadIdx.x; i < dim; i += kGenericWarps * 32) {
    float value = 0;
    for (int w = 0; w < kGenericWarps; ++w) value += outs[w][i] * exp2f(largest[w] - all);
    to[i] = from_float<T>(value / total);
  }
}

Status launch_generic(const AttentionArgs& args, bool ahead, const LaunchOptions& launch) {
  const dim3 grid(static_cast<unsigned>(args.entries.num_tokens),
                  static_cast<unsigned>(args.shape.num_heads));
  constexpr int kUsual = 256 / 32, kMost = kMaxHeadDim / 32;
  const bool usual = args.shape.head_dim <= 32 * kUsual;
  auto kernel = usual ? attention_generic_kernel<float, float, kUsual>
                      : attention_generic_kernel<float, float, kMost>;
  if (args.shape.kv_e4m3)
    kernel = usual ? attention_generic_kernel<bf16, __nv_fp8_e4m3, kUsual>
                   : attention_generic_kernel<bf16, __nv_fp8_e4m3, kMost>;
  else if (args.shape.type == DType::kBFloat16)
    kernel = usual ? attention_generic_kernel<bf16, bf16, kUsual>
                   : attention_generic_kernel<bf16, bf16, kMost>;
  return launch_kernel("attention", kernel, grid, kGenericWarps * 32, 0, launch, args, ahead);
}

}  // namespace

Status attention_generic(const AttentionArgs& args, const LaunchOptions& launch) {
  return launch_generic(args, false, launch);
}

Status attention_ahead(const AttentionArgs& args, const LaunchOptions& launch) {
  return launch_generic(args, true, {.stream = launch.stream});  // behind kernels that overlap
}

}  // namespace espalier::kernels::cuda
