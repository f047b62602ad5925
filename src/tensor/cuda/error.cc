#include "tensor/cuda/error.h"

#include <cuda_runtime_api.h>

namespace espalier::cuda {

Status to_status(int code, std::string_view operation) {
  if (code == cudaSuccess) return Status();
  const auto err = static_cast<cudaError_t>(code);
  const StatusCode kind =
      err == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted : StatusCode::kInternal;
  return error(kind, "CUDA: {}: {} ({})", operation, cudaGetErrorString(err),
               cudaGetErrorName(err));
}

}  // namespace espalier::cuda
