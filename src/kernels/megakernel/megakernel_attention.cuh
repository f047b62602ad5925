// Attention of one new token, by all blocks of the megakernel. q, k, v [heads, head_dim] from the
// qkv GEMV, K and V in pages, out [heads, head_dim]; bfloat16, float32 sums.
// Parallel: a kv head is shared by (blocks / heads) blocks, each with a range of keys; a warp takes
// some keys at a time, eight elements of a head a thread. The last of a head's blocks to finish
// merges the partial results. Norm and rotation of q and k are done where they are read, and the
// block that has the last keys writes the new key and value to their page.
// Pipeline: the first two loads of each thread are issued into registers before the grid barrier
// that waits for q; addresses of keys are looked up once for all layers.
#pragma once

#include "kernels/megakernel/megakernel_params.cuh"

namespace espalier::kernels::cuda::megakernel_impl {

// The range of a layer's keys, before the new one, that a block has.
struct KeyRange {
  int head, split, begin, end, active;  // active: blocks with keys of this head
  bool newest;                          // also takes the new key
};

__device__ __forceinline__ KeyRange key_range(const Params& p, int sliding_window, int keys) {
  const int splits = static_cast<int>(gridDim.x) / p.shape.num_kv_heads;
  const int first = sliding_window > 0 ? max(0, keys - sliding_window) : 0, old = keys - 1 - first;
  const int each = max(
      kMinKeys, ((old + splits - 1) / splits + kKeysMultiple - 1) / kKeysMultiple * kKeysMultiple);
  KeyRange r;
  r.head = static_cast<int>(blockIdx.x) / splits;
  r.split = static_cast<int>(blockIdx.x) % splits;
  r.active = max(1, (old + each - 1) / each);
  r.begin = first + r.split * each;
  r.end = min(keys - 1, r.begin + each);
  r.newest = r.split == r.active - 1;
  if (r.head >= p.shape.num_kv_heads || r.split >= r.active) r.head = -1;
  return r;
}

// The address of a position's key, in elements.
__device__ __forceinline__ int64_t row_of(const Params& p, int key, int head) {
  const int page = p.entries.page_tables[p.entries.page_begin[0] + (key >> p.page_shift)];
  return page * p.kv.page_stride + (key & (p.kv.page_size - 1)) * p.kv.token_stride +
         head * p.kv.head_stride;
}

// Caches the addresses of the block's first keys, in units of 16 bytes: all layers share the pages.
__device__ __forceinline__ void cache_offsets(const Params& p, const KeyRange& r,
                                              uint32_t* offsets) {
  if (r.head < 0) return;
  const int count = min(r.end - r.begin, p.offsets);
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kMathThreads)
    offsets[i] = static_cast<uint32_t>(row_of(p, r.begin + i, r.head) / 8);
}

// Normalises, rotates and rounds one raw head from the qkv GEMV into `row` (shared memory), by a
// warp.
__device__ inline void normalize_and_rotate(const Params& p, const MegakernelLayer& layer,
                                            const bf16* from, const void* norm, const float* cosine,
                                            const float* sine, float* row) {
  const int lane = static_cast<int>(threadIdx.x) % 32, dim = p.shape.head_dim;
  float value[8] = {}, weight[8];
  if (lane * 8 < dim) {
    if (norm != nullptr) load8(static_cast<const bf16*>(norm) + lane * 8, weight);
    unpack8(__ldcg(reinterpret_cast<const uint4*>(from + lane * 8)), value);
  }
  if (norm != nullptr) {
    float sum = 0;
#pragma unroll
    for (float v : value) sum += v * v;
    const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + layer.qk_epsilon);
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] = round_bf16(value[i] * scale * weight[i]);
  }
  if (lane * 8 < dim) store8(row + lane * 8, value);
  __syncwarp();
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

// The online softmax of a thread's keys: its eight elements of G heads.
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

template <int G>
constexpr int kKeysAtOnce = G > 4 ? 1 : 2;  // of a thread

// A thread's share of some keys and values of a warp.
template <int G>
struct Keys {
  uint4 k[kKeysAtOnce<G>], v[kKeysAtOnce<G>];
  int left = 0;  // of the warp's keys; those beyond repeat the last
};

template <int G>
__device__ __forceinline__ void take_keys(const Params& p, const MegakernelLayer& layer,
                                          const Keys<G>& keys, const float (&q)[G][8],
                                          Running<G>& run) {
  const int lane = static_cast<int>(threadIdx.x) % 32, width = p.shape.head_dim / 8;
  const int per_load = 32 / width;
  float score[kKeysAtOnce<G>][G];
  const float cap = layer.softcap, scale = layer.scale;
#pragma unroll
  for (int u = 0; u < kKeysAtOnce<G>; ++u) {
    float value[8];
    unpack8(keys.k[u], value);
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
  if (cap > 0) {  // cap * tanh(score * scale / cap)
#pragma unroll
    for (int u = 0; u < kKeysAtOnce<G>; ++u)
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const float e = __expf(2 * score[u][g] * scale / cap);
        score[u][g] = cap * (1 - __fdividef(2, e + 1));
      }
  }
  const float factor = (cap > 0 ? 1.0f : scale) * 1.4426950408889634f;
#pragma unroll
  for (int u = 0; u < kKeysAtOnce<G>; ++u) {
    const bool there = u * per_load + lane / width < keys.left;
#pragma unroll
    for (int g = 0; g < G; ++g) {
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
    unpack8(keys.v[u], value);
    const bool there = u * per_load + lane / width < keys.left;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const float weight = there ? exp2_fast(score[u][g] - run.max[g]) : 0.0f;
      run.sum[g] += weight;
#pragma unroll
      for (int i = 0; i < 8; ++i) run.acc[g][i] += weight * value[i];
    }
  }
}

// Merges the states of the warp's threads that have the same elements.
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

// Merges two elements of `parts` partial results (accumulators, and largest score and sum, at these
// strides). Loads of AT_ONCE partial results are in flight at once.
struct Merged {
  float2 value = {0, 0};
  float max = -FLT_MAX, sum = 0;
};
template <int AT_ONCE>
__device__ __noinline__ Merged merge_partials(const float* acc, const float* max_sum, int parts,
                                              int acc_stride, int max_sum_stride) {
  Merged all;
#pragma unroll 1
  for (int first = 0; first < parts; first += AT_ONCE) {
    float2 value[AT_ONCE], max_and_sum[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; ++u) {
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
    for (int u = 0; u < AT_ONCE; ++u) {
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

// A block's share of the attention of one layer. Constructed before q is written; run() after.
template <int G>
class Attention {
 public:
  __device__ __forceinline__ Attention(const Params& p, const MegakernelLayer& layer,
                                       const KeyRange& r, const uint32_t* offsets)
      : p_(p), layer_(layer), r_(r), offsets_(offsets) {
    if (r_.head < 0) return;
    const int width = p_.shape.head_dim / 8;
    step_ = 32 / width * kKeysAtOnce<G>;
    base_ = r_.begin + static_cast<int>(threadIdx.x) / 32 * step_;
    fetch(base_, now_);
    fetch(base_ + kWarps * step_, next_);
  }

  // Computes from p.qkv to p.attended and counts the finished heads in p.counters. scratch: shared
  // memory, [G + 2 + warps * G][dim] and [warps][G][2].
  __device__ __forceinline__ void run(float* scratch, int keys, const float* cosine,
                                      const float* sine) {
    if (r_.head < 0) return;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int dim = p_.shape.head_dim, group = p_.shape.num_heads / p_.shape.num_kv_heads;
    const int width = dim / 8;
    float* queries = scratch;                            // [G + 2][dim]; last the new key and value
    float* partial_acc = queries + (G + 2) * dim;        // [warps][G][dim]
    float* partial_ms = partial_acc + kWarps * G * dim;  // [warps][G][2]
    prepare_heads(queries, keys, cosine, sine);
    named_barrier_sync(1, kMathThreads);

    Running<G> run;
    {
      float q[G][8];
#pragma unroll
      for (int g = 0; g < G; ++g)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          q[g][i] = g < group ? queries[g * dim + lane % width * 8 + i] : 0.0f;
      bool takes_new = r_.newest && warp == kWarps - 1;
#pragma unroll 1
      for (;; base_ += kWarps * step_) {
        if (now_.left <= 0) {
          if (!takes_new) break;
          takes_new = false;
          const float* row = queries + G * dim + lane % width * 8;
          const uint4 k = pack8(row), v = pack8(row + dim);
#pragma unroll
          for (int u = 0; u < kKeysAtOnce<G>; ++u) now_.k[u] = k, now_.v[u] = v;
          now_.left = 1;
        }
        take_keys<G>(p_, layer_, now_, q, run);
        now_ = next_;
        fetch(base_ + 2 * kWarps * step_, next_);
      }
    }
    merge_warp<G>(width, run);
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if (lane < width) store8(partial_acc + (warp * G + g) * dim + lane * 8, run.acc[g]);
      if (lane == 0) {
        partial_ms[(warp * G + g) * 2] = run.max[g];
        partial_ms[(warp * G + g) * 2 + 1] = run.sum[g];
      }
    }
    named_barrier_sync(1, kMathThreads);
    merge_blocks(partial_acc, partial_ms);
  }

 private:
  // The key that this thread loads as the u-th of a warp's keys from `base` on; the last key beyond
  // the end.
  __device__ __forceinline__ int key_at(int base, int u) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, width = p_.shape.head_dim / 8;
    return min(base + u * (32 / width) + lane / width, r_.end - 1);
  }
  __device__ __forceinline__ void fetch(int base, Keys<G>& to) const {
    to.left = r_.end - base;
    if (to.left <= 0) return;
    const int lane = static_cast<int>(threadIdx.x) % 32, width = p_.shape.head_dim / 8;
    // All of a warp's keys take one branch: a branch for each would wait for one page number after
    // the other.
    const bool kept = min(base + step_, r_.end) - r_.begin <= p_.offsets;
    int64_t at[kKeysAtOnce<G>];
    if (kept) {
#pragma unroll
      for (int u = 0; u < kKeysAtOnce<G>; ++u)
        at[u] = int64_t{offsets_[key_at(base, u) - r_.begin]} * 8;
    } else {
#pragma unroll
      for (int u = 0; u < kKeysAtOnce<G>; ++u) at[u] = row_of(p_, key_at(base, u), r_.head);
    }
#pragma unroll
    for (int u = 0; u < kKeysAtOnce<G>; ++u) {
      const int64_t from = at[u] + lane % width * 8;
      to.k[u] = __ldcg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(layer_.k) + from));
      to.v[u] = __ldcg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(layer_.v) + from));
    }
  }

  // Prepares q's heads, then the new key and value, which also go to their page.
  __device__ __forceinline__ void prepare_heads(float* queries, int keys, const float* cosine,
                                                const float* sine) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int dim = p_.shape.head_dim, group = p_.shape.num_heads / p_.shape.num_kv_heads;
    const bf16* key = p_.qkv + (p_.shape.num_heads + r_.head) * dim;
#pragma unroll 1
    for (int task = warp; task < G + (r_.newest ? 2 : 0); task += kWarps) {
      if (task >= group && task < G) continue;
      float* row = queries + task * dim;
      if (task == G + 1) {
        if (lane * 8 < dim) {
          float value[8];
          unpack8(
              __ldcg(reinterpret_cast<const uint4*>(key + p_.shape.num_kv_heads * dim + lane * 8)),
              value);
          store8(row + lane * 8, value);
        }
        __syncwarp();
      } else {
        normalize_and_rotate(p_, layer_, task == G ? key : p_.qkv + (r_.head * group + task) * dim,
                             task == G ? layer_.k_norm : layer_.q_norm, cosine, sine, row);
      }
      if (task < G || lane * 8 >= dim) continue;
      float value[8];
      load8(row + lane * 8, value);
      store8(static_cast<bf16*>(task == G ? layer_.k : layer_.v) + row_of(p_, keys - 1, r_.head) +
                 lane * 8,
             value);
    }
  }

  // Merges the warps' partial results, then, in the last of a head's blocks, those of the blocks.
  __device__ __forceinline__ void merge_blocks(const float* partial_acc, float* partial_ms) const {
    const int dim = p_.shape.head_dim, group = p_.shape.num_heads / p_.shape.num_kv_heads;
    bf16* attended = p_.attended + r_.head * group * dim;
    const int splits = static_cast<int>(gridDim.x) / p_.shape.num_kv_heads, count = group * dim;
    float* all_acc = p_.partial + static_cast<int64_t>(r_.head) * splits * group * (dim + 2);
    float* all_ms = all_acc + static_cast<int64_t>(splits) * count;
#pragma unroll 1
    for (int i = 2 * static_cast<int>(threadIdx.x); i < count; i += 2 * kMathThreads) {
      const int g = i / dim;
      const Merged m =
          merge_partials<kWarps>(partial_acc + i, partial_ms + g * 2, kWarps, G * dim, G * 2);
      if (r_.active == 1) {
        store_merged(attended + i, m);
        continue;
      }
      __stcg(reinterpret_cast<float2*>(all_acc + r_.split * count + i), m.value);
      if (i % dim == 0)
        __stcg(reinterpret_cast<float2*>(all_ms) + r_.split * group + g, make_float2(m.max, m.sum));
    }
    named_barrier_sync(1, kMathThreads);
    if (r_.active > 1) {
      int* last = reinterpret_cast<int*>(partial_ms);  // free by now
      if (threadIdx.x == 0) {
        __threadfence();
        int* arrived = p_.counters->arrived + r_.head;
        *last = atomicAdd(arrived, 1) == r_.active - 1;
        if (*last) {
          *arrived = 0;
          __threadfence();
        }
      }
      named_barrier_sync(1, kMathThreads);
      if (*last == 0) return;
#pragma unroll 1
      for (int i = 2 * static_cast<int>(threadIdx.x); i < count; i += 2 * kMathThreads)
        store_merged(attended + i, merge_partials<16>(all_acc + i, all_ms + i / dim * 2, r_.active,
                                                      count, group * 2));
      named_barrier_sync(1, kMathThreads);
    }
    if (threadIdx.x == 0) count_release(&p_.counters->heads_done);
  }

  const Params& p_;
  const MegakernelLayer& layer_;
  const KeyRange& r_;
  const uint32_t* offsets_;
  int base_ = 0, step_ = 0;
  Keys<G> now_, next_;
};

}  // namespace espalier::kernels::cuda::megakernel_impl
