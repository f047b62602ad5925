// The ranks that a node computes on its GPUs, among those of all nodes, which NCCL joins. There in
// every build; one without CUDA says that it has none.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/config.h"
#include "engine/executor/executor.h"
#include "engine/startup/system_info.h"
#include "models/model.h"
#include "nodes/node_group.h"

namespace espalier {

// Steps: start(), then reserve() and fill() with what the nodes have agreed on, then executor().
// Not thread-safe but for stop().
class GpuNodePart {
 public:
  // Begins to load this node's ranks, to the open GPU and those behind it; system: that GPU's.
  // Returns when the ranks of all nodes have met.
  static Result<std::unique_ptr<GpuNodePart>> start(const EngineConfig& config,
                                                    const SystemInfo& system,
                                                    nodes::NodeGroup& group);
  virtual ~GpuNodePart() = default;

  virtual const ModelInfo& info() const = 0;       // of the whole model
  virtual const ModelInfo& rank_info() const = 0;  // of the largest part of a rank
  // Takes all device memory but that of keys and values; returns what resolve() takes of the system
  // from then on. config: the user's, with what the leader has chosen.
  virtual Result<SystemInfo> reserve(const EngineConfig& config) = 0;
  // Takes keys and values, and runs the first steps, which all nodes do at the same time.
  virtual Status fill(const EngineConfig& effective) = 0;
  // Ends what waits for ranks of other nodes. Thread-safe.
  virtual void stop() = 0;
  // Runs the batches that all nodes run; the leader's has results. Lives as long as this.
  virtual Executor& executor() = 0;
};

}  // namespace espalier
