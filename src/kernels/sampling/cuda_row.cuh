// One row of logits and one block of threads: passes over the row, sums in fixed point, the place
// where a cumulative mass is reached, and the cut that top-k, top-p and min-p make.
//
// A row is taken in parts of 512 entries, a warp at a time, four times four entries a thread. Every
// sum is of integers, so its order does not matter and a row gives the same answer whatever runs
// beside it.
#pragma once

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace espalier::kernels::cuda {

using Mass = unsigned long long;  // in units of 2^-44

constexpr int kRowThreads = 1024;
constexpr int kRowWarps = kRowThreads / 32;
constexpr int kPart = 512;
constexpr int kMaxParts = 1024;       // of a row of 2^19
constexpr int kMaxCandidates = 4096;  // that are sorted
constexpr float kBannedLogit = -__builtin_huge_valf();
constexpr int32_t kAnyId = 0x7fffffff;

struct Row {
  const float* values;
  int size;
  bool vectors;  // values may be read by fours

  __device__ int parts() const { return (size + kPart - 1) / kPart; }
  // Four entries; those behind the end are banned.
  __device__ float4 load(int at) const {
    if (vectors && at + 4 <= size) return *reinterpret_cast<const float4*>(values + at);
    const auto one = [&](int i) { return i < size ? values[i] : kBannedLogit; };
    return make_float4(one(at), one(at + 1), one(at + 2), one(at + 3));
  }
};

struct RowScratch {
  union {
    Mass part_mass[kMaxParts];
    Mass candidates[kMaxCandidates];  // key, then the complement of the id: larger is before
  };
  Mass warp_mass[kRowWarps];
  Mass sums[kRowWarps][4];
  int counts[kRowWarps][4];
  int num_candidates;
  int found_part;
  Mass found_before;
  int found_id;
};

// visit(first id, four entries) for all of the row, each by a whole warp in order of ids, and
// done(part) behind each part.
template <typename Visit, typename Done>
__device__ __forceinline__ void each_part(const Row& row, Visit&& visit, Done&& done) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int parts = row.parts();
  for (int part = warp; part < parts; part += kRowWarps) {
    const int at = part * kPart + lane * 4;
    float4 x[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) x[u] = row.load(at + u * 128);
#pragma unroll
    for (int u = 0; u < 4; ++u) visit(at + u * 128, x[u]);
    done(part);
  }
}
template <typename Visit>
__device__ __forceinline__ void each_part(const Row& row, Visit&& visit) {
  each_part(row, visit, [](int) {});
}

__device__ __forceinline__ float entry(const float4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

__device__ __forceinline__ Mass warp_total(Mass value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// The sum over threads up to this one; `total` of all. Every thread calls it.
__device__ inline Mass block_prefix(Mass value, RowScratch& s, Mass& total) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Mass other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) s.warp_mass[warp] = value;
  __syncthreads();
  Mass before = 0, all = 0;
  for (int w = 0; w < kRowWarps; ++w) {
    if (w < warp) before += s.warp_mass[w];
    all += s.warp_mass[w];
  }
  __syncthreads();
  total = all;
  return before + value;
}

// The masses mass(x, id) of the row's parts into part_mass; returns their sum.
template <typename MassOf>
__device__ Mass sum_parts(const Row& row, RowScratch& s, MassOf&& mass) {
  Mass mine = 0, sum = 0;
  each_part(
      row,
      [&](int at, const float4& x) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += mass(entry(x, i), at + i);
      },
      [&](int part) {
        sum = warp_total(sum);
        if (threadIdx.x % 32 == 0) s.part_mass[part] = sum, mine += sum;
        sum = 0;
      });
  __syncthreads();
  Mass total = 0;
  block_prefix(mine, s, total);
  return total;
}

// The smallest id at which the cumulative mass reaches `target`, in [1, total].
// REQUIRES: sum_parts() with the same mass.
template <typename MassOf>
__device__ int locate(const Row& row, RowScratch& s, Mass target, MassOf&& mass) {
  static_assert(kMaxParts == kRowThreads);
  const int part = static_cast<int>(threadIdx.x);
  const Mass mine = part < row.parts() ? s.part_mass[part] : 0;
  Mass total = 0;
  const Mass upto = block_prefix(mine, s, total);
  if (upto >= target && upto - mine < target) {
    s.found_part = part;
    s.found_before = upto - mine;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    Mass before = s.found_before;
    for (int u = 0; u < kPart / 128; ++u) {
      const int at = s.found_part * kPart + u * 128 + static_cast<int>(threadIdx.x) * 4;
      const float4 x = row.load(at);
      Mass own[4], sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += own[i] = mass(entry(x, i), at + i);
      Mass upto_lane = sum;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const Mass other = __shfl_up_sync(~0u, upto_lane, step);
        if (threadIdx.x >= static_cast<unsigned>(step)) upto_lane += other;
      }
      Mass cumulative = before + upto_lane - sum;
      if (cumulative < target && cumulative + sum >= target) {
        int id = at;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (cumulative < target) id = at + i;
          cumulative += own[i];
        }
        s.found_id = id;
      }
      before += __shfl_sync(~0u, upto_lane, 31);
    }
  }
  __syncthreads();
  return s.found_id;
}

// What is kept of a row: entries of a larger key, and of this key up to this id.
struct Cut {
  uint32_t key = 0;
  int32_t id = kAnyId;
  __device__ bool keeps(uint32_t other, int other_id) const {
    return other > key || (other == key && other_id <= id);
  }
};

struct CutLimits {
  Mass count = ~Mass{0};  // so many at most
  Mass mass = ~Mass{0};   // those with at most this much before them
  uint32_t min_key = 1;   // of at least this key
};

// The largest first: s.candidates[0, count) in descending order. count <= kMaxCandidates.
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
        const Mass a = s.candidates[low], b = s.candidates[high];
        if (down ? a < b : a > b) s.candidates[low] = b, s.candidates[high] = a;
      }
      __syncthreads();
    }
}

// Entries that `keep(key, id)` names into s.candidates; returns how many.
template <typename Eval, typename Keep>
__device__ int gather(const Row& row, const Eval& eval, RowScratch& s, Keep&& keep) {
  if (threadIdx.x == 0) s.num_candidates = 0;
  __syncthreads();
  each_part(row, [&](int at, const float4& x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t key = eval.key(entry(x, i));
      if (at + i < row.size && keep(key, at + i)) {
        const int place = atomicAdd(&s.num_candidates, 1);
        if (place < kMaxCandidates)
          s.candidates[place] =
              static_cast<Mass>(key) << 32 | (0xffffffffu - static_cast<uint32_t>(at + i));
      }
    }
  });
  __syncthreads();
  return min(s.num_candidates, kMaxCandidates);
}

// Where the limits cut the row, in the order of descending keys, the smaller id first among equals.
// Eval: key(x), and mass(key) of an entry. Narrows an interval of keys that holds the last entry
// that is kept, three pivots a pass, until it has few enough entries to be sorted.
template <typename Eval>
__device__ Cut find_cut(const Row& row, const Eval& eval, const CutLimits& limits, RowScratch& s,
                        uint32_t (&pivots)[3]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t low = limits.min_key, high = 0xffffffffu;  // undecided: [low, high)
  Mass base_count = 0, base_mass = 0;                 // of what lies above, all kept
  while (true) {
    uint32_t edge[4];
#pragma unroll
    for (int j = 0; j < 3; ++j) edge[j] = min(max(pivots[j], low), high - 1);
    edge[3] = low;
    Mass mass[4] = {};
    int count[4] = {};
    each_part(row, [&](int at, const float4& x) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t key = eval.key(entry(x, i));
        if (key < low || key >= high || at + i >= row.size) continue;
        const Mass own = eval.mass(key);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (key >= edge[j]) mass[j] += own, ++count[j];
      }
    });
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      mass[j] = warp_total(mass[j]);
      count[j] = __reduce_add_sync(~0u, count[j]);
      if (lane == 0) s.sums[warp][j] = mass[j], s.counts[warp][j] = count[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      mass[j] = 0, count[j] = 0;
      for (int w = 0; w < kRowWarps; ++w) mass[j] += s.sums[w][j], count[j] += s.counts[w][j];
    }
    __syncthreads();
    // The first edge down to which not all are kept.
    int at = 0;
    while (at < 4 && base_count + static_cast<Mass>(count[at]) <= limits.count &&
           base_mass + mass[at] <= limits.mass)
      ++at;
    if (at == 4) return {.key = low};
    const Mass above_count = at > 0 ? count[at - 1] : 0, above_mass = at > 0 ? mass[at - 1] : 0;
    const int inside = count[at] - static_cast<int>(above_count);
    if (at > 0) high = edge[at - 1];
    low = edge[at];
    base_count += above_count;
    base_mass += above_mass;

    if (inside <= kMaxCandidates) {
      const int found =
          gather(row, eval, s, [&](uint32_t key, int) { return key >= low && key < high; });
      sort_candidates(s, found);
      constexpr int kEach = kMaxCandidates / kRowThreads;
      Mass own[kEach] = {}, mine = 0, total = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int rank = static_cast<int>(threadIdx.x) * kEach + i;
        if (rank < found) own[i] = eval.mass(static_cast<uint32_t>(s.candidates[rank] >> 32));
        mine += own[i];
      }
      Mass before = base_mass + block_prefix(mine, s, total) - mine;
      int kept = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int rank = static_cast<int>(threadIdx.x) * kEach + i;
        kept += rank < found && base_count + static_cast<Mass>(rank) < limits.count &&
                before <= limits.mass;
        before += own[i];
      }
      Mass all = 0;
      block_prefix(static_cast<Mass>(kept), s, all);
      if (all == 0) return {.key = high - 1, .id = -1};
      const Mass last = s.candidates[all - 1];
      __syncthreads();
      return {.key = static_cast<uint32_t>(last >> 32),
              .id = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(last))};
    }
    if (high - low == 1) {  // very many equal entries: the first so many ids of them
      const Mass each = eval.mass(low);
      Mass wanted = limits.count - base_count;
      if (each > 0) wanted = min(wanted, (limits.mass - base_mass) / each + 1);
      if (wanted == 0) return {.key = low, .id = -1};
      const auto equal = [&](float x, int id) -> Mass {
        return id < row.size && eval.key(x) == low;
      };
      const Mass total = sum_parts(row, s, equal);
      return {.key = low, .id = locate(row, s, min(wanted, total), equal)};
    }
    const uint32_t width = high - low;
    pivots[0] = high - max(width / 4, 1u);
    pivots[1] = low + width / 2;
    pivots[2] = low + width / 4;
  }
}

}  // namespace espalier::kernels::cuda
