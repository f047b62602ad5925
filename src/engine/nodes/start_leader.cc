#include "engine/nodes/start_leader.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/fatal_exit.h"
#include "base/log.h"
#include "cache/kv_pool.h"
#include "engine/engine_impl.h"
#include "engine/executor/cpu_executor.h"
#include "engine/nodes/node_part.h"
#include "engine/nodes/nodes_executor.h"
#include "engine/text_io/open_tokenizer.h"
#include "nodes/bytes.h"

namespace espalier {
namespace {

// The leader's choices, with as many tokens of cache as the smallest node can have.
Result<EngineConfig> plan_nodes(NodePart& part) {
  // The weights of all nodes together decide the type of the cache, as those of one process do.
  ModelInfo whole = part.info();
  whole.weight_bytes *= part.group->num_nodes();
  ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(part.config, whole));
  EngineConfig config = part.config;
  config.cache.kv_cache_dtype = type == KvType::kFloat32    ? "float32"
                                : type == KvType::kBFloat16 ? "bfloat16"
                                                            : "fp8_e4m3";
  ESP_ASSIGN_OR_RETURN(EngineConfig own, resolve(config, part.part_info(), part.system));
  NodePlan plan{.kv_cache_dtype = config.cache.kv_cache_dtype,
                .max_running_requests = own.schedule.max_running_requests,
                .chunked_prefill_size = own.schedule.chunked_prefill_size,
                .max_prefill_tokens = own.schedule.max_prefill_tokens,
                .context_length = own.model.context_length};
  const auto send_plan = [&]() -> Status {
    for (int32_t i = 0; i < part.group->num_links(); ++i)
      ESP_RETURN_IF_ERROR(
          part.group->link(i).send(nodes::MessageType::kPlan, encode(plan), kNodeLoadingWait));
    return {};
  };
  ESP_RETURN_IF_ERROR(send_plan());
  if (part.gpu) {
    const EngineConfig planned = with_plan(part.config, plan);
    ESP_ASSIGN_OR_RETURN(part.system, part.gpu->reserve(planned));
    ESP_ASSIGN_OR_RETURN(own, resolve(planned, part.part_info(), part.system));
  }
  plan.max_total_tokens = own.cache.max_total_tokens;
  for (int32_t i = 0; i < part.group->num_links(); ++i) {
    ESP_ASSIGN_OR_RETURN(const std::string_view answer,
                         part.group->link(i).receive_one(nodes::MessageType::kPlan, sizeof(int32_t),
                                                         kNodeLoadingWait));
    const int32_t tokens = nodes::ByteReader(answer).number_in(1, own.cache.max_total_tokens);
    if (tokens == 0)
      return fail(error(StatusCode::kDataLoss, "node {} states no size of its cache", i + 1));
    plan.max_total_tokens = std::min(plan.max_total_tokens, tokens);
  }
  ESP_RETURN_IF_ERROR(send_plan());
  return resolve(with_plan(part.config, plan), part.part_info(), part.system);
}

Result<std::unique_ptr<Executor>> make_executor(const EngineConfig& config, NodePart& part) {
  NodesExecutorParts parts;
  parts.sender = std::make_unique<StepSender>(*part.group);
  if (part.gpu) {
    ESP_RETURN_IF_ERROR(part.gpu->fill(config));
    parts.node = std::make_unique<NodePart>(std::move(part));
    return std::make_unique<NodesExecutor>(std::move(parts));
  }
  const ModelInfo info = part.model->info();
  ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(config, info));
  ESP_ASSIGN_OR_RETURN(KvPool kv, KvPool::create(kv_pool_config(config, info, type)));
  auto model = std::make_unique<LeaderModel>(std::move(part.model), *parts.sender);
  ESP_ASSIGN_OR_RETURN(
      parts.inner,
      CpuExecutor::create(
          {.pool = std::move(part.pool), .model = std::move(model), .kv = std::move(kv)},
          {.max_slots = config.schedule.max_running_requests,
           .max_tokens = step_tokens_max(config),
           .first_chain_page = config.cache.max_total_tokens / config.cache.page_size}));
  parts.node = std::make_unique<NodePart>(std::move(part));
  return std::make_unique<NodesExecutor>(std::move(parts));
}

}  // namespace

Result<std::unique_ptr<Engine>> create_leader(const EngineConfig& config,
                                              const NodeSettings& settings,
                                              MakePrefixCache make_cache) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  Engine::Parts parts{.make_cache = std::move(make_cache)};
  if (!config.model.skip_tokenizer_init) {
    ESP_ASSIGN_OR_RETURN(parts.tokenizer, open_tokenizer(config.model.tokenizer_path.empty()
                                                             ? config.model.model_path
                                                             : config.model.tokenizer_path));
  }
  ESP_ASSIGN_OR_RETURN(parts.defaults, read_generation_defaults(config.model.model_path));
  ESP_ASSIGN_OR_RETURN(NodePart part, start_node_part(config, settings, end_process_soon));
  parts.info = part.info();
  nodes::NodeGroup& group = *part.group;
  auto effective = plan_nodes(part);
  if (effective) {
    auto executor = make_executor(*effective, part);
    if (executor) parts.executor = *std::move(executor);
    if (!executor) effective = fail(executor.error());
  }
  if (!effective) {
    group.set_broken(effective.error());
    return fail(group.status());
  }
  parts.expert_counts = std::move(part.expert_counts);
  if (parts.expert_counts) ESP_RETURN_IF_ERROR(parts.expert_counts->begin());
  log_info("nodes ready nnodes={} tp_size={} ranks_here={} max_total_tokens={} seconds={:.2f}",
           settings.nnodes, config.compute.tp_size, config.compute.tp_size / settings.nnodes,
           effective->cache.max_total_tokens, to_seconds(clock.now() - start));
  return EngineImpl::start(*effective, std::move(parts));
}

}  // namespace espalier
