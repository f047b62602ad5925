// Tensor maps: what TMA must know of an array to copy boxes of it into shared memory. For launchers
// in .cu files; thread-safe.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace espalier::kernels::cuda {

using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);

// The driver's cuTensorMapEncodeTiled; null where it has none.
inline TensorMapEncoder tensor_map_encoder() {
  static const TensorMapEncoder found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
      function = nullptr;
    return reinterpret_cast<TensorMapEncoder>(function);
  }();
  return found;
}

// Encodes an array of bfloat16, or of bytes, its contiguous dimension first; strides in bytes, of
// all dimensions but that one. Boxes have 128 contiguous bytes (64 bfloat16) and arrive in the
// layout of swizzled() (wgmma.cuh); elements outside the array arrive as zeros. REQUIRES: 16-byte
// alignment.
template <size_t RANK>
Status encode_tensor_map(const char* operation, CUtensorMap& map, const void* data,
                         const uint64_t (&sizes)[RANK], const uint64_t (&strides)[RANK - 1],
                         const uint32_t (&box)[RANK],
                         CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) {
  if (tensor_map_encoder() == nullptr)
    return error(StatusCode::kUnimplemented,
                 "{}: the driver makes no tensor maps; CUDA 12 has them", operation);
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUresult result = tensor_map_encoder()(
      &map, type, RANK, const_cast<void*>(data), reinterpret_cast<const cuuint64_t*>(sizes),
      reinterpret_cast<const cuuint64_t*>(strides), box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return error(StatusCode::kInternal, "{}: a tensor map was refused with {}", operation,
               static_cast<int>(result));
}

}  // namespace espalier::kernels::cuda
