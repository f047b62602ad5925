// Rows to e4m3: the largest magnitude of the row, or of each 128 neighbours, then a division and a
// rounding of each element; with a norm, its sum of squares before.
// Parallel: one block a row, which stays in registers between the passes. The norm's weights are
// loaded before wait_for_previous().
// Roof: memory, rows x dim x (size + 1) bytes; at decode a launch's time.
#include <cuda_fp8.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/linear/quantize_rows.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr float kLargest = 448;  // of e4m3

// The largest of the block, returned to every thread. scratch: [32] in shared memory. A NaN stays
// one: maxima by integers, whose order is that of magnitudes.
__device__ __forceinline__ float block_max(float magnitude, float* scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  uint32_t most = __reduce_max_sync(~0u, __float_as_uint(magnitude));
  if (lane == 0) scratch[warp] = __uint_as_float(most);
  __syncthreads();
  most = __reduce_max_sync(~0u, lane < warps ? __float_as_uint(scratch[lane]) : 0u);
  __syncthreads();
  return __uint_as_float(most);
}

__device__ __forceinline__ uint32_t four_e4m3(const float* values) {
  const auto low = static_cast<uint32_t>(
      __nv_cvt_float2_to_fp8x2(make_float2(values[0], values[1]), __NV_SATFINITE, __NV_E4M3));
  const auto high = static_cast<uint32_t>(
      __nv_cvt_float2_to_fp8x2(make_float2(values[2], values[3]), __NV_SATFINITE, __NV_E4M3));
  return low | high << 16;
}

__device__ __forceinline__ float scale_of(float largest) {
  return largest == 0 ? 1.0f : largest / kLargest;
}

// CHUNKS: vectors of eight elements that each thread has.
template <typename T, int CHUNKS>
struct Row {
  float values[CHUNKS][8];

  static __device__ __forceinline__ int at(int chunk) {
    return (chunk * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
  }
  __device__ __forceinline__ void load(const T* x, int dim) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
      if (at(c) < dim) load8(x + at(c), values[c]);
  }
  __device__ __forceinline__ void normalize(const QuantizeRowsArgs& args, float* scratch) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (at(c) < args.dim) sum += values[c][i] * values[c][i];
    const float mean = block_sum(sum, scratch) / static_cast<float>(args.dim);
    const float scale = 1.0f / sqrtf(mean + args.norm_epsilon);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      if (at(c) >= args.dim) continue;
      float weight[8];
      load8(static_cast<const T*>(args.norm_weight) + at(c), weight);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        values[c][i] = to_float(from_float<T>(values[c][i] * scale * weight[i]));
    }
  }
  __device__ __forceinline__ float largest(int dim, float* scratch) const {
    uint32_t most = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (at(c) < dim) most = max(most, __float_as_uint(fabsf(values[c][i])));
    return block_max(__uint_as_float(most), scratch);
  }
  __device__ __forceinline__ void store(int c, float scale, uint8_t* y) {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[c][i] = __fdiv_rn(values[c][i], scale);
    *reinterpret_cast<uint2*>(y + at(c)) =
        make_uint2(four_e4m3(values[c]), four_e4m3(values[c] + 4));
  }
  // With a scale for each 128 neighbours, which sixteen lanes have. All threads call it.
  __device__ __forceinline__ void store_groups(const QuantizeRowsArgs& args, int64_t row) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      uint32_t most = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (at(c) < args.dim) most = max(most, __float_as_uint(fabsf(values[c][i])));
#pragma unroll
      for (int step = 8; step > 0; step /= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
      if (at(c) >= args.dim) continue;
      const float scale = scale_of(__uint_as_float(most));
      if (at(c) % kScaleBlock == 0)
        args.scales[at(c) / kScaleBlock * args.group_stride + row] = scale;
      store(c, scale, args.y + row * args.dim);
    }
  }
};

template <typename T, int CHUNKS>
__global__ void __launch_bounds__(kThreads) quantize_rows_kernel(QuantizeRowsArgs args) {
  __shared__ float scratch[32];
  release_next();
  wait_for_previous();
  const int64_t index = blockIdx.x;
  if (args.num_used != nullptr && index >= *args.num_used) return;
  Row<T, CHUNKS> row;
  row.load(static_cast<const T*>(args.x) + index * args.x_stride, args.dim);
  if (args.norm_weight != nullptr) row.normalize(args, scratch);
  if (args.group_stride > 0) {
    row.store_groups(args, index);
    return;
  }
  const float scale = scale_of(row.largest(args.dim, scratch));
  if (threadIdx.x == 0) args.scales[index] = scale;
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c)
    if (Row<T, CHUNKS>::at(c) < args.dim) row.store(c, scale, args.y + index * args.dim);
}

template <typename T>
Status launch_rows(const QuantizeRowsArgs& args, const LaunchOptions& launch) {
  const auto start = [&](auto kernel, int chunks) {
    const int threads = ((args.dim / 8 + chunks - 1) / chunks + 31) / 32 * 32;
    return launch_kernel("quantize_rows", kernel, dim3(static_cast<unsigned>(args.rows)),
                         dim3(static_cast<unsigned>(threads)), 0, launch, args);
  };
  const int chunks = (args.dim / 8 + kThreads - 1) / kThreads;
  if (chunks <= 1) return start(quantize_rows_kernel<T, 1>, 1);
  if (chunks <= 2) return start(quantize_rows_kernel<T, 2>, 2);
  if (chunks <= 4) return start(quantize_rows_kernel<T, 4>, 4);
  return start(quantize_rows_kernel<T, 16>, 16);
}

}  // namespace

Status quantize_rows(const QuantizeRowsArgs& args, const LaunchOptions& launch) {
  if (args.dim < 1 || args.dim % kQuantizedRowMultiple != 0 || args.dim > kMostQuantizedDim ||
      args.x_stride % 8 != 0 || !aligned(args.x, 16) || !aligned(args.y, 16) ||
      !aligned(args.norm_weight, 16))
    return invalid_argument(
        "quantize_rows: rows of {} must be multiples of {} up to {}, and all arrays aligned to 16 "
        "bytes",
        args.dim, kQuantizedRowMultiple, kMostQuantizedDim);
  if (args.rows == 0) return {};
  return args.type == DType::kFloat32 ? launch_rows<float>(args, launch)
                                      : launch_rows<bf16>(args, launch);
}

}  // namespace espalier::kernels::cuda
