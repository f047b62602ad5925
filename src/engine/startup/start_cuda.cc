#include "engine/startup/start_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/executor/cuda/cuda_executor.h"
#include "engine/executor/cuda/cuda_ranks.h"
#include "engine/executor/cuda/cuda_stages.h"
#include "engine/startup/cuda_settings.h"
#include "models/cuda/cuda_model_weights.h"
#include "models/cuda/encoder.h"
#include "models/cuda/text_encoder.h"
#include "models/load_draft_head.h"
#include "models/model_plan.h"
#include "models/two_encoders.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

// Of an 80 GB GPU 5 GB: 60 adapters of rank 16 of an 8 B model.
constexpr int64_t kAdapterShare = 16;
// Of an H200 4 GB of pages on their way to decode servers: 32,000 tokens of an 8 B model.
constexpr int64_t kStagingShare = 32;

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

void log_memory(const MemoryPlan& plan, const EngineConfig& config) {
  log_info(
      "device memory weights_gib={:.2f} encoder_gib={:.2f} adapters_gib={:.2f} scratch_gib={:.2f} "
      "steps_gib={:.2f} "
      "graphs_gib={:.2f} kv_gib={:.2f} max_total_tokens={}",
      gib(plan.weights), gib(plan.encoder), gib(plan.adapters), gib(plan.scratch), gib(plan.steps),
      gib(plan.graphs), gib(plan.kv), config.cache.max_total_tokens);
}

// The encoder of a model that reads pictures, on the open device, and the bytes it takes there; 0:
// the model reads text alone. Before the KV cache takes what is left.
Result<int64_t> load_encoder(const ModelLoadOptions& options, const EngineConfig& config,
                             StartedExecutor& out) {
  if (!out.info.images) return 0;
  ESP_ASSIGN_OR_RETURN(
      auto encoder,
      CudaEncoder::load(options, {.deterministic = config.compute.enable_deterministic_inference}));
  int64_t bytes = encoder->device_bytes();
  out.image_encoder = std::move(encoder);
  ESP_ASSIGN_OR_RETURN(
      auto videos, CudaEncoder::load_videos(
                       options, {.batch_max = 1,
                                 .deterministic = config.compute.enable_deterministic_inference}));
  if (videos == nullptr) return bytes;
  bytes += videos->device_bytes();
  out.image_encoder =
      std::make_unique<TwoEncoders>(std::move(out.image_encoder), std::move(videos));
  return bytes;
}

// The user's settings, but for what has been resolved and does not depend on memory.
EngineConfig with_sizes(const EngineConfig& config, const EngineConfig& sizes) {
  EngineConfig user = config;
  user.sampling.random_seed = sizes.sampling.random_seed;
  user.schedule.max_running_requests = sizes.schedule.max_running_requests;
  return user;
}

// Gives the KV cache what is left. local: what one GPU has of the model. Executors of one GPU and
// of several have the same steps here.
template <typename AnyExecutor>
Status fill_memory(AnyExecutor& executor, const EngineConfig& config, const EngineConfig& sizes,
                   const SystemInfo& system, const ModelInfo& local, KvType type,
                   StartedExecutor& out) {
  ESP_ASSIGN_OR_RETURN(const int64_t budget, executor.kv_budget_bytes());
  SystemInfo left = system;
  left.available_bytes = budget + local.weight_bytes;
  if (local.draft_kv) {
    const int32_t pages =
        CudaDraftChains::num_pages(sizes.schedule.max_running_requests,
                                   sizes.speculation.speculative_num_steps, sizes.cache.page_size);
    left.available_bytes -= int64_t{pages} * sizes.cache.page_size * local.kv_bytes_per_token(type);
  }
  left.available_bytes -= config.disaggregation.disaggregation_staging_bytes;
  ESP_ASSIGN_OR_RETURN(out.config, resolve(with_sizes(config, sizes), local, left));
  ESP_RETURN_IF_ERROR(executor.allocate_kv(kv_pool_config(out.config, local, type)));
  log_memory(executor.memory_plan(), out.config);
  ESP_RETURN_IF_ERROR(executor.warm_up());
  return executor.finish_loading();
}

// Adapters' memory is reserved at the start, before the KV cache takes what is left.
EngineConfig with_adapter_bytes(EngineConfig config, const SystemInfo& system) {
  if (config.lora.enable_lora && config.lora.max_lora_bytes == 0)
    config.lora.max_lora_bytes =
        std::max(system.available_bytes / kAdapterShare, int64_t{64} << 20);
  return config;
}

// The same for pages that a prefill server sends.
EngineConfig with_staging_bytes(EngineConfig config, const SystemInfo& system) {
  DisaggregationSettings& d = config.disaggregation;
  if (d.disaggregation_mode == "prefill" && d.disaggregation_transfer_backend == "auto" &&
      d.disaggregation_staging_bytes == 0)
    d.disaggregation_staging_bytes = system.available_bytes / kStagingShare;
  return config;
}

// Makes what replaces the weights of these decoders, with copies on the host where the user wants
// them and there is room.
Status make_weights(std::vector<const CudaDecoder*> decoders, const ModelLoadOptions& options,
                    const EngineConfig& config, StartedExecutor& out) {
  const bool copies = config.compute.enable_weights_cpu_backup;
  if (copies) {
    const int64_t available = read_system_info().available_bytes;
    if (out.info.weight_bytes > available)
      return error(StatusCode::kResourceExhausted,
                   "--enable-weights-cpu-backup takes {:.2f} GiB of the host's memory, and {:.2f} "
                   "GiB are available: leave it out, and weights are read from their files again",
                   gib(out.info.weight_bytes), gib(available));
  }
  ESP_ASSIGN_OR_RETURN(out.weights, make_cuda_model_weights(std::move(decoders), options, copies));
  return Status();
}

Result<StartedExecutor> start_one(const EngineConfig& user, const SystemInfo& system) {
  const EngineConfig config = with_staging_bytes(with_adapter_bytes(user, system), system);
  ModelLoadOptions options = model_load_options(config);
  StartedExecutor out{.expert_counts = make_expert_counts(config)};
  options.expert_counts = out.expert_counts.get();
  ESP_ASSIGN_OR_RETURN(ModelPlan plan, plan_model(options));
  ESP_ASSIGN_OR_RETURN(const auto head_spec, plan_draft_head(options, plan.spec));
  ESP_ASSIGN_OR_RETURN(auto model, CudaDecoder::begin_load(std::move(plan), options));
  out.info = model->info();
  ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(config, out.info));
  ESP_RETURN_IF_ERROR(model->set_kv_type(type));
  std::unique_ptr<CudaDraftHead> head;
  if (head_spec) {
    ESP_ASSIGN_OR_RETURN(head, CudaDraftHead::load(*head_spec, options, *model));
    out.info.draft_kv = head->kv_info();
  }
  // What does not depend on memory; the KV cache's size follows from what is then left.
  ESP_ASSIGN_OR_RETURN(const EngineConfig sizes, resolve(config, out.info, system));
  const CudaDecoder& decoder = *model;
  ESP_ASSIGN_OR_RETURN(const int64_t encoder_bytes, load_encoder(options, config, out));
  ESP_ASSIGN_OR_RETURN(
      auto executor,
      CudaExecutor::create(std::move(model), cuda_executor_config(sizes, system, encoder_bytes),
                           std::move(head)));
  ESP_RETURN_IF_ERROR(fill_memory(*executor, config, sizes, system, out.info, type, out));
  ESP_RETURN_IF_ERROR(make_weights({&decoder}, options, config, out));
  out.executor = std::move(executor);
  return out;
}

// On the GPUs from the open one on.
Result<StartedExecutor> start_ranks(const EngineConfig& config, const SystemInfo& system) {
  ModelLoadOptions options = model_load_options(config);
  StartedExecutor out{.expert_counts = make_expert_counts(config)};
  options.expert_counts = out.expert_counts.get();
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  std::vector<int32_t> devices(static_cast<size_t>(config.compute.tp_size));
  std::iota(devices.begin(), devices.end(), cuda::current_device());
  ESP_ASSIGN_OR_RETURN(auto ranks, CudaRanks::begin_load(plan, options, devices));
  out.info = ranks->info();
  ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(config, out.info));
  ESP_RETURN_IF_ERROR(ranks->set_kv_type(type));
  ESP_ASSIGN_OR_RETURN(const EngineConfig sizes, resolve(config, ranks->rank_info(), system));
  ESP_RETURN_IF_ERROR(make_weights(ranks->decoders(), options, config, out));
  ESP_ASSIGN_OR_RETURN(const int64_t encoder_bytes, load_encoder(options, config, out));
  ESP_RETURN_IF_ERROR(ranks->reserve(cuda_executor_config(sizes, system, encoder_bytes)));
  ESP_RETURN_IF_ERROR(fill_memory(*ranks, config, sizes, system, ranks->rank_info(), type, out));
  out.executor = std::move(ranks);
  return out;
}

// The stage with room for the fewest tokens decides how many all hold.
Status fill_stages(CudaStages& stages, const EngineConfig& config, const EngineConfig& sizes,
                   const SystemInfo& system, KvType type, StartedExecutor& out) {
  EngineConfig user = with_sizes(config, sizes);
  SystemInfo left = system;
  left.available_bytes = 0;
  int32_t tokens_min = std::numeric_limits<int32_t>::max();
  for (int32_t i = 0; i < stages.num_stages(); ++i) {
    ESP_ASSIGN_OR_RETURN(const int64_t budget, stages.stage(i).kv_budget_bytes());
    SystemInfo own = system;
    own.available_bytes = budget + stages.stage_info(i).weight_bytes;
    left.available_bytes += own.available_bytes;
    const auto resolved = resolve(user, stages.stage_info(i), own);
    if (!resolved) return resolved.error().with_context(fmt::format("stage {}", i));
    tokens_min = std::min(tokens_min, resolved->cache.max_total_tokens);
  }
  user.cache.max_total_tokens = tokens_min;
  ModelInfo local = stages.info();  // what one rank of each stage has, together
  local.num_kv_heads = stages.stage_info(0).num_kv_heads;
  local.weight_bytes = 0;
  for (int32_t i = 0; i < stages.num_stages(); ++i)
    local.weight_bytes += stages.stage_info(i).weight_bytes;
  ESP_ASSIGN_OR_RETURN(out.config, resolve(user, local, left));
  std::vector<KvPoolConfig> pools;
  for (int32_t i = 0; i < stages.num_stages(); ++i)
    pools.push_back(kv_pool_config(out.config, stages.stage_info(i), type));
  ESP_RETURN_IF_ERROR(stages.allocate_kv(pools));
  log_memory(stages.memory_plan(), out.config);
  ESP_RETURN_IF_ERROR(stages.warm_up());
  return stages.finish_loading();
}

// The ranks of one stage behind those of the other, from the open GPU on.
Result<StartedExecutor> start_stages(const EngineConfig& config, const SystemInfo& system) {
  const ModelLoadOptions options = model_load_options(config);
  StartedExecutor out;
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  CudaStagesConfig stages_config{.micro_batch_tokens = config.compute.pp_micro_batch_tokens};
  int32_t device = cuda::current_device();
  for (int32_t i = 0; i < config.compute.pp_size; ++i) {
    std::vector<int32_t>& devices = stages_config.devices.emplace_back(config.compute.tp_size);
    std::iota(devices.begin(), devices.end(), device);
    device += config.compute.tp_size;
  }
  ESP_ASSIGN_OR_RETURN(auto stages, CudaStages::begin_load(plan, options, stages_config));
  out.info = stages->info();
  ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(config, out.info));
  ESP_RETURN_IF_ERROR(stages->set_kv_type(type));
  ESP_ASSIGN_OR_RETURN(const EngineConfig sizes, resolve(config, stages->stage_info(0), system));
  ESP_ASSIGN_OR_RETURN(out.weights, make_cuda_model_weights(stages->decoders(), options));
  ESP_ASSIGN_OR_RETURN(const int64_t encoder_bytes, load_encoder(options, config, out));
  ESP_RETURN_IF_ERROR(stages->reserve(cuda_executor_config(sizes, system, encoder_bytes)));
  ESP_RETURN_IF_ERROR(fill_stages(*stages, config, sizes, system, type, out));
  out.executor = std::move(stages);
  return out;
}

// What does not go with stages on GPUs, besides what goes with no stages.
Status check_stages_on_gpus(const EngineConfig& config) {
  if (config.compute.pp_size == 1) return {};
  const auto refuse = [](std::string_view what, std::string_view flag) {
    return error(StatusCode::kUnimplemented,
                 "{} not divided into stages of a pipeline on GPUs: leave {} or --pp-size out",
                 what, flag);
  };
  if (config.disaggregation.disaggregation_mode != "null")
    return refuse("pages between servers are", "--disaggregation-mode");
  return {};
}

// What does not go with data-parallel attention on GPUs, besides what does not go with it at all.
Status check_own_rows(const EngineConfig& config) {
  if (!config.compute.enable_dp_attention) return {};
  const auto refuse = [](std::string_view what, const std::string& flag) {
    return error(StatusCode::kUnimplemented,
                 "{} where GPUs have requests of their own: leave {} or --enable-dp-attention out",
                 what, flag);
  };
  if (config.speculation.speculative_algorithm != "none")
    return refuse("there are no draft tokens",
                  "--speculative-algorithm " + config.speculation.speculative_algorithm);
  if (config.compute.enable_eplb || config.compute.ep_num_redundant_experts > 0)
    return refuse("experts stay where they are",
                  config.compute.enable_eplb ? "--enable-eplb" : "--ep-num-redundant-experts");
  if (config.compute.expert_distribution_recorder_mode != "none")
    return refuse("tokens of experts are not counted", "--expert-distribution-recorder-mode");
  return {};
}

}  // namespace

Result<StartedExecutor> start_cuda_executor(const EngineConfig& config, const SystemInfo& system) {
  if (config.model.dtype == "q8_0" || config.model.dtype == "q4_k") {
    return fail(error(StatusCode::kUnimplemented,
                      "quantization is {}, which a GPU does not do yet; leave it out, or use "
                      "--device cpu",
                      config.model.dtype));
  }
  if (config.lora.enable_lora && config.compute.tp_size > 1) {
    return fail(error(StatusCode::kUnimplemented,
                      "--tp-size is {}, and adapters are not divided among GPUs; leave "
                      "--enable-lora and --lora-paths out, or use --dp-size for several GPUs",
                      config.compute.tp_size));
  }
  if (config.speculation.has_draft_model()) {
    return fail(
        invalid_argument("speculative_algorithm is STANDALONE, and a GPU runs no draft models: set "
                         "EAGLE3, NEXTN or COMBINED, or use --device cpu"));
  }
  ESP_RETURN_IF_ERROR(check_stages_on_gpus(config));
  ESP_RETURN_IF_ERROR(check_own_rows(config));
  if (config.speculation.has_draft_head() && config.compute.tp_size > 1) {
    return fail(error(StatusCode::kUnimplemented,
                      "--tp-size is {}, and draft heads are not divided among GPUs; set "
                      "--speculative-algorithm to COMBINED, or use --dp-size for several GPUs",
                      config.compute.tp_size));
  }
  if (config.compute.pp_size > 1) return start_stages(config, system);
  return config.compute.tp_size > 1 ? start_ranks(config, system) : start_one(config, system);
}

Result<std::unique_ptr<TextEncoder>> start_cuda_text_encoder(const EngineConfig& config,
                                                             int32_t step_tokens_max) {
  return CudaTextEncoder::load(model_load_options(config),
                               {.step_tokens_max = step_tokens_max,
                                .deterministic = config.compute.enable_deterministic_inference});
}

}  // namespace espalier
