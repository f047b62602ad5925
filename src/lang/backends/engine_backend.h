// The engine in this process as a back end. Only this file, engine_*.h and submission_queue.h
// include engine/. A back end is thread-safe and shares the ownership of its engine.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/engine.h"
#include "lang/backend.h"
#include "lang/backends/chat_frames.h"

namespace espalier::lang {

// The engine may have other clients at the same time. Messages are framed by the chat template of
// its model's folder, or by `frames`. kFailedPrecondition for an engine without a tokenizer.
Result<std::shared_ptr<Backend>> engine_backend(std::shared_ptr<Engine> engine);
Result<std::shared_ptr<Backend>> engine_backend(std::shared_ptr<Engine> engine, ChatFrames frames);
// Loads the model and starts the engine.
Result<std::shared_ptr<Backend>> engine_backend(const EngineConfig& config);
// The engine behind such a back end, for its own interface; null for another one.
std::shared_ptr<Engine> engine_of(const Backend& backend);

}  // namespace espalier::lang
