// A build without CUDA.
#include "speech/cuda/cuda_whisper.h"
#include "tensor/cuda/device.h"

namespace espalier::speech {

Result<std::unique_ptr<WhisperRunner>> make_cuda_runner(const RunnerParts&, int32_t device) {
  ESP_ASSIGN_OR_RETURN(const cuda::DeviceInfo opened, cuda::open_device(device));
  return fail(error(StatusCode::kUnavailable, "{} is not used by this build", opened.name));
}

}  // namespace espalier::speech
