// The engine of a model that turns speech into text. To what is built on an engine it is one that
// takes no texts: submit() refuses, and its transcriber takes sounds.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace espalier {

class Transcriber;

// Loads the model of `config`. It computes on the CPU; where the configuration leaves the device
// open the log reports that, and a device that is stated to be a GPU is refused, as are ranks,
// replicas, adapters and dummy weights, each by the setting's name.
Result<std::unique_ptr<Engine>> start_speech_engine(const EngineConfig& config);

// Where the requests of such an engine go; null for all others. Lives as long as the engine.
Transcriber* transcriber_of(Engine& engine);

}  // namespace espalier
