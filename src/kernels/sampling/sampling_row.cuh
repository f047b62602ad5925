// One row of logits and a team of blocks (a cluster of up to eight, or one alone): passes over the
// row, sums in fixed point, the place where a cumulative mass is reached, and the cut that top-k,
// top-p and min-p make.
//
// A row is taken in parts of 512 entries, a warp at a time, four times four entries a thread; the
// parts go round the warps of the team. What a warp or a block has found it writes to all blocks'
// shared memory, so that behind team.sync() each decides the same by itself. Every sum is of
// integers, so its order does not matter and a row gives the same answer whatever runs beside it
// and however many blocks have it.
#pragma once

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/device.cuh"

namespace espalier::kernels::cuda {

using Mass = unsigned long long;  // in units of 2^-44

constexpr int kRowThreads = 1024;
constexpr int kRowWarps = kRowThreads / 32;
constexpr int kMaxRanks = 8;  // blocks of a team
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
  Mass best[2][kMaxRanks * kRowWarps];
  Mass warp_mass[kRowWarps];
  Mass sums[kRowWarps][4];
  int counts[kRowWarps][4];
  Mass rank_sums[2][kMaxRanks][4], rank_counts[2][kMaxRanks][4];
  Mass rank_candidates[kMaxRanks];
  Mass total, cut;
  int num_candidates;
};

// The blocks that have a row together.
struct Team {
  int rank = 0, ranks = 1;  // 1, 2, 4 or 8

  __device__ int first_part() const {
    return rank * kRowWarps + static_cast<int>(threadIdx.x) / 32;
  }
  __device__ int stride() const { return ranks * kRowWarps; }
  // -1: the warp has none.
  __device__ int last_part(const Row& row) const {
    const int first = first_part(), above = row.parts() - 1 - first;
    return above < 0 ? -1 : first + (above & ~(stride() - 1));  // a power of two
  }
  __device__ bool has(int id) const { return (id / kPart / kRowWarps & (ranks - 1)) == rank; }
  // As __syncthreads(), of all blocks.
  __device__ __forceinline__ void sync() const {
    if (ranks == 1) return __syncthreads();
    cluster_arrive();
    cluster_wait();
  }
  // By a whole warp: a value that all its lanes have, to every block.
  __device__ __forceinline__ void put(Mass* to, Mass value) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane >= ranks) return;
    if (ranks == 1)
      *to = value;
    else
      cluster_store(reinterpret_cast<uint64_t*>(to), lane, value);
  }
};

// The sixteen entries of a part that a thread has.
struct PartEntries {
  float4 x[4];
  __device__ __forceinline__ void load(const Row& row, int part) {
    const int at = part * kPart + static_cast<int>(threadIdx.x) % 32 * 4;
    if (row.vectors && (part + 1) * kPart <= row.size) {
#pragma unroll
      for (int u = 0; u < 4; ++u)
        x[u] = *reinterpret_cast<const float4*>(row.values + at + u * 128);
    } else {
#pragma unroll
      for (int u = 0; u < 4; ++u) x[u] = row.load(at + u * 128);
    }
  }
  __device__ __forceinline__ void load_last(const Row& row, const Team& team) {
    if (const int part = team.last_part(row); part >= 0) load(row, part);
  }
  template <typename Visit>
  __device__ __forceinline__ void each(int part, Visit&& visit) const {
    const int at = part * kPart + static_cast<int>(threadIdx.x) % 32 * 4;
#pragma unroll
    for (int u = 0; u < 4; ++u) visit(at + u * 128, x[u]);
  }
};

// visit(first id, four entries) for the block's parts of the row, each by a whole warp in order of
// ids, and done(part) behind each part. `kept`: the warp's last part, where there is one. `down`:
// the last part first. Rows that do not fit into the second-level cache together are walked down,
// from what the product before wrote last, then up from what was read last.
template <typename Visit, typename Done>
__device__ __forceinline__ void each_part(const Row& row, const Team& team, const PartEntries& kept,
                                          bool down, Visit&& visit, Done&& done) {
  const int first = team.first_part(), last = team.last_part(row);
  if (last < 0) return;
  kept.each(last, visit);
  done(last);
  const int step = down ? -team.stride() : team.stride();
  for (int part = down ? last + step : first; part >= first && part < last; part += step) {
    PartEntries entries;
    entries.load(row, part);
    entries.each(part, visit);
    done(part);
  }
}
template <typename Visit, typename Done>
__device__ __forceinline__ void each_part(const Row& row, const Team& team, Visit&& visit,
                                          Done&& done) {
  for (int part = team.first_part(); part < row.parts(); part += team.stride()) {
    PartEntries entries;
    entries.load(row, part);
    entries.each(part, visit);
    done(part);
  }
}
template <typename Visit>
__device__ __forceinline__ void each_part(const Row& row, const Team& team, Visit&& visit) {
  each_part(row, team, visit, [](int) {});
}

__device__ __forceinline__ float entry(const float4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

__device__ __forceinline__ Mass warp_total(Mass value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// The sum over lanes up to this one.
__device__ __forceinline__ Mass warp_prefix(Mass value) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Mass other = __shfl_up_sync(~0u, value, step);
    if (static_cast<int>(threadIdx.x) % 32 >= step) value += other;
  }
  return value;
}

// The sum over threads up to this one; `total` of all. Every thread calls it.
__device__ inline Mass block_prefix(Mass value, RowScratch& s, Mass& total) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  value = warp_prefix(value);
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

// A mass as high * 2^22 + low; both halves of 512 masses up to 2^44 add up within 32 bits.
struct Halves {
  uint32_t high = 0, low = 0;
  __device__ __forceinline__ void add(const Halves& other) {
    high += other.high;
    low += other.low;
  }
  __device__ __forceinline__ Mass mass() const { return (static_cast<Mass>(high) << 22) + low; }
};

// The masses mass(x, id) of the row's parts into every block's part_mass. REQUIRES: nobody reads
// part_mass or candidates any more.
template <typename MassOf>
__device__ __forceinline__ void sum_parts(const Row& row, const Team& team, const PartEntries& kept,
                                          RowScratch& s, MassOf&& mass) {
  Halves sum;
  each_part(
      row, team, kept, false,
      [&](int at, const float4& x) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.add(mass(entry(x, i), at + i));
      },
      [&](int part) {
        sum.high = __reduce_add_sync(~0u, sum.high);
        sum.low = __reduce_add_sync(~0u, sum.low);
        team.put(&s.part_mass[part], sum.mass());
        sum = {};
      });
  team.sync();
}

// By one warp: `sum` over the lane's share of the parts, `upto` over all up to them.
// REQUIRES: sum_parts().
struct PartSums {
  int first, end;  // parts of the lane
  Mass sum = 0, upto, total;
  __device__ PartSums(const Row& row, const RowScratch& s) {
    const int parts = row.parts(), each = (parts + 31) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    first = min(lane * each, parts);
    end = min(first + each, parts);
    for (int part = first; part < end; ++part) sum += s.part_mass[part];
    upto = warp_prefix(sum);
    total = __shfl_sync(~0u, upto, 31);
  }
};

// By one warp: the smallest id at which the cumulative mass reaches `target`, in [1, total]; every
// lane has it. REQUIRES: sums of the same mass.
template <typename MassOf>
__device__ int locate(const Row& row, const RowScratch& s, const PartSums& sums, Mass target,
                      MassOf&& mass) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Mass before_lane = sums.upto - sums.sum;
  const auto lane_with_target = [&](bool has) { return __ffs(__ballot_sync(~0u, has)) - 1; };
  int part = sums.first;
  Mass before = before_lane;
  const bool has_part = before_lane < target && sums.upto >= target;
  if (has_part)
    while (before + s.part_mass[part] < target) before += s.part_mass[part++];
  int from = lane_with_target(has_part);
  part = __shfl_sync(~0u, part, from);
  before = __shfl_sync(~0u, before, from);

  PartEntries entries;
  entries.load(row, part);
  const int at = part * kPart + lane * 4;
  Mass own[4], upto[4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    Halves sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.add(mass(entry(entries.x[u], i), at + u * 128 + i));
    own[u] = sum.mass();
    upto[u] = warp_prefix(own[u]);
  }
  int id = 0;
  bool found = false;
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    Mass cumulative = before + upto[u] - own[u];
    if (cumulative < target && cumulative + own[u] >= target) {
      found = true;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (cumulative < target) id = at + u * 128 + i;
        cumulative += mass(entry(entries.x[u], i), at + u * 128 + i).mass();
      }
    }
    before += __shfl_sync(~0u, upto[u], 31);
  }
  return __shfl_sync(~0u, id, lane_with_target(found));
}

// What is kept of a row: entries of a larger key, and of this key up to this id.
struct Cut {
  uint32_t key = 0;
  int32_t id = kAnyId;
  __device__ bool keeps(uint32_t other, int other_id) const {
    return other > key || (other == key && other_id <= id);
  }
  // As candidates are: the key, the complement of the id.
  __device__ Mass packed() const {
    return static_cast<Mass>(key) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
  }
  __device__ static Cut of(Mass packed) {
    return {.key = static_cast<uint32_t>(packed >> 32),
            .id = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(packed))};
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

// Of the block's parts, the entries that `keep(key, id)` names into s.candidates; returns how many.
template <typename Eval, typename Keep>
__device__ int gather(const Row& row, const Team& team, const Eval& eval, RowScratch& s,
                      Keep&& keep) {
  if (threadIdx.x == 0) s.num_candidates = 0;
  __syncthreads();
  each_part(row, team, [&](int at, const float4& x) {
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

// The candidates of all blocks to the first of them; returns how many. Ends with team.sync().
__device__ inline int bring_together(const Team& team, RowScratch& s, int found) {
  if (team.ranks == 1) return found;
  if (threadIdx.x < 32) team.put(&s.rank_candidates[team.rank], static_cast<Mass>(found));
  team.sync();
  int before = 0, all = 0;
  for (int r = 0; r < team.ranks; ++r) {
    if (r < team.rank) before += static_cast<int>(s.rank_candidates[r]);
    all += static_cast<int>(s.rank_candidates[r]);
  }
  if (team.rank > 0)
    for (int i = threadIdx.x; i < found; i += kRowThreads)
      cluster_store(reinterpret_cast<uint64_t*>(&s.candidates[before + i]), 0, s.candidates[i]);
  team.sync();
  return all;
}

// By one block, which has all candidates: the last of them that is kept, where base_count and
// base_mass lie above them; none: all before `high`, and not that.
template <typename Eval>
__device__ Cut cut_candidates(const Eval& eval, const CutLimits& limits, RowScratch& s, int found,
                              Mass base_count, Mass base_mass, uint32_t high) {
  sort_candidates(s, found);
  constexpr int kEach = kMaxCandidates / kRowThreads;
  Mass own[kEach] = {}, mine = 0, total = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int rank = static_cast<int>(threadIdx.x) * kEach + i;
    if (rank < found) own[i] = eval.halves(static_cast<uint32_t>(s.candidates[rank] >> 32)).mass();
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
  return Cut::of(s.candidates[all - 1]);
}

// Where the limits cut the row, in the order of descending keys, the smaller id first among equals.
// Eval: key(x), and halves(key) of an entry. Narrows an interval of keys that holds the last entry
// that is kept, three pivots a pass, until it has few enough entries to be sorted. Ends with
// team.sync().
template <typename Eval>
__device__ Cut find_cut(const Row& row, const Team& team, const Eval& eval, const CutLimits& limits,
                        RowScratch& s, uint32_t (&pivots)[3]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t low = limits.min_key, high = 0xffffffffu;  // undecided: [low, high)
  Mass base_count = 0, base_mass = 0;                 // of what lies above, all kept
  // Places for what blocks tell each other are used in turn: who writes to one has seen that all
  // have written to the other, so have read this one.
  for (int turn = 0;; turn ^= 1) {
    uint32_t edge[4];
#pragma unroll
    for (int j = 0; j < 3; ++j) edge[j] = min(max(pivots[j], low), high - 1);
    edge[3] = low;
    Halves sums[4];
    int count[4] = {};
    each_part(row, team, [&](int at, const float4& x) {
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
    Mass mass[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      mass[j] = warp_total(sums[j].mass());
      count[j] = __reduce_add_sync(~0u, count[j]);
      if (lane == 0) s.sums[warp][j] = mass[j], s.counts[warp][j] = count[j];
    }
    __syncthreads();
    if (warp < 4) {
      const auto all = static_cast<Mass>(__reduce_add_sync(~0u, s.counts[lane][warp]));
      team.put(&s.rank_sums[turn][team.rank][warp], warp_total(s.sums[lane][warp]));
      team.put(&s.rank_counts[turn][team.rank][warp], all);
    }
    team.sync();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      mass[j] = 0, count[j] = 0;
      for (int r = 0; r < team.ranks; ++r) {
        mass[j] += s.rank_sums[turn][r][j];
        count[j] += static_cast<int>(s.rank_counts[turn][r][j]);
      }
    }
    // The first edge down to which not all are kept.
    int at = 0;
    while (at < 4 && base_count + static_cast<Mass>(count[at]) <= limits.count &&
           base_mass + mass[at] <= limits.mass)
      ++at;
    if (at == 4) return {.key = low};  // team.sync() is behind us
    const Mass above_count = at > 0 ? count[at - 1] : 0, above_mass = at > 0 ? mass[at - 1] : 0;
    const int inside = count[at] - static_cast<int>(above_count);
    if (at > 0) high = edge[at - 1];
    low = edge[at];
    base_count += above_count;
    base_mass += above_mass;

    if (inside <= kMaxCandidates) {
      const int found =
          gather(row, team, eval, s, [&](uint32_t key, int) { return key >= low && key < high; });
      const int all = bring_together(team, s, found);
      if (team.rank == 0) {
        const Cut cut = cut_candidates(eval, limits, s, all, base_count, base_mass, high);
        if (warp == 0) team.put(&s.cut, cut.packed());
      }
      team.sync();
      return Cut::of(s.cut);
    }
    if (high - low == 1) {  // very many equal entries: the first so many ids of them
      const Mass each = eval.halves(low).mass();
      Mass wanted = limits.count - base_count;
      if (each > 0) wanted = min(wanted, (limits.mass - base_mass) / each + 1);
      if (wanted == 0) {
        team.sync();
        return {.key = low, .id = -1};
      }
      const auto equal = [&](float x, int id) -> Halves {
        return {.low = id < row.size && eval.key(x) == low ? 1u : 0u};
      };
      PartEntries kept;
      kept.load_last(row, team);
      sum_parts(row, team, kept, s, equal);
      if (warp == 0) {
        const PartSums equals(row, s);
        const Cut cut{.key = low, .id = locate(row, s, equals, min(wanted, equals.total), equal)};
        if (lane == 0) s.cut = cut.packed();
      }
      team.sync();
      return Cut::of(s.cut);
    }
    const uint32_t width = high - low;
    pivots[0] = high - max(width / 4, 1u);
    pivots[1] = low + width / 2;
    pivots[2] = low + width / 4;
  }
}

}  // namespace espalier::kernels::cuda
