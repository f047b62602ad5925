// An executor on the CPU with all that it needs, for the engine, and for measurements that run
// several engines on one.
#pragma once

#include "engine/startup/start_cuda.h"

namespace espalier {

// Loads the model and makes its KV cache. system: what was free before.
Result<StartedExecutor> start_cpu_executor(const EngineConfig& config, const SystemInfo& system);

}  // namespace espalier
