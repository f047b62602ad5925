// How the engine of an encoder of texts is started.
#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/startup/device.h"
#include "engine/startup/start_cuda.h"
#include "engine/startup/system_info.h"
#include "engine/text_io/open_tokenizer.h"
#include "engine/texts/text_engine.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

// Tokens of a step where the configuration states none: enough that a CPU's GEMMs are at their
// roof, and few enough that a short text does not wait long behind them.
constexpr int32_t kStepTokens = 4096, kGpuStepTokens = 16384;
constexpr int32_t kMaxRunning = 256, kMaxQueued = 4096;
constexpr int32_t kTokenizerThreads = 2;

Status check_settings(const EngineConfig& c) {
  const auto refused = [](std::string_view setting) {
    return error(StatusCode::kUnimplemented, "{} is not for an encoder of texts: leave it out",
                 setting);
  };
  const std::pair<bool, std::string_view> settings[] = {
      {c.compute.tp_size > 1, "--tp-size above 1"},
      {c.compute.pp_size > 1, "--pp-size above 1"},
      {c.compute.dp_size > 1, "--dp-size above 1"},
      {c.compute.ep_size > 1, "--ep-size above 1"},
      {c.compute.enable_dp_attention, "--enable-dp-attention"},
      {c.compute.enable_return_hidden_states, "--enable-return-hidden-states"},
      {c.disaggregation.disaggregation_mode != "null", "--disaggregation-mode"},
      {c.lora.enable_lora || !c.lora.lora_paths.empty(), "--enable-lora"},
      {!c.control.control_vectors.empty(), "--control-vector"},
      {c.tiers.enable_hierarchical_cache || c.tiers.hicache_storage_backend != "none",
       "--enable-hierarchical-cache"},
      {c.speculation.speculative_algorithm != "none" &&
           c.speculation.speculative_algorithm != "auto",
       "--speculative-algorithm"},
  };
  for (const auto& [set, name] : settings)
    if (set) return refused(name);
  for (const auto& [value, name] :
       {std::pair{c.schedule.max_running_requests, "max_running_requests"},
        std::pair{c.schedule.max_queued_requests, "max_queued_requests"},
        std::pair{c.model.tokenizer_threads, "tokenizer_threads"},
        std::pair{c.compute.num_threads, "num_threads"},
        std::pair{c.schedule.max_prefill_tokens, "max_prefill_tokens"}}) {
    if (value < 0) return invalid_argument("{} is {}, but must be at least 0", name, value);
  }
  return {};
}

int32_t or_default(int32_t value, int32_t otherwise) { return value > 0 ? value : otherwise; }

// The smaller of the two counts, where any is stated.
int32_t step_tokens(const ScheduleSettings& schedule, bool gpu) {
  const int32_t chunk = schedule.chunked_prefill_size, prefill = schedule.max_prefill_tokens;
  if (chunk > 0 && prefill > 0) return std::min(chunk, prefill);
  return or_default(std::max(chunk, prefill), gpu ? kGpuStepTokens : kStepTokens);
}

// On a GPU, or where the device is open and the GPU does not do it, on the CPU.
Result<TextEngineParts> load_parts(EngineConfig& config, EngineDevice& device) {
  TextEngineParts parts;
  const bool open = config.compute.device == "auto";
  if (device.cuda) {
    config.compute.base_gpu_id = device.index;
    auto encoder = start_cuda_text_encoder(config, step_tokens(config.schedule, true));
    if (encoder) {
      config.compute.device = "cuda";
      parts.encoder = *std::move(encoder);
      return parts;
    }
    if (!open || encoder.error().code() != StatusCode::kUnimplemented) return fail(encoder.error());
    log_info("device=cpu reason=\"{}\"", encoder.error().message());
    ESP_ASSIGN_OR_RETURN(device, choose_device("cpu"));
  }
  config.compute.device = "cpu";
  parts.pool = std::make_unique<WorkPool>(config.compute.num_threads, config.compute.first_cpu);
  ModelLoadOptions options = model_load_options(config);
  options.pool = parts.pool.get();
  ESP_ASSIGN_OR_RETURN(parts.encoder,
                       load_text_encoder(options, step_tokens(config.schedule, false)));
  return parts;
}

}  // namespace

bool is_text_engine(const EngineConfig& config) {
  return is_text_encoder(model_load_options(config));
}

Result<std::unique_ptr<Engine>> start_text_engine(const EngineConfig& user) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  ESP_RETURN_IF_ERROR(check_settings(user));
  EngineConfig config = user;
  while (config.sampling.random_seed == 0) config.sampling.random_seed = std::random_device{}();
  ESP_ASSIGN_OR_RETURN(EngineDevice device,
                       choose_device(config.compute.device, config.compute.base_gpu_id));
  const int32_t cpus = std::max(1, read_system_info().num_cpus);
  config.compute.num_threads = std::min(or_default(config.compute.num_threads, cpus), cpus);
  ESP_ASSIGN_OR_RETURN(TextEngineParts parts, load_parts(config, device));
  if (config.model.tokenizer_path.empty()) config.model.tokenizer_path = config.model.model_path;
  if (!config.model.skip_tokenizer_init) {
    ESP_ASSIGN_OR_RETURN(parts.tokenizer, open_tokenizer(config.model.tokenizer_path));
  }
  const ModelInfo& info = parts.encoder->info();
  config.model.context_length = info.context_length;
  config.model.tokenizer_threads = or_default(config.model.tokenizer_threads, kTokenizerThreads);
  config.schedule.max_running_requests =
      or_default(config.schedule.max_running_requests, kMaxRunning);
  config.schedule.max_queued_requests = or_default(config.schedule.max_queued_requests, kMaxQueued);
  config.schedule.chunked_prefill_size = config.schedule.max_prefill_tokens =
      parts.encoder->step_tokens_max();
  config.cache.max_total_tokens = parts.encoder->step_tokens_max();
  log_info(
      "engine ready device=\"{}\" model={} parameters={} context={} step_tokens={} threads={} "
      "seconds={:.2f}",
      device.name, info.architecture, info.num_parameters, info.context_length,
      parts.encoder->step_tokens_max(), config.compute.num_threads,
      to_seconds(clock.now() - start));
  return make_text_engine(std::move(config), std::move(parts));
}

}  // namespace espalier
