// The part of a model that a node computes, as both kinds of nodes start it: what nodes may have,
// joining, and loading.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "engine/config.h"
#include "engine/nodes/gpu_part.h"
#include "engine/nodes/settings.h"
#include "models/expert_counts.h"
#include "models/model.h"
#include "nodes/node_collectives.h"
#include "nodes/node_group.h"
#include "nodes/step_codec.h"
#include "tensor/work_pool.h"

namespace espalier {

// Declared in the order in which they need each other; a node destroys them backwards.
struct NodePart {
  // Called when a node is lost, before the process ends: ends what waits on devices.
  struct StopHook {
    std::mutex mutex;
    std::function<void()> stop;
  };
  std::shared_ptr<StopHook> on_lost = std::make_shared<StopHook>();
  EngineConfig config;  // of this node's ranks
  SystemInfo system;
  std::unique_ptr<nodes::NodeGroup> group;
  std::unique_ptr<nodes::NodeCollectives> collectives;
  std::unique_ptr<ExpertCounts> expert_counts;  // null: none are requested
  std::unique_ptr<WorkPool> pool;
  std::unique_ptr<Model> model;      // null: the ranks are on GPUs
  std::unique_ptr<GpuNodePart> gpu;  // null: they are on CPUs

  NodePart() = default;
  NodePart(NodePart&&) = default;
  NodePart& operator=(NodePart&&) = delete;
  ~NodePart();

  // Of this node's ranks on CPUs, of a rank on GPUs; and of all of these ranks.
  const ModelInfo& part_info() const { return gpu ? gpu->rank_info() : model->info(); }
  const ModelInfo& info() const { return gpu ? gpu->info() : model->info(); }
};

// kUnimplemented names a setting that is not divided among nodes; kInvalidArgument what is wrong.
Status check_node_settings(const EngineConfig& config, const NodeSettings& settings);

// Joins the other nodes and loads this one's part. on_failure: see NodeGroupConfig.
Result<NodePart> start_node_part(const EngineConfig& config, const NodeSettings& settings,
                                 std::function<void(const Status&)> on_failure);

// While nodes load, heartbeats find those that are lost.
inline constexpr Duration kNodeLoadingWait = std::chrono::hours(24);

// What the leader decides for all nodes, once its part is loaded.
struct NodePlan {
  std::string kv_cache_dtype;
  int32_t max_total_tokens = 0;  // 0: as many as the node can have
  int32_t max_running_requests = 0;
  int32_t chunked_prefill_size = 0;
  int32_t max_prefill_tokens = 0;
  int32_t context_length = 0;
};
std::string encode(const NodePlan& plan);
Result<NodePlan> decode_node_plan(std::string_view payload);

// The configuration with the plan in place of its own choices.
EngineConfig with_plan(EngineConfig config, const NodePlan& plan);

// Of steps of an effective configuration.
nodes::StepLimits step_limits(const EngineConfig& config, const ModelInfo& info,
                              bool tokens_from_slots);
// The most tokens of a step, entries' and all.
int32_t step_tokens_max(const EngineConfig& config);

}  // namespace espalier
