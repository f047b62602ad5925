#include "cuda_ceilings.h"

#include "kernels/cuda/device.cuh"

namespace espalier::kernels::cuda {
namespace {

__global__ void __launch_bounds__(512) read_kernel(const uint4* from, size_t count, uint32_t* to) {
  uint32_t sum = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) v[u] = __ldcs(from + i + u * stride);
#pragma unroll
    for (int u = 0; u < 8; ++u) sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (sum == 0x12345678u) *to = sum;  // never so that it could be left out
}

__global__ void fill_kernel(bf16* to, size_t count, uint32_t seed, float scale) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += stride) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    h *= 3266489917u;
    h ^= h >> 16;
    to[i] = __float2bfloat16_rn((static_cast<float>(h >> 8) * 0x1p-24f - 0.5f) * 3.46f * scale);
  }
}

__global__ void empty_kernel() {
  release_next();
  wait_for_previous();
}

}  // namespace

void read_all(const void* from, size_t bytes, uint32_t* to, int blocks, Stream stream) {
  read_kernel<<<blocks, 512, 0, stream>>>(static_cast<const uint4*>(from), bytes / 16, to);
}
void fill_random(void* to, size_t count, uint32_t seed, float deviation, Stream stream) {
  fill_kernel<<<1024, 256, 0, stream>>>(static_cast<bf16*>(to), count, seed, deviation);
}
void do_nothing(Stream stream) { empty_kernel<<<1, 32, 0, stream>>>(); }

}  // namespace espalier::kernels::cuda
