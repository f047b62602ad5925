// The slot that a row's expert is computed in (replica_of(), router/op.h). Device code only.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/router/cuda.h"

namespace espalier::kernels::cuda {

// The expert itself where experts are slots; -1 for what padding may have as an expert.
__device__ __forceinline__ int32_t slot_of(const Replicas& replicas, int32_t expert, int32_t row) {
  if (replicas.table == nullptr) return expert;
  if (static_cast<uint32_t>(expert) >= static_cast<uint32_t>(replicas.num_experts)) return -1;
  const int32_t token = replicas.rows == nullptr ? row : replicas.rows[row];
  const int32_t begin = replicas.table[expert], count = replicas.table[expert + 1] - begin;
  return replicas.table[replicas.num_experts + 1 + begin +
                        replica_of(expert, replicas.positions[token], count)];
}

}  // namespace espalier::kernels::cuda
