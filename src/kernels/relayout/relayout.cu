// relayout: weights of a checkpoint in another layout (transposed, interleaved, MXFP4) to row-major
// matrices. Runs once for each weight at load.
// Parallel: transposes by tiles of 32 x 32 through shared memory, so that both sides are read and
// written in rows; MXFP4 one thread a block of 32 elements. Roof: memory, each weight read and
// written once.
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/relayout/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kTransposeTile = 32, kTransposeRows = 8;
constexpr int kMxBlock = 32, kMxBytes = 16;
constexpr int kRelayoutThreads = 256;
constexpr int32_t kMostGroups = 65535;

__device__ __forceinline__ int64_t parted(int64_t row, int64_t rows, bool interleaved) {
  return interleaved ? row / 2 + row % 2 * (rows / 2) : row;
}

template <typename T>
__global__ void __launch_bounds__(kTransposeTile* kTransposeRows)
    transpose_kernel(RelayoutArgs args) {
  __shared__ T tile[kTransposeTile][kTransposeTile + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  // Of [columns, rows]: grid x goes along the rows, which are unlimited there; y along columns.
  const int64_t row = int64_t{blockIdx.x} * kTransposeTile, group = blockIdx.z;
  const T* from = static_cast<const T*>(args.from) + group * args.from_group_stride;
  T* to = static_cast<T*>(args.to) + group * args.rows * args.columns;
  for (int64_t column = int64_t{blockIdx.y} * kTransposeTile; column < args.columns;
       column += int64_t{gridDim.y} * kTransposeTile) {
    for (int i = y; i < kTransposeTile; i += kTransposeRows)
      if (column + i < args.columns && row + x < args.rows)
        tile[i][x] = from[(column + i) * args.rows + row + x];
    __syncthreads();
    for (int i = y; i < kTransposeTile; i += kTransposeRows)
      if (row + i < args.rows && column + x < args.columns)
        to[parted(row + i, args.rows, args.interleaved) * args.columns + column + x] = tile[x][i];
    __syncthreads();
  }
}

// One thread a block of 32 elements.
template <typename T>
__global__ void __launch_bounds__(kRelayoutThreads) mxfp4_kernel(RelayoutArgs args) {
  constexpr float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const int64_t blocks = args.columns / kMxBlock;
  const int64_t index = int64_t{blockIdx.x} * kRelayoutThreads + threadIdx.x, group = blockIdx.y;
  if (index >= blocks * args.rows) return;
  const int64_t row = index / blocks, from = group * args.rows * blocks + index;
  const auto* bytes = static_cast<const uint8_t*>(args.from) + from * kMxBytes;
  const float scale = ldexpf(1.0f, args.scales[from] - 127);
  T* to = static_cast<T*>(args.to) +
          (group * args.rows + parted(row, args.rows, args.interleaved)) * args.columns +
          index % blocks * kMxBlock;
  for (int i = 0; i < kMxBlock; ++i) {
    const int bits = i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
    const float value = kMagnitudes[bits & 7] * scale;
    to[i] = from_float<T>(bits < 8 ? value : -value);
  }
}

template <typename T>
Status launch_transpose(const RelayoutArgs& args, const LaunchOptions& launch) {
  const auto tiles = [](int32_t extent) {
    return static_cast<unsigned>((extent + kTransposeTile - 1) / kTransposeTile);
  };
  const dim3 grid(tiles(args.rows), std::min(tiles(args.columns), 65535u),
                  static_cast<unsigned>(args.groups));
  return launch_kernel("relayout", transpose_kernel<T>, grid, dim3(kTransposeTile, kTransposeRows),
                       0, launch, args);
}

template <typename T>
Status launch_mxfp4(const RelayoutArgs& args, const LaunchOptions& launch) {
  const int64_t blocks = int64_t{args.columns} / kMxBlock * args.rows;
  const dim3 grid(static_cast<unsigned>((blocks + kRelayoutThreads - 1) / kRelayoutThreads),
                  static_cast<unsigned>(args.groups));
  return launch_kernel("relayout", mxfp4_kernel<T>, grid, kRelayoutThreads, 0, launch, args);
}

}  // namespace

Status relayout(const RelayoutArgs& args, const LaunchOptions& launch) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "relayout: F16 is not supported");
  if (args.groups < 1 || args.groups > kMostGroups || args.rows < 1 || args.columns < 1 ||
      (args.interleaved && args.rows % 2 != 0))
    return invalid_argument("relayout: {} matrices of {} x {}", args.groups, args.rows,
                            args.columns);
  const bool half = args.type == DType::kBFloat16;
  if (args.kind == RelayoutArgs::From::kTransposed)
    return half ? launch_transpose<bf16>(args, launch) : launch_transpose<float>(args, launch);
  if (args.columns % kMxBlock != 0 || args.scales == nullptr)
    return invalid_argument("relayout: {} columns are no whole number of MXFP4 blocks of {}",
                            args.columns, kMxBlock);
  return half ? launch_mxfp4<bf16>(args, launch) : launch_mxfp4<float>(args, launch);
}

}  // namespace espalier::kernels::cuda
