// placed_rope: rotary embedding of an encoder's rows by their places in a grid.
// Parallel: one block for a row, whose cosines and sines are computed once for all heads; a thread
// turns eight pairs, or one where halves are no multiples of eight.
// Roof: memory, 2 x rows x heads x rotary_dim x size bytes.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/rope/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kPlacedRopeThreads = 192;

template <typename T, int PAIRS>
__device__ void turn(T* first, T* second, const float* cosine, const float* sine) {
  float a[PAIRS], b[PAIRS];
  if constexpr (PAIRS == 8) {
    load8(first, a);
    load8(second, b);
  } else {
    a[0] = to_float(*first), b[0] = to_float(*second);
  }
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    const float x = a[i];
    a[i] = x * cosine[i] - b[i] * sine[i];
    b[i] = b[i] * cosine[i] + x * sine[i];
  }
  if constexpr (PAIRS == 8) {
    store8(first, a);
    store8(second, b);
  } else {
    *first = from_float<T>(a[0]), *second = from_float<T>(b[0]);
  }
}

template <typename T, int PAIRS>
__global__ void __launch_bounds__(kPlacedRopeThreads) placed_rope_kernel(PlacedRopeArgs args) {
  __shared__ float cosine[kPlacedRopeDimMax / 2], sine[kPlacedRopeDimMax / 2];
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int half = args.rotary_dim / 2;
  for (int i = static_cast<int>(threadIdx.x); i < half; i += kPlacedRopeThreads) {
    const int component = (i >= args.section_ends[0]) + (i >= args.section_ends[1]);
    const float angle = static_cast<float>(args.places[row * 3 + component]) * args.frequencies[i];
    sincosf(angle, &sine[i], &cosine[i]);
  }
  __syncthreads();
  T* const x = static_cast<T*>(args.x) + row * args.x_stride;
  const int of_head = half / PAIRS;
  for (int i = static_cast<int>(threadIdx.x); i < args.heads * of_head; i += kPlacedRopeThreads) {
    const int pair = i % of_head * PAIRS;
    T* const head = x + int64_t{i / of_head} * args.head_dim;
    turn<T, PAIRS>(head + pair, head + half + pair, cosine + pair, sine + pair);
  }
}

}  // namespace

Status placed_rope(const PlacedRopeArgs& args, const LaunchOptions& launch) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "placed_rope: F16 is not supported");
  if (args.rows < 0 || args.heads < 1 || args.rotary_dim < 2 || args.rotary_dim % 2 != 0 ||
      args.rotary_dim > args.head_dim || args.head_dim > kPlacedRopeDimMax)
    return invalid_argument("placed_rope: {} rows of {} heads of {}, of which {} turn", args.rows,
                            args.heads, args.head_dim, args.rotary_dim);
  if (args.rows == 0) return {};
  const bool by_eights = args.rotary_dim % 16 == 0 && args.head_dim % 8 == 0 &&
                         args.x_stride % 8 == 0 && aligned(args.x, 16);
  const bool half = args.type == DType::kBFloat16;
  const auto kernel = by_eights
                          ? (half ? placed_rope_kernel<bf16, 8> : placed_rope_kernel<float, 8>)
                          : (half ? placed_rope_kernel<bf16, 1> : placed_rope_kernel<float, 1>);
  return launch_kernel("placed_rope", kernel, dim3(static_cast<unsigned>(args.rows)),
                       kPlacedRopeThreads, 0, launch, args);
}

}  // namespace espalier::kernels::cuda
