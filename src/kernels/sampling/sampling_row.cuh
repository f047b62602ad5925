// One row of logits and the blocks that process it (a cluster of up to eight, or one alone): passes
// over the row, sums in fixed point, the token at which a cumulative probability is reached, and
// the cut that top-k, top-p and min-p make. Device code; internal to kernels/sampling.
//
// A row is processed in chunks of 512 entries, a warp at a time, four times four entries a thread;
// chunks go round the warps of the cluster. Each warp or block writes its findings to all blocks'
// shared memory, so that after cluster.sync() each block decides the same by itself. Every sum is
// of integers, so a row gives the same answer whatever other rows and however many blocks there
// are.
#pragma once

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/device.cuh"

namespace espalier::kernels::cuda {

using Prob = unsigned long long;  // unnormalised probability in units of 2^-44

constexpr int kRowThreads = 1024;
constexpr int kRowWarps = kRowThreads / 32;
constexpr int kMaxRanks = 8;  // blocks of a cluster
constexpr int kChunk = 512;
constexpr int kMaxChunks = 1024;      // of a row of 2^19
constexpr int kMaxCandidates = 4096;  // candidates that can be sorted
constexpr float kBannedLogit = -__builtin_huge_valf();
constexpr int32_t kAnyId = 0x7fffffff;

struct Row {
  const float* values;
  int size;
  bool vectors;  // values may be read by fours

  __device__ int chunks() const { return (size + kChunk - 1) / kChunk; }
  // Four entries; those beyond the end are banned.
  __device__ float4 load(int at) const {
    if (vectors && at + 4 <= size) return *reinterpret_cast<const float4*>(values + at);
    const auto one = [&](int i) { return i < size ? values[i] : kBannedLogit; };
    return make_float4(one(at), one(at + 1), one(at + 2), one(at + 3));
  }
};

struct RowScratch {
  union {
    Prob chunk_prob[kMaxChunks];
    Prob candidates[kMaxCandidates];  // key, then the complement of the id: larger is before
  };
  Prob best[2][kMaxRanks * kRowWarps];
  Prob warp_prob[kRowWarps];
  Prob sums[kRowWarps][4];
  int counts[kRowWarps][4];
  Prob rank_sums[2][kMaxRanks][4], rank_counts[2][kMaxRanks][4];
  Prob rank_candidates[kMaxRanks];
  Prob total, cut;
  int num_candidates;
};

// The blocks that process a row together.
struct RowCluster {
  int rank = 0, ranks = 1;  // 1, 2, 4 or 8

  __device__ int first_chunk() const {
    return rank * kRowWarps + static_cast<int>(threadIdx.x) / 32;
  }
  __device__ int stride() const { return ranks * kRowWarps; }
  // The last chunk of the warp; -1: it has none.
  __device__ int last_chunk(const Row& row) const {
    const int first = first_chunk(), above = row.chunks() - 1 - first;
    return above < 0 ? -1 : first + (above & ~(stride() - 1));  // a power of two
  }
  __device__ bool has(int id) const { return (id / kChunk / kRowWarps & (ranks - 1)) == rank; }
  // As __syncthreads(), across all blocks of the cluster.
  __device__ __forceinline__ void sync() const {
    if (ranks == 1) return __syncthreads();
    cluster_arrive();
    cluster_wait();
  }
  // Writes a value that is uniform across the warp to every block. Called by a whole warp.
  __device__ __forceinline__ void put(Prob* to, Prob value) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane >= ranks) return;
    if (ranks == 1)
      *to = value;
    else
      cluster_store(reinterpret_cast<uint64_t*>(to), lane, value);
  }
};

// The sixteen entries of a chunk that a thread holds.
struct ChunkEntries {
  float4 x[4];
  __device__ __forceinline__ void load(const Row& row, int chunk) {
    const int at = chunk * kChunk + static_cast<int>(threadIdx.x) % 32 * 4;
    if (row.vectors && (chunk + 1) * kChunk <= row.size) {
#pragma unroll
      for (int u = 0; u < 4; ++u)
        x[u] = *reinterpret_cast<const float4*>(row.values + at + u * 128);
    } else {
#pragma unroll
      for (int u = 0; u < 4; ++u) x[u] = row.load(at + u * 128);
    }
  }
  __device__ __forceinline__ void load_last(const Row& row, const RowCluster& cluster) {
    if (const int chunk = cluster.last_chunk(row); chunk >= 0) load(row, chunk);
  }
  template <typename Visit>
  __device__ __forceinline__ void each(int chunk, Visit&& visit) const {
    const int at = chunk * kChunk + static_cast<int>(threadIdx.x) % 32 * 4;
#pragma unroll
    for (int u = 0; u < 4; ++u) visit(at + u * 128, x[u]);
  }
};

// Calls visit(first id, four entries) for the block's chunks of the row, each by a whole warp in
// order of ids, and done(chunk) after each chunk. `kept`: the warp's last chunk, if any. `down`:
// the last chunk first. Rows that do not fit into L2 together are walked down, from what the GEMM
// before wrote last, then up from what was read last.
template <typename Visit, typename Done>
__device__ __forceinline__ void each_chunk(const Row& row, const RowCluster& cluster,
                                           const ChunkEntries& kept, bool down, Visit&& visit,
                                           Done&& done) {
  const int first = cluster.first_chunk(), last = cluster.last_chunk(row);
  if (last < 0) return;
  kept.each(last, visit);
  done(last);
  const int step = down ? -cluster.stride() : cluster.stride();
  for (int chunk = down ? last + step : first; chunk >= first && chunk < last; chunk += step) {
    ChunkEntries entries;
    entries.load(row, chunk);
    entries.each(chunk, visit);
    done(chunk);
  }
}
template <typename Visit, typename Done>
__device__ __forceinline__ void each_chunk(const Row& row, const RowCluster& cluster, Visit&& visit,
                                           Done&& done) {
  for (int chunk = cluster.first_chunk(); chunk < row.chunks(); chunk += cluster.stride()) {
    ChunkEntries entries;
    entries.load(row, chunk);
    entries.each(chunk, visit);
    done(chunk);
  }
}
template <typename Visit>
__device__ __forceinline__ void each_chunk(const Row& row, const RowCluster& cluster,
                                           Visit&& visit) {
  each_chunk(row, cluster, visit, [](int) {});
}

__device__ __forceinline__ float entry(const float4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

__device__ __forceinline__ Prob warp_total(Prob value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// The sum over lanes up to this one.
__device__ __forceinline__ Prob warp_prefix(Prob value) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Prob other = __shfl_up_sync(~0u, value, step);
    if (static_cast<int>(threadIdx.x) % 32 >= step) value += other;
  }
  return value;
}

// The sum over threads up to this one; `total` over all. Every thread calls it.
__device__ inline Prob block_prefix(Prob value, RowScratch& s, Prob& total) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  value = warp_prefix(value);
  if (lane == 31) s.warp_prob[warp] = value;
  __syncthreads();
  Prob before = 0, all = 0;
  for (int w = 0; w < kRowWarps; ++w) {
    if (w < warp) before += s.warp_prob[w];
    all += s.warp_prob[w];
  }
  __syncthreads();
  total = all;
  return before + value;
}

// A probability as high * 2^22 + low; both halves of 512 probabilities up to 2^44 add up within 32
// bits.
struct Halves {
  uint32_t high = 0, low = 0;
  __device__ __forceinline__ void add(const Halves& other) {
    high += other.high;
    low += other.low;
  }
  __device__ __forceinline__ Prob prob() const { return (static_cast<Prob>(high) << 22) + low; }
};

// Sums prob(x, id) of each of the row's chunks into every block's chunk_prob. REQUIRES: no thread
// reads chunk_prob or candidates any more.
template <typename ProbOf>
__device__ __forceinline__ void sum_chunks(const Row& row, const RowCluster& cluster,
                                           const ChunkEntries& kept, RowScratch& s, ProbOf&& prob) {
  Halves sum;
  each_chunk(
      row, cluster, kept, false,
      [&](int at, const float4& x) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.add(prob(entry(x, i), at + i));
      },
      [&](int chunk) {
        sum.high = __reduce_add_sync(~0u, sum.high);
        sum.low = __reduce_add_sync(~0u, sum.low);
        cluster.put(&s.chunk_prob[chunk], sum.prob());
        sum = {};
      });
  cluster.sync();
}

// Prefix sums over chunks, by one warp: `sum` over the lane's share of the chunks, `upto` over all
// up to them. REQUIRES: sum_chunks().
struct ChunkSums {
  int first, end;  // chunks of the lane
  Prob sum = 0, upto, total;
  __device__ ChunkSums(const Row& row, const RowScratch& s) {
    const int chunks = row.chunks(), each = (chunks + 31) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    first = min(lane * each, chunks);
    end = min(first + each, chunks);
    for (int chunk = first; chunk < end; ++chunk) sum += s.chunk_prob[chunk];
    upto = warp_prefix(sum);
    total = __shfl_sync(~0u, upto, 31);
  }
};

// By one warp: the smallest id at which the cumulative probability reaches `target`, in [1, total];
// every lane returns it. REQUIRES: sums of the same `prob`.
template <typename ProbOf>
__device__ int locate(const Row& row, const RowScratch& s, const ChunkSums& sums, Prob target,
                      ProbOf&& prob) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Prob before_lane = sums.upto - sums.sum;
  const auto lane_with_target = [&](bool has) { return __ffs(__ballot_sync(~0u, has)) - 1; };
  int chunk = sums.first;
  Prob before = before_lane;
  const bool has_chunk = before_lane < target && sums.upto >= target;
  if (has_chunk)
    while (before + s.chunk_prob[chunk] < target) before += s.chunk_prob[chunk++];
  int from = lane_with_target(has_chunk);
  chunk = __shfl_sync(~0u, chunk, from);
  before = __shfl_sync(~0u, before, from);

  ChunkEntries entries;
  entries.load(row, chunk);
  const int at = chunk * kChunk + lane * 4;
  Prob own[4], upto[4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    Halves sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.add(prob(entry(entries.x[u], i), at + u * 128 + i));
    own[u] = sum.prob();
    upto[u] = warp_prefix(own[u]);
  }
  int id = 0;
  bool found = false;
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    Prob cumulative = before + upto[u] - own[u];
    if (cumulative < target && cumulative + own[u] >= target) {
      found = true;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (cumulative < target) id = at + u * 128 + i;
        cumulative += prob(entry(entries.x[u], i), at + u * 128 + i).prob();
      }
    }
    before += __shfl_sync(~0u, upto[u], 31);
  }
  return __shfl_sync(~0u, id, lane_with_target(found));
}

// What is kept of a row: entries with a larger key, and with this key up to this id.
struct Cut {
  uint32_t key = 0;
  int32_t id = kAnyId;
  __device__ bool keeps(uint32_t other, int other_id) const {
    return other > key || (other == key && other_id <= id);
  }
  // The packing of candidates: the key, then the complement of the id.
  __device__ Prob packed() const {
    return static_cast<Prob>(key) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
  }
  __device__ static Cut of(Prob packed) {
    return {.key = static_cast<uint32_t>(packed >> 32),
            .id = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(packed))};
  }
};

struct CutLimits {
  Prob count = ~Prob{0};  // at most this many entries
  Prob prob = ~Prob{0};   // entries with at most this cumulative probability before them
  uint32_t min_key = 1;   // entries of at least this key
};

// Sorts s.candidates[0, count) in descending order. count <= kMaxCandidates.
__device__ inline void sort_candidates(RowScratch& s, int count) {
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kRowThreads)
    s.candidates[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2)
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += kRowThreads) {
        const int low = i / step * 2 * step + i % step, high = low + step;
        const bool down = (low & run) == 0;
        const Prob a = s.candidates[low], b = s.candidates[high];
        if (down ? a < b : a > b) s.candidates[low] = b, s.candidates[high] = a;
      }
      __syncthreads();
    }
}

// Collects the entries of the block's chunks for which keep(key, id) holds into s.candidates;
// returns their number.
template <typename Eval, typename Keep>
__device__ int gather_candidates(const Row& row, const RowCluster& cluster, const Eval& eval,
                                 RowScratch& s, Keep&& keep) {
  if (threadIdx.x == 0) s.num_candidates = 0;
  __syncthreads();
  each_chunk(row, cluster, [&](int at, const float4& x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t key = eval.key(entry(x, i));
      if (at + i < row.size && keep(key, at + i)) {
        const int index = atomicAdd(&s.num_candidates, 1);
        if (index < kMaxCandidates)
          s.candidates[index] =
              static_cast<Prob>(key) << 32 | (0xffffffffu - static_cast<uint32_t>(at + i));
      }
    }
  });
  __syncthreads();
  return min(s.num_candidates, kMaxCandidates);
}

// Moves the candidates of all blocks to the first block; returns their number. Ends with
// cluster.sync().
__device__ inline int gather_to_first_block(const RowCluster& cluster, RowScratch& s, int found) {
  if (cluster.ranks == 1) return found;
  if (threadIdx.x < 32) cluster.put(&s.rank_candidates[cluster.rank], static_cast<Prob>(found));
  cluster.sync();
  int before = 0, all = 0;
  for (int r = 0; r < cluster.ranks; ++r) {
    if (r < cluster.rank) before += static_cast<int>(s.rank_candidates[r]);
    all += static_cast<int>(s.rank_candidates[r]);
  }
  if (cluster.rank > 0)
    for (int i = threadIdx.x; i < found; i += kRowThreads)
      cluster_store(reinterpret_cast<uint64_t*>(&s.candidates[before + i]), 0, s.candidates[i]);
  cluster.sync();
  return all;
}

// By one block, which has all candidates: the last of them that is kept, where base_count and
// base_prob lie above them. If none is kept: the cut just above `high`.
template <typename Eval>
__device__ Cut cut_candidates(const Eval& eval, const CutLimits& limits, RowScratch& s, int found,
                              Prob base_count, Prob base_prob, uint32_t high) {
  sort_candidates(s, found);
  constexpr int kEach = kMaxCandidates / kRowThreads;
  Prob own[kEach] = {}, mine = 0, total = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int rank = static_cast<int>(threadIdx.x) * kEach + i;
    if (rank < found) own[i] = eval.halves(static_cast<uint32_t>(s.candidates[rank] >> 32)).prob();
    mine += own[i];
  }
  Prob before = base_prob + block_prefix(mine, s, total) - mine;
  int kept = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int rank = static_cast<int>(threadIdx.x) * kEach + i;
    kept += rank < found && base_count + static_cast<Prob>(rank) < limits.count &&
            before <= limits.prob;
    before += own[i];
  }
  Prob all = 0;
  block_prefix(static_cast<Prob>(kept), s, all);
  if (all == 0) return {.key = high - 1, .id = -1};
  return Cut::of(s.candidates[all - 1]);
}

// Where the limits cut the row, in the order of descending keys, the smaller id first among equals.
// Eval: key(x), and halves(key) of an entry. Narrows an interval of keys that holds the last entry
// that is kept, three pivots a pass, until it has few enough entries to be sorted. Ends with
// cluster.sync().
template <typename Eval>
__device__ Cut find_cut(const Row& row, const RowCluster& cluster, const Eval& eval,
                        const CutLimits& limits, RowScratch& s, uint32_t (&pivots)[3]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t low = limits.min_key, high = 0xffffffffu;  // undecided: [low, high)
  Prob base_count = 0, base_prob = 0;                 // of the entries above `high`, all kept
  // Two buffers for exchange between blocks, used in turn: a block that writes to one has seen that
  // all blocks have written to the other, so all have read this one.
  for (int turn = 0;; turn ^= 1) {
    uint32_t edge[4];
#pragma unroll
    for (int j = 0; j < 3; ++j) edge[j] = min(max(pivots[j], low), high - 1);
    edge[3] = low;
    Halves sums[4];
    int count[4] = {};
    each_chunk(row, cluster, [&](int at, const float4& x) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t key = eval.key(entry(x, i));
        if (key < low || key >= high || at + i >= row.size) continue;
        const Halves own = eval.halves(key);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (key >= edge[j]) sums[j].add(own), ++count[j];
      }
    });
    Prob prob[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      prob[j] = warp_total(sums[j].prob());
      count[j] = __reduce_add_sync(~0u, count[j]);
      if (lane == 0) s.sums[warp][j] = prob[j], s.counts[warp][j] = count[j];
    }
    __syncthreads();
    if (warp < 4) {
      const auto all = static_cast<Prob>(__reduce_add_sync(~0u, s.counts[lane][warp]));
      cluster.put(&s.rank_sums[turn][cluster.rank][warp], warp_total(s.sums[lane][warp]));
      cluster.put(&s.rank_counts[turn][cluster.rank][warp], all);
    }
    cluster.sync();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      prob[j] = 0, count[j] = 0;
      for (int r = 0; r < cluster.ranks; ++r) {
        prob[j] += s.rank_sums[turn][r][j];
        count[j] += static_cast<int>(s.rank_counts[turn][r][j]);
      }
    }
    // The first edge below which not everything is kept.
    int at = 0;
    while (at < 4 && base_count + static_cast<Prob>(count[at]) <= limits.count &&
           base_prob + prob[at] <= limits.prob)
      ++at;
    if (at == 4) return {.key = low};  // cluster.sync() is behind us
    const Prob above_count = at > 0 ? count[at - 1] : 0, above_prob = at > 0 ? prob[at - 1] : 0;
    const int inside = count[at] - static_cast<int>(above_count);
    if (at > 0) high = edge[at - 1];
    low = edge[at];
    base_count += above_count;
    base_prob += above_prob;

    if (inside <= kMaxCandidates) {
      const int found = gather_candidates(
          row, cluster, eval, s, [&](uint32_t key, int) { return key >= low && key < high; });
      const int all = gather_to_first_block(cluster, s, found);
      if (cluster.rank == 0) {
        const Cut cut = cut_candidates(eval, limits, s, all, base_count, base_prob, high);
        if (warp == 0) cluster.put(&s.cut, cut.packed());
      }
      cluster.sync();
      return Cut::of(s.cut);
    }
    if (high - low == 1) {  // very many equal entries: the first `wanted` ids of them
      const Prob each = eval.halves(low).prob();
      Prob wanted = limits.count - base_count;
      if (each > 0) wanted = min(wanted, (limits.prob - base_prob) / each + 1);
      if (wanted == 0) {
        cluster.sync();
        return {.key = low, .id = -1};
      }
      const auto equal = [&](float x, int id) -> Halves {
        return {.low = id < row.size && eval.key(x) == low ? 1u : 0u};
      };
      ChunkEntries kept;
      kept.load_last(row, cluster);
      sum_chunks(row, cluster, kept, s, equal);
      if (warp == 0) {
        const ChunkSums equals(row, s);
        const Cut cut{.key = low, .id = locate(row, s, equals, min(wanted, equals.total), equal)};
        if (lane == 0) s.cut = cut.packed();
      }
      cluster.sync();
      return Cut::of(s.cut);
    }
    const uint32_t width = high - low;
    pivots[0] = high - max(width / 4, 1u);
    pivots[1] = low + width / 2;
    pivots[2] = low + width / 4;
  }
}

}  // namespace espalier::kernels::cuda
