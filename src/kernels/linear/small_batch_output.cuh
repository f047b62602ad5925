// What kernels for few rows share that compute y^T = W x^T with the weights as the rows: the
// division of the work among blocks and splits, the sums in shared memory, and the epilogue
// (scales, bias, SiLU or residual). Device code of gemm_small_batch.cu and gemm_int4.cu.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tensor_copy.cuh"

namespace espalier::kernels::cuda {

constexpr int kWarps = 8;  // consumers
constexpr int kMathThreads = kWarps * 32;
constexpr int kThreads = kMathThreads + 32;

// Where sums go. A block has `groups` groups of 16 rows of weights: 16 outputs, or with SiLU eight
// of gate and eight of up.
struct SmallBatchOutput {
  void* y;
  int64_t y_stride;
  const bf16* bias;
  const bf16* residual;
  const float* x_scales;       // of e4m3: [rows]; null: all are 1
  const float* weight_scales;  // of e4m3 and NVFP4: [out], [2 out] with SiLU
  int rows, out;
  int splits, groups;
  bool silu, float_out;
};

// Sums of a block lie in shared memory as [PARTS][COLUMNS][sums_stride(OUTPUTS)] float32: PARTS
// groups of warps have different inputs, COLUMNS is the room for rows of x and OUTPUTS that for
// rows of weights. The stride has padding that keeps a warp's stores in different banks.
__host__ __device__ constexpr int sums_stride(int outputs) { return outputs + 4; }
__host__ __device__ constexpr size_t sums_bytes(int parts, int columns, int outputs) {
  return static_cast<size_t>(parts * columns * sums_stride(outputs)) * 4;
}

// --- clusters ---

__device__ __forceinline__ void cluster_sync() {
  ESP_HOPPER_ASM("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
// The address in another block's shared memory of what lies at `address` here.
__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t rank) {
  uint32_t there = address;
  ESP_HOPPER_ASM("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ float4 load_in(uint32_t address) {
  float4 v{};
  ESP_HOPPER_ASM("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
  return v;
}

// The share of the GEMM that this block has; its rank in the cluster is the split.
struct BlockWork {
  int tile, split;
  int begin, end;  // tiles along the inputs
  __device__ BlockWork(int k_tiles, int splits) {
    tile = static_cast<int>(blockIdx.x) / splits;
    split = static_cast<int>(blockIdx.x) % splits;
    begin = k_tiles * split / splits;
    end = k_tiles * (split + 1) / splits;
  }
};

// Adds up the sums of eight adjacent outputs of a row over all splits and parts. `at`: address of
// the first part's sums in a block.
template <int PARTS, int COLUMNS, int OUTPUTS>
__device__ __forceinline__ void add_partials(const SmallBatchOutput& p, uint32_t at,
                                             float (&to)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = 0;
  for (int split = 0; split < p.splits; ++split) {
    const uint32_t there = address_in(at, static_cast<uint32_t>(split));
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      const uint32_t from = there + part * COLUMNS * sums_stride(OUTPUTS) * 4;
      const float4 a = load_in(from), b = load_in(from + 16);
      to[0] += a.x, to[1] += a.y, to[2] += a.z, to[3] += a.w;
      to[4] += b.x, to[5] += b.y, to[6] += b.z, to[7] += b.w;
    }
  }
}

__device__ __forceinline__ void add8(const bf16* from, float (&to)[8]) {
  float values[8];
  load8(from, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] += values[i];
}

__device__ __forceinline__ void scale8(const float* scales, float row_scale, float (&to)[8]) {
  float values[8];
  load8(scales, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] *= values[i] * row_scale;
}

// Writes this block's share of the rows, with the epilogue.
template <bool SCALED, int PARTS, int COLUMNS, int OUTPUTS>
__device__ void finish(const SmallBatchOutput& p, const BlockWork& work, const float* sums) {
  const int outputs = p.groups * (p.silu ? 8 : 16);  // of the block
  const int eights = outputs / 8, first = work.tile * outputs;
  const int row_begin = p.rows * work.split / p.splits;
  const int row_end = p.rows * (work.split + 1) / p.splits;
  const uint32_t base = shared_address(sums);
  for (int i = threadIdx.x; i < (row_end - row_begin) * eights; i += kMathThreads) {
    const int row = row_begin + i / eights, eight = i % eights, output = first + eight * 8;
    if (output >= p.out) continue;
    const uint32_t from =
        base + static_cast<uint32_t>(row * sums_stride(OUTPUTS) + eight * (p.silu ? 16 : 8)) * 4;
    float values[8];
    add_partials<PARTS, COLUMNS, OUTPUTS>(p, from, values);
    const float row_scale = SCALED && p.x_scales != nullptr ? p.x_scales[row] : 1.0f;
    if constexpr (SCALED) scale8(p.weight_scales + output, row_scale, values);
    if (p.bias != nullptr) add8(p.bias + output, values);
    if (p.silu) {
      float up[8];
      add_partials<PARTS, COLUMNS, OUTPUTS>(p, from + 32, up);
      if constexpr (SCALED) scale8(p.weight_scales + p.out + output, row_scale, up);
      if (p.bias != nullptr) add8(p.bias + p.out + output, up);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = silu(values[j]) * up[j];
    }
    const int64_t at = row * p.y_stride + output;
    if (p.residual != nullptr) add8(p.residual + at, values);
    if (p.float_out)
      store8(static_cast<float*>(p.y) + at, values);
    else
      store8(static_cast<bf16*>(p.y) + at, values);
  }
}

}  // namespace espalier::kernels::cuda
