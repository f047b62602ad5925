// What is to be loaded, before any weight is: what load_model and other back ends' loaders begin with.
#pragma once

#include "base/status.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "tensor/dtype.h"

namespace espalier {

struct ModelPlan {
  DecoderSpec spec;                // valid, with the context length that was asked for
  DType type = DType::kBFloat16;  // what matrices are to be held in: kFloat32 or kBFloat16
};

// Reads config.json and generation_config.json. Uses path, dtype and context_length.
Result<ModelPlan> plan_model(const ModelLoadOptions& options);

}  // namespace espalier
