// Parameters and device helpers that the files of the megakernel share. Device code; internal to
// kernels/megakernel.
#pragma once

#include <cfloat>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/megakernel/cuda.h"

namespace espalier::kernels::cuda::megakernel_impl {

constexpr int kWarps = 8;  // consumers
constexpr int kMathThreads = kWarps * 32;
constexpr int kThreads = kMathThreads + 32;
constexpr int kMaxKvHeads = 128;
constexpr int kMinKeys = 64, kKeysMultiple = 8;  // a block's keys: at least, and a multiple of
constexpr int kMaxDim = 256;

// The counters of the grid barriers. All zero between launches.
struct Counters {
  int arrivals, heads_done, exits, padding;
  int arrived[kMaxKvHeads];  // blocks that are done with their keys of a head
};

struct Params {
  MegakernelShape shape;
  const int32_t* ids;
  const int32_t* token_slots;
  const int32_t* slot_tokens;
  const bf16* embedding;
  int vocab_size;
  EntryArrays entries;
  KvPlanes kv;
  bf16* hidden;    // [hidden]
  bf16* qkv;       // [(heads + 2 kv heads) dim]
  bf16* attended;  // [heads dim]
  bf16* mlp;       // [ffn]
  float* partial;  // [kv heads]: [splits][group][dim] accumulators, [splits][group][2] max and sum
  Counters* counters;
  int page_shift;                  // of kv.page_size
  int x_bytes, slot_bytes, slots;  // of shared memory
  int offsets;                     // of keys, cached in shared memory
  MegakernelLayer layers[kMaxMegakernelLayers];
};

__device__ __forceinline__ bf16 load_fresh(const bf16* from) {
  const unsigned short bits = __ldcg(reinterpret_cast<const unsigned short*>(from));
  return *reinterpret_cast<const bf16*>(&bits);
}
// Loads from global or shared memory, bypassing L1; 8-byte aligned.
__device__ __forceinline__ float2 load_fresh2(const float* from) {
  float2 value;
  asm volatile("ld.relaxed.gpu.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "l"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ float exp2_fast(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}
__device__ __forceinline__ float round_bf16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}
__device__ __forceinline__ void unpack8(const uint4& words, float (&to)[8]) {
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) to[2 * i] = low_half(word[i]), to[2 * i + 1] = high_half(word[i]);
}

__device__ __forceinline__ uint4 pack8(const float* from) {
  float v[8];
  load8(from, v);
  return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                    pack_bf16(v[6], v[7]));
}

// Counts one arrival; what this block wrote before is visible to a block that reads the count in
// wait_count().
__device__ __forceinline__ void count_release(int* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ void wait_count(int* counter, int target) {
  int now = 0;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  } while (now < target);
}

}  // namespace espalier::kernels::cuda::megakernel_impl
