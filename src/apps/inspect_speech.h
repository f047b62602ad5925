// espalier inspect of a model that turns speech into text.
#pragma once

#include "base/status.h"
#include "engine/config.h"

namespace espalier::apps {

// Prints what the folder `config.model.model_path` holds and what serving it here takes, as a table
// or as one JSON object.
Status inspect_speech(const EngineConfig& config, bool json);

}  // namespace espalier::apps
