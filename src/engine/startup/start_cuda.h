// An executor on the GPU with all that it needs, for the engine: there in every build.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/config.h"
#include "engine/executor/executor.h"
#include "engine/startup/system_info.h"
#include "models/expert_counts.h"
#include "models/image_encoder.h"
#include "models/model.h"
#include "models/model_weights.h"
#include "models/text_encoder.h"
#include "tensor/work_pool.h"

namespace espalier {

struct StartedExecutor {
  std::unique_ptr<Executor> executor;
  ModelInfo info;
  std::unique_ptr<WorkPool> image_work;         // outlives the encoder
  std::unique_ptr<ImageEncoder> image_encoder;  // null: the model, or the device, takes no pictures
  std::unique_ptr<ExpertCounts> expert_counts;  // null: the configuration does not ask for them
  std::unique_ptr<ModelWeights> weights;
  EngineConfig config;  // effective: the KV cache takes what weights and scratch have left
};

// Null where the configuration does not ask for counts.
std::unique_ptr<ExpertCounts> make_expert_counts(const EngineConfig& config);

// Loads the model onto the device that is open, takes scratch, measures what is left and makes the
// KV cache of it. system: the device's.
Result<StartedExecutor> start_cuda_executor(const EngineConfig& config, const SystemInfo& system);

// Loads the encoder of texts of `config` onto the thread's current device. step_tokens_max: the
// most tokens of a step, for which it reserves scratch.
Result<std::unique_ptr<TextEncoder>> start_cuda_text_encoder(const EngineConfig& config,
                                                             int32_t step_tokens_max);

}  // namespace espalier
