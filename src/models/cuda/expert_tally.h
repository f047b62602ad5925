// What the kernels of one GPU count of its experts' pairs. Memory of its own, since it outlives the
// scratch of a decoder.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "models/decoder_spec.h"
#include "models/expert_counts.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

// Thread-safe; the memory lies on the device that was the current one when it was made.
class CudaExpertTally final : public ExpertTally {
 public:
  // spec: what the device has of the model; null for a model without experts.
  static Result<std::shared_ptr<CudaExpertTally>> create(const DecoderSpec& spec);

  // Device memory, [slots that are here], for kernels of this layer.
  unsigned long long* of_layer(int32_t layer) const;
  Status add_to(ExpertTable& table) const override;

 private:
  CudaExpertTally(const DecoderSpec& spec, const ExpertsSpec& experts, cuda::DeviceBuffer counts,
                  cuda::Stream stream);

  const int32_t device_;
  const int32_t num_layers_, first_local_, num_local_;
  const cuda::DeviceBuffer counts_;  // [layers, slots that are here]
  const cuda::Stream stream_;
  mutable std::mutex mutex_;  // of the stream
};

}  // namespace espalier
