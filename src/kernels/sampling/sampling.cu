// Sampling: logits [rows, vocab_size] float32 to the next token of each row, and log-probabilities.
// Greedy, temperature, top-k, top-p, min-p, penalties, bias, token masks; exact and independent of
// the batch: sums are of integers (probabilities in 44-bit fixed point), so their order does not
// matter.
// Parallel: one to eight blocks of 1,024 threads a row, a thread block cluster, so that few rows
// fill the GPU; as many as all rows have room for at once.
// Passes over a row: greedy one; a draw two (largest, probabilities); with filters about five:
// largest, probabilities, where the cut is, its candidates, the probabilities that remain. The
// first pass walks down and the second up, so that large batches find a part of each row in L2.
// Roof: memory or L2, 4 x vocab_size bytes a pass, and exponents, 4.6 us a row and multiprocessor.
// Rows of 128,256 on an H200: greedy 5.4 us for one row and 38 for 256; temperature 9.3 and 63;
// top_p 0.95 101 and 406. History: docs/notes/sampling.md.
#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/sampling/cuda.h"
#include "kernels/sampling/sampling_row.cuh"

namespace espalier::kernels::cuda {
namespace {

constexpr int kMaxVocab = kChunk * kMaxChunks;
constexpr int kMaxTop = 1024;

struct RowBest {
  float value = 0;
  int id = 0;
  bool finite = true;
};

// Maps floats to integers of the same order, 0 for a banned entry; -0 and +0 are one.
__device__ __forceinline__ uint32_t ordered_key(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Above all keys: an entry is NaN or infinite.
constexpr uint32_t kNotFiniteKey = 0xffffffffu;

// The largest entry; with `wants_id` the smallest id among equals. `finite`: no entry is NaN or
// infinite; not checked with `bans`. `round`: 0 for the first call in a kernel, 1 for the second.
// Ends with cluster.sync().
__device__ __forceinline__ RowBest row_best(const Row& row, const RowCluster& cluster,
                                            const ChunkEntries& kept, bool wants_id, bool bans,
                                            RowScratch& s, int round) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float largest = kBannedLogit, zero = 0;  // zero: NaN once an entry is not finite
  float of_chunk = kBannedLogit;
  int largest_at = 0, at_of_chunk = 0;
  each_chunk(
      row, cluster, kept, true,
      [&](int at, const float4& x) {
        const float four = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
        if (four > of_chunk) of_chunk = four, at_of_chunk = at;  // ids come in their order
        if (at + 4 <= row.size) {
          zero = fmaf(x.x, 0.0f, zero);
          zero = fmaf(x.y, 0.0f, zero);
          zero = fmaf(x.z, 0.0f, zero);
          zero = fmaf(x.w, 0.0f, zero);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (at + i < row.size) zero = fmaf(entry(x, i), 0.0f, zero);
        }
      },
      [&](int) {
        if (of_chunk >= largest) largest = of_chunk, largest_at = at_of_chunk;  // smaller ids
        of_chunk = kBannedLogit;
      });
  uint32_t key = ordered_key(largest);
  if (!bans && zero != 0) key = kNotFiniteKey;
  const uint32_t warp_key = __reduce_max_sync(~0u, key);
  uint32_t id = 0xffffffffu;
  if (wants_id) {
    if (key == warp_key) {
      const float4 x = row.load(largest_at);
#pragma unroll
      for (int i = 3; i >= 0; --i)
        if (entry(x, i) == largest) id = static_cast<uint32_t>(largest_at + i);
    }
    id = __reduce_min_sync(~0u, id);
  }
  cluster.put(&s.best[round][cluster.first_chunk()], static_cast<Prob>(warp_key) << 32 | (~id));
  cluster.sync();
  Prob best = 0;
  for (int at = lane; at < cluster.stride(); at += 32) best = max(best, s.best[round][at]);
  const auto found = static_cast<uint32_t>(best >> 32);
  const uint32_t high = __reduce_max_sync(~0u, found);
  if (wants_id) id = ~__reduce_max_sync(~0u, found == high ? static_cast<uint32_t>(best) : 0);
  const uint32_t bits = high & 0x80000000u ? high ^ 0x80000000u : ~high;
  return {
      .value = __uint_as_float(bits), .id = static_cast<int>(id), .finite = high != kNotFiniteKey};
}

__device__ __forceinline__ float clamp_finite(float x) {
  return fminf(fmaxf(x, -FLT_MAX), FLT_MAX);
}

// Applies penalties, bias, mask and bans in the order of the CPU sampler. A masked token stays
// masked under a bias. Each block handles its own chunks.
__device__ void adjust(const SampleArgs& args, const SlotSampling& slot, const Row& row,
                       const RowCluster& cluster, const uint32_t* mask, bool bans, float* to) {
  const bool penalties = slot.counts != nullptr;
  each_chunk(row, cluster, [&](int at, const float4& x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int id = at + i;
      if (id >= row.size) continue;
      float value = entry(x, i);
      if (penalties) {
        const int seen = slot.counts[id];
        if (seen > 1)
          value =
              value - slot.frequency_penalty * static_cast<float>(seen - 1) - slot.presence_penalty;
        if (seen > 0)
          value = clamp_finite(value > 0 ? value / slot.repetition_penalty
                                         : value * slot.repetition_penalty);
      }
      const bool masked =
          mask != nullptr && (id / 32 >= args.mask_stride || (mask[id / 32] >> (id % 32) & 1) == 0);
      to[id] = masked ? kBannedLogit : value;
    }
  });
  __syncthreads();
  for (int i = threadIdx.x; i < slot.num_bias; i += kRowThreads) {
    const int id = slot.bias_ids[i];
    if (cluster.has(id) && to[id] != kBannedLogit)
      to[id] = clamp_finite(to[id] + slot.bias_values[i]);
  }
  __syncthreads();
  if (bans)
    for (int i = threadIdx.x; i < slot.num_banned; i += kRowThreads)
      if (const int id = slot.banned_ids[i]; cluster.has(id)) to[id] = kBannedLogit;
  __syncthreads();
}

// How sample() changes a row's logits before it draws.
struct RowAdjustment {
  const uint32_t* mask = nullptr;
  bool bans = false, any = false;
};
__device__ __forceinline__ RowAdjustment adjustment_of(const SampleArgs& args,
                                                       const SlotSampling& slot, int64_t index) {
  RowAdjustment out;
  if (args.masks != nullptr && (args.has_mask == nullptr || args.has_mask[index] != 0))
    out.mask = args.masks + index * args.mask_stride;
  out.bans = args.output_indices[index] < slot.min_new_tokens && slot.num_banned > 0;
  out.any = slot.counts != nullptr || slot.num_bias > 0 || out.mask != nullptr || out.bans;
  return out;
}
// Where the adjusted logits of a row lie.
__device__ __forceinline__ float* adjusted_row(const SampleArgs& args, int64_t index) {
  return static_cast<float*>(args.workspace) + index * ((args.vocab_size + 3) / 4 * 4);
}

// exp((x - max) / temperature) as a key (the float's bits) and as a fixed-point probability.
// Roundings are explicit, so that every pass computes the same. Both are 0 for a banned entry:
// temperatures above 10^30 count as that, so that no factor takes -FLT_MAX near 0.
struct Weights {
  float max, scale;  // scale: of the exponent in base 2
  __device__ Weights(float largest, float temperature)
      : max(largest), scale(fminf(1.4426950408889634f / fminf(temperature, 1e30f), FLT_MAX)) {}
  __device__ __forceinline__ uint32_t key(float x) const {
    const float below = fmaxf(__fsub_rn(x, max), -FLT_MAX);
    float weight;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"(__fmul_rn(below, scale)));
    return __float_as_uint(weight);
  }
  // The weight times 2^44, rounded down. Added to 2^23 and rounded towards 0, a number below 2^23
  // leaves its integer part in the last bits: once for the upper half, once for the remainder.
  __device__ __forceinline__ Halves halves(uint32_t key) const {
    const float weight = __uint_as_float(key);
    const float high = __fmaf_rz(weight, 0x1p22f, 0x1p23f);
    const float rest = __fmaf_rn(weight, 0x1p22f, __fsub_rn(0x1p23f, high));  // exact, below 1
    const float low = __fmaf_rz(rest, 0x1p22f, 0x1p23f);
    return {.high = __float_as_uint(high) - kTwoTo23, .low = __float_as_uint(low) - kTwoTo23};
  }

 private:
  static constexpr uint32_t kTwoTo23 = 0x4b000000u;  // the bits of 2^23
};

// SplitMix64's finaliser and hash_uniform of base/rng.h.
__device__ uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
__device__ double hash_uniform(uint64_t seed, uint64_t counter) {
  const uint64_t bits = mix64(mix64(seed) ^ (counter * 0xd1342543de82ef95ull)) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

// top_n_sigma * sigma, as SamplingValues defines it. Distances and their squares are summed in
// fixed point, 2^34 and 2^24 to one, so every number of blocks gives the same sum. A call of its
// own, so that rows without this filter need no registers for it.
__device__ __noinline__ float sigma_width(Row row, RowCluster cluster, float best,
                                          float top_n_sigma, RowScratch& s) {
  ChunkEntries entries;
  entries.load_last(row, cluster);
  const auto sum_of = [&](auto&& fixed_point) {
    sum_chunks(row, cluster, entries, s, [&](float x, int) {
      if (x == kBannedLogit) return Halves{};
      const Prob value = fixed_point(fminf(__fsub_rn(best, x), kSigmaDistanceMax));
      return Halves{.high = static_cast<uint32_t>(value >> 22),
                    .low = static_cast<uint32_t>(value & 0x3fffff)};
    });
    if (threadIdx.x < 32) {
      const ChunkSums sums(row, s);
      if (threadIdx.x == 0) s.total = sums.total;
    }
    cluster.sync();
    return static_cast<double>(s.total);
  };
  const double count = sum_of([](float) { return Prob{1}; });
  const double mean = sum_of([](float d) { return __float2ull_rz(d * 0x1p34f); }) / count * 0x1p-34;
  const double squares =
      sum_of([](float d) { return __float2ull_rz(__fmul_rn(d, d) * 0x1p24f); }) / count * 0x1p-24;
  return top_n_sigma * static_cast<float>(sqrt(fmax(squares - mean * mean, 0.0)));
}

// The token, in the first block's first warp.
__device__ int draw(const SlotSampling& slot, const Row& row, const RowCluster& cluster,
                    const ChunkEntries& kept, float best, double u, RowScratch& s) {
  const Weights weights(best, slot.temperature);
  const auto target = [&](Prob all) {
    const auto wanted = static_cast<Prob>(ceil(u * static_cast<double>(all)));
    return min(max(wanted, Prob{1}), all);
  };
  const auto locate_target = [&](auto&& prob) {
    if (cluster.rank > 0 || threadIdx.x >= 32) return -1;
    const ChunkSums sums(row, s);
    return locate(row, s, sums, target(sums.total), prob);
  };
  const auto any = [&](float x, int) { return weights.halves(weights.key(x)); };
  uint32_t least_key = __float_as_uint(slot.min_p);
  if (slot.top_n_sigma > 0) {
    const float width = sigma_width(row, cluster, best, slot.top_n_sigma, s);
    least_key = max(least_key, weights.key(__fsub_rn(best, width)));
    ChunkEntries again;  // so that no registers hold `kept` over the call
    again.load_last(row, cluster);
    sum_chunks(row, cluster, again, s, any);
  } else {
    sum_chunks(row, cluster, kept, s, any);
  }
  if (slot.top_k <= 0 && slot.top_p >= 1 && least_key == 0) return locate_target(any);

  if (threadIdx.x < 32) {
    const ChunkSums sums(row, s);
    if (threadIdx.x == 0) s.total = sums.total;
  }
  cluster.sync();
  const Prob total = s.total;
  CutLimits limits{.min_key = max(least_key, 1u)};
  if (slot.top_k > 0) limits.count = static_cast<Prob>(slot.top_k);
  if (slot.top_p < 1) {
    limits.prob = static_cast<Prob>(static_cast<double>(slot.top_p) * static_cast<double>(total));
    // Entries below this weigh less than 1 - top_p together, so none of them is kept; the factor of
    // one half leaves room for rounding.
    const double least = 0.5 * (1 - static_cast<double>(slot.top_p)) * static_cast<double>(total) *
                         0x1.0p-44 / row.size;
    limits.min_key = max(limits.min_key, __float_as_uint(static_cast<float>(least)));
  }
  Cut cut{.key = limits.min_key};
  if (limits.count != ~Prob{0} || limits.prob != ~Prob{0}) {
    uint32_t pivots[3] = {__float_as_uint(0x1.0p-3f), __float_as_uint(0x1.0p-7f),
                          __float_as_uint(0x1.0p-12f)};
    cut = find_cut(row, cluster, weights, limits, s, pivots);
  }
  const auto in_cut = [&](float x, int id) {
    const uint32_t key = weights.key(x);
    return cut.keeps(key, id) ? weights.halves(key) : Halves{};
  };
  ChunkEntries again;  // not kept across find_cut(), which needs the registers
  again.load_last(row, cluster);
  sum_chunks(row, cluster, again, s, in_cut);
  return locate_target(in_cut);
}

// The grid has `ranks` blocks a row, which form a cluster.
__global__ void __launch_bounds__(kRowThreads) sample_kernel(const SampleArgs args) {
  extern __shared__ __align__(16) char raw[];
  auto& scratch = *reinterpret_cast<RowScratch*>(raw);
  const RowCluster cluster{.rank = cluster_rank(), .ranks = cluster_size()};
  if (cluster.ranks > 1) cluster_arrive();
  release_next();
  wait_for_previous();
  const int64_t index = blockIdx.x / static_cast<unsigned>(cluster.ranks);
  const float* logits = args.logits + index * args.logits_stride;
  Row row{logits, args.vocab_size, reinterpret_cast<uintptr_t>(logits) % 16 == 0};
  ChunkEntries kept;
  kept.load_last(row, cluster);
  const int slot_id = args.row_slots[index];
  const auto finish = [&](int token, SampleStatus status) {
    if (threadIdx.x != 0 || cluster.rank != 0) return;
    args.tokens[index] = token;
    args.statuses[index] = status;
    if (slot_id >= 0 && args.slot_tokens != nullptr) args.slot_tokens[slot_id] = token;
  };
  if (cluster.ranks > 1)
    cluster_wait();  // all blocks of the cluster run, so their shared memory exists
  if (slot_id < 0) return finish(-1, kSampleOk);
  const SlotSampling& slot = args.slots[slot_id];
  const RowAdjustment adjustment = adjustment_of(args, slot, index);
  const bool draws = slot.temperature > 0 && slot.top_k != 1;

  RowBest best = row_best(row, cluster, kept, !draws, false, scratch, 0);
  if (!best.finite) return finish(-1, kSampleNotFinite);
  if (adjustment.any) {
    float* adjusted = adjusted_row(args, index);
    adjust(args, slot, row, cluster, adjustment.mask, adjustment.bans, adjusted);
    row = {adjusted, args.vocab_size, true};
    kept.load_last(row, cluster);
    best = row_best(row, cluster, kept, !draws, true, scratch, 1);
    if (best.value == kBannedLogit) return finish(-1, kSampleNoToken);
  }
  int token = best.id;
  if (draws)
    token =
        draw(slot, row, cluster, kept, best.value,
             hash_uniform(slot.seed, static_cast<uint64_t>(args.output_indices[index])), scratch);
  if (threadIdx.x == 0 && cluster.rank == 0 && slot.counts != nullptr) {
    const int seen = slot.counts[token];
    slot.counts[token] = static_cast<uint16_t>(min(max(seen, 1) + 1, 65535));
  }
  finish(token, kSampleOk);
}

// The row itself as a key, without probabilities: for the best logits.
struct Logits {
  __device__ uint32_t key(float x) const { return ordered_key(x); }
  __device__ Halves halves(uint32_t) const { return {}; }
};

// The logits of which a row's log-probabilities are.
struct LogprobRow {
  Row row;
  bool adjusted = false;  // it may hold banned entries
  float temperature = 1.0f;
};
__device__ LogprobRow logprob_row(const LogprobArgs& args, int64_t index) {
  const float* logits = args.logits + index * args.logits_stride;
  LogprobRow out{.row = {logits, args.vocab_size, reinterpret_cast<uintptr_t>(logits) % 16 == 0}};
  const SampleArgs& sampled = args.sampled;
  if (sampled.slots == nullptr) return out;
  const SlotSampling& slot = sampled.slots[sampled.row_slots[index]];
  if (slot.logprobs_mode == LogprobsMode::kRaw) return out;
  if (slot.logprobs_mode == LogprobsMode::kProcessed && slot.temperature > 0)
    out.temperature = slot.temperature;
  out.adjusted = adjustment_of(sampled, slot, index).any;
  if (out.adjusted) out.row = {adjusted_row(sampled, index), args.vocab_size, true};
  return out;
}

__global__ void __launch_bounds__(kRowThreads) logprobs_kernel(const LogprobArgs args) {
  extern __shared__ __align__(16) char raw[];
  auto& s = *reinterpret_cast<RowScratch*>(raw);
  __shared__ double warp_sums[kRowWarps];
  release_next();
  wait_for_previous();
  const int64_t index = blockIdx.x;
  const int target = args.targets[index];
  if (target < 0) return;
  const LogprobRow from = logprob_row(args, index);
  const Row& row = from.row;
  const RowCluster cluster;
  ChunkEntries kept;
  kept.load_last(row, cluster);
  const RowBest best = row_best(row, cluster, kept, false, from.adjusted, s, 0);
  if (args.statuses != nullptr && threadIdx.x == 0)
    args.statuses[index] = best.finite ? kSampleOk : kSampleNotFinite;
  const float scale = 1.0f / fminf(from.temperature, 1e30f);
  double sum = 0;
  each_chunk(row, cluster, [&](int, const float4& x) {
    const auto weight = [&](float value) { return expf((value - best.value) * scale); };
    sum += static_cast<double>(weight(x.x) + weight(x.y)) +
           static_cast<double>(weight(x.z) + weight(x.w));
  });
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (double chunk : warp_sums) sum += chunk;
  const double log_sum = log(sum);
  const auto logprob = [&](int id) -> float {
    if (!best.finite || id < 0 || id >= row.size) return -FLT_MAX;
    const double below = static_cast<double>(row.values[id]) - static_cast<double>(best.value);
    return static_cast<float>(fmax(below / static_cast<double>(from.temperature) - log_sum,
                                   -static_cast<double>(FLT_MAX)));
  };
  if (threadIdx.x == 0) args.logprobs[index] = logprob(target);
  if (args.wanted_begin != nullptr)
    for (int i = args.wanted_begin[index] + static_cast<int>(threadIdx.x);
         i < args.wanted_begin[index + 1]; i += kRowThreads)
      args.wanted_logprobs[i] = logprob(args.wanted_ids[i]);
  if (args.max_top == 0) return;
  const int wanted = min(args.max_top, row.size);
  int found = 0;
  if (best.finite) {
    CutLimits limits{.count = static_cast<Prob>(wanted)};
    uint32_t pivots[3] = {ordered_key(best.value - 2), ordered_key(best.value - 5),
                          ordered_key(best.value - 10)};
    const Cut cut = find_cut(row, cluster, Logits(), limits, s, pivots);
    found = gather_candidates(row, cluster, Logits(), s,
                              [&](uint32_t key, int id) { return cut.keeps(key, id); });
    sort_candidates(s, found);
  }
  for (int i = threadIdx.x; i < args.max_top; i += kRowThreads) {
    const int id = i < min(found, wanted)
                       ? static_cast<int>(0xffffffffu - static_cast<uint32_t>(s.candidates[i]))
                       : -1;
    args.top_ids[index * args.max_top + i] = id;
    args.top_logprobs[index * args.max_top + i] = logprob(id);
  }
}

// How many clusters of `blocks` blocks the GPU runs at once: fewer than its multiprocessors would
// hold, since a cluster lies within one group of them. Queried once a device and thread.
Result<int32_t> clusters_at_once(int32_t blocks) {
  struct Known {
    int device = -1;
    int32_t clusters[kMaxRanks + 1] = {};
  };
  thread_local Known known;
  int device = 0;
  ESP_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "sample"));
  if (known.device != device) known = {.device = device};
  int32_t& clusters = known.clusters[blocks];
  if (clusters > 0) return clusters;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kRowThreads);
  config.dynamicSmemBytes = sizeof(RowScratch);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int found = 0;
  ESP_RETURN_IF_ERROR(
      cuda_status(cudaOccupancyMaxActiveClusters(&found, sample_kernel, &config), "sample"));
  return clusters = std::max(found, 1);
}

// Blocks of a row: as many as fit at once for all rows, and at most as the row has chunks for. A
// second wave would cost more than using half as many blocks.
Result<int32_t> blocks_of_row(const SampleArgs& args) {
  const int32_t chunks = (args.vocab_size + kChunk - 1) / kChunk;
  int32_t blocks = 1;
  while (blocks < kMaxRanks && chunks > blocks * kRowWarps) {
    ESP_ASSIGN_OR_RETURN(const int32_t clusters, clusters_at_once(2 * blocks));
    if (args.rows > clusters) break;
    blocks *= 2;
  }
  return blocks;
}

Status check_rows(const char* operation, int32_t rows, int32_t vocab_size) {
  if (vocab_size < 1 || vocab_size > kMaxVocab)
    return invalid_argument("{}: vocab_size is {}, but must be in [1, {}]", operation, vocab_size,
                            kMaxVocab);
  if (rows < 0) return invalid_argument("{}: rows is {}", operation, rows);
  return {};
}

__global__ void put_tokens_kernel(PutTokensArgs args) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= args.rows || args.from[row] < 0) return;
  if (args.tokens != nullptr) args.tokens[row] = args.from[row];
  args.slot_tokens[args.row_slots[row]] = args.from[row];
}

}  // namespace

Result<size_t> sample_workspace_bytes(int32_t max_rows, int32_t vocab_size) {
  ESP_RETURN_IF_ERROR(check_rows("sample", max_rows, vocab_size));
  return static_cast<size_t>(max_rows) * static_cast<size_t>((vocab_size + 3) / 4 * 4) * 4;
}

Status sample(const SampleArgs& args, const LaunchOptions& launch) {
  ESP_ASSIGN_OR_RETURN(const size_t bytes, sample_workspace_bytes(args.rows, args.vocab_size));
  if (args.workspace_bytes < bytes || !aligned(args.workspace, 16))
    return invalid_argument("sample: the workspace has {} bytes, but {} rows need {}",
                            args.workspace_bytes, args.rows, bytes);
  if (args.rows == 0) return {};
  ESP_RETURN_IF_ERROR(allow_shared("sample", sample_kernel, sizeof(RowScratch)));
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  int32_t blocks = args.blocks_per_row;
  if (blocks < 0 || blocks > kMaxRanks || (blocks & (blocks - 1)) != 0)
    return invalid_argument("sample: blocks_per_row is {}, but must be 0, 1, 2, 4 or 8", blocks);
  if (traits.compute_capability < 90) blocks = 1;
  if (blocks == 0) {
    ESP_ASSIGN_OR_RETURN(blocks, blocks_of_row(args));
  }
  return launch_clusters("sample", sample_kernel, dim3(static_cast<unsigned>(args.rows * blocks)),
                         kRowThreads, blocks, sizeof(RowScratch), launch, args);
}

Status put_tokens(const PutTokensArgs& args, const LaunchOptions& launch) {
  if (args.rows < 0) return invalid_argument("put_tokens: rows is {}", args.rows);
  if (args.rows == 0) return {};
  constexpr unsigned kThreads = 128;
  const unsigned blocks = (static_cast<unsigned>(args.rows) + kThreads - 1) / kThreads;
  return launch_kernel("put_tokens", put_tokens_kernel, dim3(blocks), dim3(kThreads), 0, launch,
                       args);
}

Status logprobs(const LogprobArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_rows("logprobs", args.rows, args.vocab_size));
  if (args.max_top < 0 || args.max_top > kMaxTop)
    return invalid_argument("logprobs: max_top is {}, but must be in [0, {}]", args.max_top,
                            kMaxTop);
  if (args.rows == 0) return {};
  ESP_RETURN_IF_ERROR(allow_shared("logprobs", logprobs_kernel, sizeof(RowScratch)));
  return launch_kernel("logprobs", logprobs_kernel, dim3(static_cast<unsigned>(args.rows)),
                       kRowThreads, sizeof(RowScratch), launch, args);
}

}  // namespace espalier::kernels::cuda
