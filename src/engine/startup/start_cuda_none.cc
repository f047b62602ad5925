// A build without CUDA: no device was opened, so nobody comes here.
#include "engine/startup/start_cuda.h"

namespace espalier {

Result<StartedExecutor> start_cuda_executor(const EngineConfig&, const SystemInfo&) {
  return fail(error(StatusCode::kUnavailable, "this build has no CUDA back end"));
}

Result<std::unique_ptr<TextEncoder>> start_cuda_text_encoder(const EngineConfig&, int32_t) {
  return fail(error(StatusCode::kUnavailable, "this build has no CUDA back end"));
}

}  // namespace espalier
