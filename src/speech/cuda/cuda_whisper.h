// A Whisper model on a GPU: a WhisperRunner whose windows are encoded one by one and whose slots'
// tokens are decoded together.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "speech/weight_reader.h"
#include "speech/whisper_runner.h"

namespace espalier::speech {

// On the GPU of this index. kUnavailable where there is none, as in a build without CUDA.
Result<std::unique_ptr<WhisperRunner>> make_cuda_runner(const RunnerParts& parts, int32_t device);

// The same of any tensors, for benchmarks. type: kBFloat16 or kFloat32. sizes: borrowed.
Result<std::unique_ptr<WhisperRunner>> make_cuda_runner(const WhisperSizes& sizes,
                                                        TensorSource& source, DType type,
                                                        int32_t num_slots, int32_t device);

}  // namespace espalier::speech
