// Starts the replicas of an engine, all at the same time.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/status.h"
#include "engine/engine.h"

namespace espalier {

// One of an engine's replicas: its share of what the system has.
struct ReplicaPart {
  int32_t index = 0;
  int32_t num_replicas = 1;
  // Read once for all, before any of them has taken memory; absent: read when the replica starts.
  std::optional<SystemInfo> host;

  bool single() const { return num_replicas == 1; }
};

// The settings of one replica: bounds that are stated for all are divided; the GPUs of replica i
// stand behind those of the replicas before it.
EngineConfig config_of_replica(const EngineConfig& user, const ReplicaPart& part);

// The processors and the memory of a host that a replica may use.
SystemInfo share_of_host(const SystemInfo& host, const ReplicaPart& part);

// config.compute.dp_size replicas behind one front, all on GPUs or all on the CPU. `start` makes
// one; it is called on a thread of its own for each.
using StartReplica = std::function<Result<std::unique_ptr<Engine>>(const EngineConfig& config,
                                                                   const ReplicaPart& part)>;
Result<std::unique_ptr<Engine>> start_replicas(const EngineConfig& config,
                                               const StartReplica& start);

}  // namespace espalier
