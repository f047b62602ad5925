// The weights of a Whisper model on the thread's current device: matrices row by row, all in one
// type. Owns its memory; immutable once loaded.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "speech/weight_reader.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"
#include "tensor/dtype.h"

namespace espalier::speech {

struct CudaMatrix {
  const void* data = nullptr;  // [outputs, inputs]; rows of zeros fill up the last eight
  int32_t outputs = 0, inputs = 0;
};

struct CudaFormat {
  using Matrix = CudaMatrix;
  using Vector = const void*;
};

struct CudaWhisperWeights : WhisperWeightsOf<CudaFormat> {
  DType type = DType::kBFloat16;
  std::vector<cuda::DeviceBuffer> blocks;  // of all of them
  int64_t size_bytes = 0;
};

// type: kBFloat16 or kFloat32. Waits until all is there.
Result<CudaWhisperWeights> load_cuda_whisper_weights(TensorSource& source,
                                                     const WhisperSizes& sizes, DType type,
                                                     const cuda::Stream& stream);

}  // namespace espalier::speech
