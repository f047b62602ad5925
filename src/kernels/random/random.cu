// draw: random weights from a seed, for benchmarks. A grid-stride loop, two elements a thread and
// hash (one of a slice); the roof is memory. It runs at load only.
#include <algorithm>

#include "base/rng.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/random/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kDrawThreads = 256;

// As near_normal and draw of models/weight_source.cc, operation for operation and without
// contraction, so that each value has the same bits.
__device__ float near_normal(uint32_t bits) {
  const uint32_t pairs = (bits & 0x00ff00ffu) + ((bits >> 8) & 0x00ff00ffu);
  const float sum = static_cast<float>((pairs & 0xffffu) + (pairs >> 16));
  return __fmul_rn(__fadd_rn(sum, -510.0f), 1.0f / 147.80f);
}

__device__ void store(float value, float* out) { *out = value; }
__device__ void store(float value, __nv_bfloat16* out) { *out = __float2bfloat16_rn(value); }

template <typename T>
__global__ void draw_kernel(T* out, int64_t count, uint64_t key, float centre, float deviation) {
  const int64_t stride = 2ll * gridDim.x * blockDim.x;
  for (int64_t i = 2 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x); i < count;
       i += stride) {
    const uint64_t bits = mix64(key + static_cast<uint64_t>(i / 2));
    const auto value = [&](uint64_t half) {
      return __fadd_rn(centre, __fmul_rn(deviation, near_normal(static_cast<uint32_t>(half))));
    };
    store(value(bits), out + i);
    if (i + 1 < count) store(value(bits >> 32), out + i + 1);
  }
}

// Elements of rows that are not adjacent in their tensor, one a thread.
template <typename T>
__global__ void draw_slice_kernel(DrawArgs args) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count;
       i += stride) {
    const int64_t element = args.first + i / args.columns * args.row_stride + i % args.columns;
    const uint64_t bits = mix64(args.key + static_cast<uint64_t>(element / 2));
    const auto half = static_cast<uint32_t>(element % 2 == 0 ? bits : bits >> 32);
    store(__fadd_rn(args.centre, __fmul_rn(args.deviation, near_normal(half))),
          static_cast<T*>(args.out) + i);
  }
}

template <typename T>
Status draw_as(const DrawArgs& args, const LaunchOptions& launch, int32_t num_multiprocessors) {
  const int64_t blocks = std::min<int64_t>((args.count / 2 + kDrawThreads) / kDrawThreads,
                                           int64_t{16} * num_multiprocessors);
  if (args.first != 0 || args.columns != args.row_stride) {
    return launch_kernel("draw weights", draw_slice_kernel<T>, static_cast<unsigned>(blocks),
                         kDrawThreads, 0, {launch.stream, false}, args);
  }
  return launch_kernel("draw weights", draw_kernel<T>, static_cast<unsigned>(blocks), kDrawThreads,
                       0, {launch.stream, false}, static_cast<T*>(args.out), args.count, args.key,
                       args.centre, args.deviation);
}

}  // namespace

Status draw(const DrawArgs& args, const LaunchOptions& launch) {
  if (args.count <= 0) return {};
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  if (args.type == DType::kFloat32) return draw_as<float>(args, launch, traits.num_multiprocessors);
  return draw_as<__nv_bfloat16>(args, launch, traits.num_multiprocessors);
}

}  // namespace espalier::kernels::cuda
