#include "engine/startup/start_cpu.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cache/kv_pool.h"
#include "engine/executor/cpu_executor.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

CpuExecutorConfig executor_config(const EngineConfig& c) {
  const int32_t prefill = std::min(c.schedule.chunked_prefill_size, c.schedule.max_prefill_tokens);
  return {.max_slots = c.schedule.max_running_requests,
          .max_tokens = prefill + c.schedule.max_running_requests,
          .first_chain_page = c.cache.max_total_tokens / c.cache.page_size};
}

Result<KvPool> make_kv_pool(const EngineConfig& config, const ModelInfo& info) {
  ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(config, info));
  KvPoolConfig pool = kv_pool_config(config, info, type);
  if (info.draft_kv)
    pool.num_pages += DraftChains::num_pages(config.schedule.max_running_requests, pool.page_size);
  return KvPool::create(pool);
}

// The encoder computes on threads of its own, beside the decoder's steps.
Status load_encoder(int32_t num_threads, ModelLoadOptions options, StartedExecutor& out) {
  out.image_work = std::make_unique<WorkPool>(num_threads, options.first_cpu);
  options.pool = out.image_work.get();
  options.progress = nullptr;
  ESP_ASSIGN_OR_RETURN(out.image_encoder, load_image_encoder(options));
  return {};
}

}  // namespace

std::unique_ptr<ExpertCounts> make_expert_counts(const EngineConfig& config) {
  const ComputeSettings& c = config.compute;
  if (c.expert_distribution_recorder_mode == "none" && !c.enable_eplb) return nullptr;
  return std::make_unique<ExpertCounts>();
}

Result<StartedExecutor> start_cpu_executor(const EngineConfig& config, const SystemInfo& system) {
  const int32_t cpus = std::max(1, system.num_cpus);
  if (config.compute.num_threads > cpus)
    log_warning("{} threads were requested, but only {} can run at once on this system; using {}",
                config.compute.num_threads, cpus, cpus);
  auto pool = std::make_unique<WorkPool>(std::min(config.compute.num_threads, cpus),
                                         config.compute.first_cpu);
  ModelLoadOptions options = model_load_options(config);
  options.pool = pool.get();
  options.tp_size = config.compute.tp_size;
  options.pp_size = config.compute.pp_size;
  options.pp_micro_batch_tokens = config.compute.pp_micro_batch_tokens;
  options.first_cpu = config.compute.first_cpu;
  StartedExecutor out{.expert_counts = make_expert_counts(config)};
  options.expert_counts = out.expert_counts.get();
  ESP_ASSIGN_OR_RETURN(auto model, load_model(options));
  out.info = model->info();
  ESP_ASSIGN_OR_RETURN(out.weights, make_model_weights(*model, options));
  SystemInfo left = system;
  if (out.info.images) {
    ESP_RETURN_IF_ERROR(load_encoder(pool->num_threads(), options, out));
    left.available_bytes -= out.image_encoder->info().weight_bytes;
  }
  ESP_ASSIGN_OR_RETURN(out.config, resolve(config, out.info, left));
  ESP_ASSIGN_OR_RETURN(KvPool kv, make_kv_pool(out.config, out.info));
  ESP_ASSIGN_OR_RETURN(
      out.executor,
      CpuExecutor::create({.pool = std::move(pool), .model = std::move(model), .kv = std::move(kv)},
                          executor_config(out.config)));
  return out;
}

}  // namespace espalier
