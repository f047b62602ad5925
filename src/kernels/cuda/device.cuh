// Device helpers of all kernels: vectors of eight elements, reductions, and the two instructions of
// programmatic dependent launch (PDL).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace espalier::kernels::cuda {

using bf16 = __nv_bfloat16;

// Blocks until the kernel before this one in the stream has ended and its writes are visible. It
// returns at once unless this kernel was launched with PDL.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the kernel after this one start as soon as every block has called it; that kernel still
// waits for this one's end in wait_for_previous().
__device__ __forceinline__ void release_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(bf16 value) { return __bfloat162float(value); }
template <typename T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (sizeof(T) == 2)
    return __float2bfloat16_rn(value);
  else
    return value;
}

// The two bfloat16 of a word, converted exactly.
__device__ __forceinline__ float low_half(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_half(uint32_t word) {
  return __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Eight adjacent elements being loaded: nothing waits for them before unpack(). REQUIRES: 16-byte
// alignment.
template <typename T>
struct Eight;
template <>
struct Eight<bf16> {
  uint4 words;
  __device__ __forceinline__ void load(const bf16* from) {
    words = *reinterpret_cast<const uint4*>(from);
  }
  __device__ __forceinline__ void unpack(float (&to)[8]) const {
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) to[2 * i] = low_half(word[i]), to[2 * i + 1] = high_half(word[i]);
  }
};
template <>
struct Eight<float> {
  float4 a, b;
  __device__ __forceinline__ void load(const float* from) {
    a = reinterpret_cast<const float4*>(from)[0];
    b = reinterpret_cast<const float4*>(from)[1];
  }
  __device__ __forceinline__ void unpack(float (&to)[8]) const {
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  }
};
// Loads eight elements as floats.
template <typename T>
__device__ __forceinline__ void load8(const T* from, float (&to)[8]) {
  Eight<T> eight;
  eight.load(from);
  eight.unpack(to);
}
__device__ __forceinline__ void store8(bf16* to, const float (&from)[8]) {
  *reinterpret_cast<uint4*>(to) =
      make_uint4(pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]),
                 pack_bf16(from[4], from[5]), pack_bf16(from[6], from[7]));
}
__device__ __forceinline__ void store8(float* to, const float (&from)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(from[0], from[1], from[2], from[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(from[4], from[5], from[6], from[7]);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// The sum over the block, returned to every thread, in a fixed order. scratch: [32] in shared
// memory.
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  value = warp_sum(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = warp_sum(lane < warps ? scratch[lane] : 0.0f);
  __syncthreads();
  return value;
}

// The bucket b in [0, num_buckets) with begin[b] <= item < begin[b + 1], by bisection: the entry of
// a token, the group of a row. begin: [num_buckets + 1], ascending, from 0 on.
__device__ __forceinline__ int bucket_of(const int32_t* begin, int num_buckets, int item) {
  int low = 0, high = num_buckets;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (begin[middle] <= item ? low : high) = middle;
  }
  return low;
}

__device__ __forceinline__ float silu(float value) { return value / (1.0f + __expf(-value)); }

}  // namespace espalier::kernels::cuda
