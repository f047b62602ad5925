// The attention of one new token, by all blocks of layer_stack(): a block has one key/value head
// and a run of keys, a warp takes some keys at a time, eight elements of a head a thread.
#pragma once

#include "kernels/layer_stack/cuda_params.cuh"

namespace espalier::kernels::cuda::stack {

// What a block has of a layer's keys.
struct KeyRange {
  int head, split, begin, end, active;  // active: blocks with keys of this head
};

__device__ __forceinline__ KeyRange key_range(const Params& p, int sliding_window, int keys) {
  const int splits = static_cast<int>(gridDim.x) / p.shape.num_kv_heads;
  const int first = sliding_window > 0 ? max(0, keys - sliding_window) : 0;
  const int each =
      ((keys - first + splits - 1) / splits + kKeysMultiple - 1) / kKeysMultiple * kKeysMultiple;
  KeyRange r;
  r.head = static_cast<int>(blockIdx.x) / splits;
  r.split = static_cast<int>(blockIdx.x) % splits;
  r.active = (keys - first + each - 1) / each;
  r.begin = first + r.split * each;
  r.end = min(keys, r.begin + each);
  if (r.head >= p.shape.num_kv_heads || r.split >= r.active) r.head = -1;
  return r;
}

// Where the keys of a position begin, in elements.
__device__ __forceinline__ int64_t row_of(const Params& p, int key, int head) {
  const int page = p.lanes.page_tables[p.lanes.page_begin[0] + (key >> p.page_shift)];
  return page * p.kv.page_stride + (key & (p.kv.page_size - 1)) * p.kv.token_stride +
         head * p.kv.head_stride;
}

// Asks for the first keys of the block's range, which this step does not change, to come nearer.
__device__ __forceinline__ void prefetch_keys(const Params& p, const StackLayer& layer,
                                              const KeyRange& r) {
  if (r.head < 0) return;
  const int lines = (p.shape.head_dim * 2 + 127) / 128, each = 2 * lines;
  const int count = min(r.end - r.begin, kPrefetchedKeys) * each;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kMathThreads) {
    const int part = i % each;
    const char* plane = static_cast<const char*>(part < lines ? layer.k : layer.v);
    const char* at = plane + row_of(p, r.begin + i / each, r.head) * 2 + part % lines * 128;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

// One head, raw, from the product: normed, rotated and rounded into `row` (shared memory) by a
// warp.
__device__ inline void turn_head(const Params& p, const StackLayer& layer, const bf16* from,
                                 const void* norm, const float* cosine, const float* sine,
                                 float* row) {
  const int lane = static_cast<int>(threadIdx.x) % 32, dim = p.shape.head_dim;
  float sum = 0;
#pragma unroll 1
  for (int i = lane; i < dim; i += 32) {
    row[i] = __bfloat162float(load_fresh(from + i));
    sum += row[i] * row[i];
  }
  __syncwarp();
  if (norm != nullptr) {
    const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + layer.qk_epsilon);
#pragma unroll 1
    for (int i = lane; i < dim; i += 32)
      row[i] = round_bf16(row[i] * scale * __bfloat162float(static_cast<const bf16*>(norm)[i]));
    __syncwarp();
  }
  const int half = layer.frequencies == nullptr ? 0 : layer.rotary_dim / 2;
#pragma unroll 1
  for (int i = lane; i < half; i += 32) {
    float& first = row[layer.interleaved ? 2 * i : i];
    float& second = row[layer.interleaved ? 2 * i + 1 : i + half];
    const float a = first, b = second;
    first = round_bf16(a * cosine[i] - b * sine[i]);
    second = round_bf16(b * cosine[i] + a * sine[i]);
  }
  __syncwarp();
}

// The running softmax of a thread's keys: its eight elements of G heads.
template <int G>
struct Running {
  float max[G], sum[G], acc[G][8];
  __device__ Running() {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      max[g] = -FLT_MAX, sum[g] = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[g][i] = 0;
    }
  }
};

// Out of line: few models have it, and instructions that are skipped take their cache all the same.
__device__ __noinline__ float capped(float score, const StackLayer& layer) {
  return layer.softcap * tanhf(score * layer.scale / layer.softcap);
}

template <int G>
constexpr int kKeysAtOnce = G > 4 ? 2 : 4;  // of a thread

template <int G>
__device__ __forceinline__ void take_keys(const Params& p, const StackLayer& layer,
                                          const KeyRange& r, int base, const float (&q)[G][8],
                                          Running<G>& run) {
  const int lane = static_cast<int>(threadIdx.x) % 32, width = p.shape.head_dim / 8;
  const int per_load = 32 / width;
  uint4 k[kKeysAtOnce<G>], v[kKeysAtOnce<G>];
#pragma unroll
  for (int u = 0; u < kKeysAtOnce<G>; ++u) {
    const int key = base + u * per_load + lane / width;
    const int64_t at = row_of(p, min(key, r.end - 1), r.head) + lane % width * 8;
    k[u] = __ldcg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(layer.k) + at));
    v[u] = __ldcg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(layer.v) + at));
  }
  float score[kKeysAtOnce<G>][G];
  const float factor = (layer.softcap > 0 ? 1.0f : layer.scale) * 1.4426950408889634f;
#pragma unroll
  for (int u = 0; u < kKeysAtOnce<G>; ++u) {
    float value[8];
    unpack8(k[u], value);
#pragma unroll
    for (int g = 0; g < G; ++g) {
      score[u][g] = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) score[u][g] += q[g][i] * value[i];
    }
  }
#pragma unroll 1
  for (int step = width / 2; step > 0; step /= 2) {
#pragma unroll
    for (int u = 0; u < kKeysAtOnce<G>; ++u)
#pragma unroll
      for (int g = 0; g < G; ++g) score[u][g] += __shfl_xor_sync(~0u, score[u][g], step);
  }
#pragma unroll
  for (int u = 0; u < kKeysAtOnce<G>; ++u) {
    const bool there = base + u * per_load + lane / width < r.end;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if (layer.softcap > 0) score[u][g] = capped(score[u][g], layer);
      score[u][g] = there ? score[u][g] * factor : -FLT_MAX;
    }
  }
#pragma unroll
  for (int g = 0; g < G; ++g) {
    float most = run.max[g];
#pragma unroll
    for (int u = 0; u < kKeysAtOnce<G>; ++u) most = fmaxf(most, score[u][g]);
    const float keep = exp2_fast(run.max[g] - most);
    run.max[g] = most;
    run.sum[g] *= keep;
#pragma unroll
    for (int i = 0; i < 8; ++i) run.acc[g][i] *= keep;
  }
#pragma unroll
  for (int u = 0; u < kKeysAtOnce<G>; ++u) {
    float value[8];
    unpack8(v[u], value);
    const bool there = base + u * per_load + lane / width < r.end;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const float weight = there ? exp2_fast(score[u][g] - run.max[g]) : 0.0f;
      run.sum[g] += weight;
#pragma unroll
      for (int i = 0; i < 8; ++i) run.acc[g][i] += weight * value[i];
    }
  }
}

// Adds what other threads of the warp have of the same elements.
template <int G>
__device__ __forceinline__ void merge_warp(int width, Running<G>& run) {
  for (int step = width; step < 32; step *= 2) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const float other = __shfl_xor_sync(~0u, run.max[g], step);
      const float most = fmaxf(run.max[g], other);
      const float mine = exp2_fast(run.max[g] - most), theirs = exp2_fast(other - most);
      run.max[g] = most;
      run.sum[g] = run.sum[g] * mine + __shfl_xor_sync(~0u, run.sum[g], step) * theirs;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        run.acc[g][i] = run.acc[g][i] * mine + __shfl_xor_sync(~0u, run.acc[g][i], step) * theirs;
    }
  }
}

// Two elements of the parts (accumulators, and largest and sum of each, so far apart) as one. Loads
// of eight parts are under way at once.
struct Merged {
  float2 value = {0, 0};
  float max = -FLT_MAX, sum = 0;
};
__device__ __noinline__ Merged merge_parts(const float* acc, const float* max_sum, int parts,
                                           int acc_stride, int max_sum_stride) {
  Merged all;
#pragma unroll 1
  for (int first = 0; first < parts; first += 8) {
    float2 value[8], max_and_sum[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const int i = min(first + u, parts - 1);
      value[u] = load_fresh2(acc + i * acc_stride);
      max_and_sum[u] = load_fresh2(max_sum + i * max_sum_stride);
    }
    float most = all.max;
#pragma unroll
    for (const float2& m : max_and_sum) most = fmaxf(most, m.x);
    const float keep = exp2_fast(all.max - most);
    all.max = most, all.sum *= keep, all.value.x *= keep, all.value.y *= keep;
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const float weight = first + u < parts ? exp2_fast(max_and_sum[u].x - most) : 0.0f;
      all.sum += max_and_sum[u].y * weight;
      all.value.x += value[u].x * weight, all.value.y += value[u].y * weight;
    }
  }
  return all;
}
__device__ __forceinline__ void store_merged(bf16* to, const Merged& m) {
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(m.value.x / m.sum, m.value.y / m.sum);
}

// The whole of it, from p.qkv to p.attended; at its end the heads that are done are counted in
// p.counters. Shared memory: `scratch`, of attend_bytes().
template <int G>
__device__ __forceinline__ void attend(const Params& p, const StackLayer& layer, const KeyRange& r,
                                       float* scratch, int keys, const float* cosine,
                                       const float* sine) {
  if (r.head < 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int dim = p.shape.head_dim, group = p.shape.num_heads / p.shape.num_kv_heads;
  const int width = dim / 8;
  float* queries = scratch;                      // [G + 1][dim]; the last row is the new key
  float* part_acc = queries + (G + 1) * dim;     // [warps][G][dim]
  float* part_ms = part_acc + kWarps * G * dim;  // [warps][G][2]
  const bool newest = r.end == keys;

  // q's heads, then the new key and value.
#pragma unroll 1
  for (int task = warp; task < G + (newest ? 2 : 0); task += kWarps) {
    const bf16* kv = p.qkv + (p.shape.num_heads + r.head) * dim;
    const int64_t to = task < G ? 0 : row_of(p, keys - 1, r.head);
    if (task == G + 1) {
#pragma unroll 1
      for (int i = lane; i < dim; i += 32)
        static_cast<bf16*>(layer.v)[to + i] = load_fresh(kv + p.shape.num_kv_heads * dim + i);
      continue;
    }
    const bool is_key = task == G;
    if (task >= group && !is_key) continue;
    turn_head(p, layer, is_key ? kv : p.qkv + (r.head * group + task) * dim,
              is_key ? layer.k_norm : layer.q_norm, cosine, sine, queries + task * dim);
    if (!is_key) continue;
#pragma unroll 1
    for (int i = lane; i < dim; i += 32)
      static_cast<bf16*>(layer.k)[to + i] = __float2bfloat16_rn(queries[G * dim + i]);
  }
  part_sync(1, kMathThreads);

  Running<G> run;
  {
    float q[G][8];
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        q[g][i] = g < group ? queries[g * dim + lane % width * 8 + i] : 0.0f;
    const int step = 32 / width * kKeysAtOnce<G>;
#pragma unroll 1
    for (int base = r.begin + warp * step; base < r.end; base += kWarps * step)
      take_keys<G>(p, layer, r, base, q, run);
  }
  merge_warp<G>(width, run);
#pragma unroll
  for (int g = 0; g < G; ++g) {
    if (lane < width)
#pragma unroll
      for (int i = 0; i < 8; ++i) part_acc[(warp * G + g) * dim + lane * 8 + i] = run.acc[g][i];
    if (lane == 0) {
      part_ms[(warp * G + g) * 2] = run.max[g];
      part_ms[(warp * G + g) * 2 + 1] = run.sum[g];
    }
  }
  part_sync(1, kMathThreads);

  bf16* attended = p.attended + r.head * group * dim;
  const int splits = static_cast<int>(gridDim.x) / p.shape.num_kv_heads, count = group * dim;
  float* all_acc = p.partial + static_cast<int64_t>(r.head) * splits * group * (dim + 2);
  float* all_ms = all_acc + static_cast<int64_t>(splits) * count;
#pragma unroll 1
  for (int i = 2 * static_cast<int>(threadIdx.x); i < count; i += 2 * kMathThreads) {
    const int g = i / dim;
    const Merged m = merge_parts(part_acc + i, part_ms + g * 2, kWarps, G * dim, G * 2);
    if (r.active == 1) {
      store_merged(attended + i, m);
      continue;
    }
    __stcg(reinterpret_cast<float2*>(all_acc + r.split * count + i), m.value);
    if (i % dim == 0)
      __stcg(reinterpret_cast<float2*>(all_ms) + r.split * group + g, make_float2(m.max, m.sum));
  }
  part_sync(1, kMathThreads);
  if (r.active > 1) {
    int* last = reinterpret_cast<int*>(part_ms);  // free by now
    if (threadIdx.x == 0) {
      __threadfence();
      int* arrived = p.counters->arrived + r.head;
      *last = atomicAdd(arrived, 1) == r.active - 1;
      if (*last) {
        *arrived = 0;
        __threadfence();
      }
    }
    part_sync(1, kMathThreads);
    if (*last == 0) return;
#pragma unroll 1
    for (int i = 2 * static_cast<int>(threadIdx.x); i < count; i += 2 * kMathThreads)
      store_merged(attended + i,
                   merge_parts(all_acc + i, all_ms + i / dim * 2, r.active, count, group * 2));
    part_sync(1, kMathThreads);
  }
  if (threadIdx.x == 0) count_release(&p.counters->heads_done);
}

}  // namespace espalier::kernels::cuda::stack
