#include "engine/startup/start_cuda.h"

#include <algorithm>

#include "base/fatal_exit.h"
#include "base/log.h"
#include "engine/executor/cuda/cuda_executor.h"
#include "models/model_plan.h"

namespace espalier {
namespace {

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

void log_memory(const MemoryPlan& plan, const EngineConfig& config) {
  log_info(
      "device memory weights_gib={:.2f} scratch_gib={:.2f} steps_gib={:.2f} graphs_gib={:.2f} "
      "kv_gib={:.2f} max_total_tokens={}",
      gib(plan.weights), gib(plan.scratch), gib(plan.steps), gib(plan.graphs), gib(plan.kv),
      config.max_total_tokens);
}

}  // namespace

Result<StartedExecutor> start_cuda_executor(const EngineConfig& config, const SystemInfo& system) {
  if (config.dtype == "q8_0" || config.dtype == "q4_k") {
    return fail(error(StatusCode::kUnimplemented,
                      "quantization is {}, which a GPU does not do yet; leave it out, or use "
                      "--device cpu",
                      config.dtype));
  }
  if (config.tp_size > 1) {
    return fail(error(StatusCode::kUnimplemented,
                      "tp_size is {}, but one GPU computes a model for now; leave it out, or use "
                      "--device cpu",
                      config.tp_size));
  }
  if (config.enable_lora) {
    return fail(error(StatusCode::kUnimplemented,
                      "adapters are computed on the CPU alone for now; leave --enable-lora and "
                      "--lora-paths out, or use --device cpu"));
  }
  const ModelLoadOptions options = model_load_options(config);
  ESP_ASSIGN_OR_RETURN(ModelPlan plan, plan_model(options));
  ESP_ASSIGN_OR_RETURN(auto model, CudaDecoder::begin_load(std::move(plan), options));
  StartedExecutor out{.info = model->info()};
  ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(config, out.info));
  ESP_RETURN_IF_ERROR(model->set_kv_type(type));
  // What does not depend on memory; the KV cache's size follows from what is then left.
  ESP_ASSIGN_OR_RETURN(const EngineConfig sizes, resolve(config, out.info, system));
  const int32_t chunk = std::min(sizes.chunked_prefill_size, sizes.max_prefill_tokens);
  ESP_ASSIGN_OR_RETURN(
      auto executor,
      CudaExecutor::create(std::move(model), {.max_slots = sizes.max_running_requests,
                                              .max_tokens = chunk + sizes.max_running_requests,
                                              .context_length = sizes.context_length,
                                              .page_size = sizes.page_size,
                                              .graphs = !sizes.disable_cuda_graph,
                                              .cascade = !sizes.disable_cascade_attention,
                                              .deterministic = sizes.enable_deterministic_inference,

                                              // Requests in flight get their errors first.
                                              .on_device_lost = end_process_soon}));
  ESP_ASSIGN_OR_RETURN(const int64_t budget, executor->kv_budget_bytes());
  SystemInfo left = system;
  left.available_bytes = budget + out.info.weight_bytes;
  EngineConfig user = config;
  user.random_seed = sizes.random_seed;
  user.max_running_requests = sizes.max_running_requests;
  ESP_ASSIGN_OR_RETURN(out.config, resolve(user, out.info, left));
  ESP_RETURN_IF_ERROR(executor->allocate_kv(kv_pool_config(out.config, out.info, type)));
  log_memory(executor->memory_plan(), out.config);
  ESP_RETURN_IF_ERROR(executor->warm_up());
  ESP_RETURN_IF_ERROR(executor->finish_loading());
  out.executor = std::move(executor);
  return out;
}

}  // namespace espalier
