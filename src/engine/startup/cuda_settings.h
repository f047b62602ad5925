// What an engine's configuration says to an executor on a GPU.
#pragma once

#include <cstdint>

#include "engine/config.h"
#include "engine/executor/cuda/cuda_executor.h"
#include "engine/startup/system_info.h"

namespace espalier {

// sizes: effective but for the size of the cache. encoder_bytes: what an encoder of pictures has
// taken of the device.
CudaExecutorConfig cuda_executor_config(const EngineConfig& sizes, const SystemInfo& system,
                                        int64_t encoder_bytes = 0);

}  // namespace espalier
