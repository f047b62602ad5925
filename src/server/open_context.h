// Makes what the routes of a server have at hand, for one model. Internal to the room.
#pragma once

#include <memory>

#include "base/status.h"
#include "server/context.h"

namespace espalier::server {

// Compiles the chat template, chooses the parsers and starts what observes. The engine outlives the
// context.
Result<ContextPtr> open_context(ServerConfig config, Engine& engine,
                                std::shared_ptr<ServerParts> parts);

// Of a server of several models, for the routes that need none of them: without a chat template,
// and with the recorders that all models share. config.answers names the default model.
Result<ContextPtr> open_front(ServerConfig config, Engine& engine,
                              std::shared_ptr<ServerParts> parts);

}  // namespace espalier::server
