// A node that computes its part of what the leader schedules. It serves no requests.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "base/status.h"
#include "cache/kv_pool.h"
#include "engine/nodes/node_part.h"

namespace espalier {

class Follower {
 public:
  // Joins the leader, loads, and is ready when it returns. When the leader or another node is lost
  // meanwhile, the process ends as a leader's does. REQUIRES: settings.node_rank is above 0.
  static Result<std::unique_ptr<Follower>> start(const EngineConfig& config,
                                                 const NodeSettings& settings);

  // Computes steps until the leader ends, which is ok, or a node is lost. Logs a line a minute.
  Status run();
  // run() returns, and the others learn that this node was stopped. Thread-safe.
  void stop() { part_.group->leave(); }

 private:
  Follower(NodePart part, const EngineConfig& effective, std::optional<KvPool> kv);
  // Waits for the leader's next message.
  Status await_step();
  void copy_pages();
  void compute_on_cpu();
  // Launches the step, and waits for those beyond what may be in flight.
  Status launch_on_gpu();

  NodePart part_;
  std::optional<KvPool> kv_;            // on CPUs
  std::deque<ForwardBatch> in_flight_;  // on GPUs
  const nodes::StepLimits limits_;
  nodes::StepDecoder decoder_;
  int64_t num_steps_ = 0, num_tokens_ = 0;
};

}  // namespace espalier
