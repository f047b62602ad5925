// Rows of all ranks from what each has of its own, and each rank's own rows of the ranks' sums.
// Every rank reads what it needs where it lies on its peers, behind a meeting of each block with
// the same block of the peers, so all ranks have the same grid, which their rows together decide. A
// rank leaves its own rows alone until its next collective; what it gave to a sum may be
// overwritten at once, so sums meet again behind the work. Parallel: 16 bytes a thread. Roof: the
// link, into a rank the others' rows, or (ranks - 1) x its own rows.
#include <algorithm>

#include "kernels/collective/kernels.h"
#include "kernels/collective/peers.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kRowsThreads = 512;
constexpr int kWordBytes = 16;

__host__ __device__ __forceinline__ int64_t rows_before(const RankRowsArgs& args, int rank) {
  int64_t rows = 0;
  for (int r = 0; r < rank; ++r) rows += args.counts[r];
  return rows;
}

__global__ void __launch_bounds__(kRowsThreads)
    gather_rank_rows_kernel(const __grid_constant__ PeerView peers,
                            const __grid_constant__ PeerBuffers own,
                            const __grid_constant__ RankRowsArgs args, int64_t row_words) {
  release_next();
  wait_for_previous();
  meet_peers_once(peers);
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  auto* to = static_cast<uint4*>(args.all);
  for (int i = 0; i < peers.num_ranks; ++i) {
    // Each begins with itself, so that not all read from one rank at a time.
    const int r = (peers.rank + i) % peers.num_ranks;
    const auto* from = static_cast<const uint4*>(own.of[r]);
    const int64_t count = args.counts[r] * row_words;
    const int64_t first = rows_before(args, r) * row_words;
    for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += step)
      to[first + at] = from[at];
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowsThreads)
    sum_rank_rows_kernel(const __grid_constant__ PeerView peers,
                         const __grid_constant__ PeerBuffers all,
                         const __grid_constant__ RankRowsArgs args) {
  release_next();
  wait_for_previous();
  meet_peers(peers, Meeting::kBefore);
  const int64_t first = rows_before(args, peers.rank) * args.columns;
  const int64_t eights = int64_t{args.counts[peers.rank]} * args.columns / 8;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < eights; i += step) {
    float sum[8];
    load8(static_cast<const T*>(all.of[0]) + first + i * 8, sum);
    for (int r = 1; r < peers.num_ranks; ++r) {
      float part[8];
      load8(static_cast<const T*>(all.of[r]) + first + i * 8, part);
#pragma unroll
      for (int k = 0; k < 8; ++k) sum[k] += part[k];
    }
    store8(static_cast<T*>(args.own) + i * 8, sum);
  }
  meet_peers(peers, Meeting::kAfter);
}

dim3 grid_of(const PeerView& peers, const RankRowsArgs& args, int64_t elements_each) {
  const int64_t all = rows_before(args, peers.num_ranks) * args.columns / elements_each;
  const int64_t blocks = all / peers.num_ranks / kRowsThreads + 1;
  return dim3(static_cast<unsigned>(std::min<int64_t>(blocks, kBarrierBlocksMax)));
}

}  // namespace

Status gather_rank_rows(const PeerView& peers, const PeerBuffers& own, const RankRowsArgs& args,
                        const LaunchOptions& launch) {
  const auto size = static_cast<int64_t>(dtype_size(args.type));
  return launch_kernel("gather_rows", gather_rank_rows_kernel,
                       grid_of(peers, args, kWordBytes / size), kRowsThreads, 0, launch, peers, own,
                       args, args.columns * size / kWordBytes);
}

Status sum_rank_rows(const PeerView& peers, const PeerBuffers& all, const RankRowsArgs& args,
                     const LaunchOptions& launch) {
  const dim3 grid = grid_of(peers, args, 8);
  if (args.type == DType::kFloat32)
    return launch_kernel("scatter_sums", sum_rank_rows_kernel<float>, grid, kRowsThreads, 0, launch,
                         peers, all, args);
  return launch_kernel("scatter_sums", sum_rank_rows_kernel<bf16>, grid, kRowsThreads, 0, launch,
                       peers, all, args);
}

}  // namespace espalier::kernels::cuda
