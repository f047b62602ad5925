// Joined branches on one of several replicas, which may not have computed all of them: requests for
// branches may have gone elsewhere.
#pragma once

#include "engine/engine.h"

namespace espalier {

// As Engine::join_branches(), but what the replica's cache lacks is computed there first. `done` is
// called once, on the replica's scheduler thread or on the caller's. The replica outlives it.
void join_on_replica(Engine& replica, JoinRequest request, JoinDone done);

}  // namespace espalier
