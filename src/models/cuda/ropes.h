// The frequencies of a model's rotary embeddings in device memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/decoder_spec.h"
#include "tensor/cuda/memory.h"

namespace espalier {

// Owns the memory; move-only; immutable, so any thread may read it. Empty by default.
class CudaRopes {
 public:
  static Result<CudaRopes> upload(const DecoderSpec& spec);
  // Of each of the spec's ropes, [rotary_dim / 2].
  std::span<const float* const> frequencies() const { return frequencies_; }

 private:
  cuda::DeviceBuffer block_;
  std::vector<const float*> frequencies_;
};

}  // namespace espalier
