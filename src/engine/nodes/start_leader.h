// The engine of node 0, whose model several nodes compute.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/nodes/settings.h"

namespace espalier {

// Waits until all nodes have joined and loaded. When a node is lost later, requests end with an
// error that says why, and the process ends with kExitCannotGoOn. Weights, adapters and tiers are
// refused by name (check_node_settings()); all else works as on one node.
// REQUIRES: settings.node_rank is 0 and settings.nnodes above 1.
Result<std::unique_ptr<Engine>> create_leader(const EngineConfig& config,
                                              const NodeSettings& settings,
                                              MakePrefixCache make_cache = make_prefix_cache);

}  // namespace espalier
