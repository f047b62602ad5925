// Where draft tokens come from if nothing is set, and what --speculative-draft-model-path may name:
// decided and checked before weights take their time.
#pragma once

#include "base/status.h"
#include "engine/config.h"
#include "models/model.h"

namespace espalier {

// In place of "auto", once the device is known: EAGLE3 on the CPU where the model's folder has a
// head for it and nothing is set that heads do not go with; else none. target: the model's own.
void choose_drafter(const ModelInfo& target, EngineConfig& config);

// kInvalidArgument for a folder of another kind than --speculative-algorithm runs, for it would run
// beside that name, and for a draft model of another vocabulary, by the first token that differs.
// target: the model's own.
Status check_draft_folder(const EngineConfig& config, const ModelInfo& target);

}  // namespace espalier
