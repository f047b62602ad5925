#include <chrono>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "models/families/family.h"
#include "models/model_plan.h"
#include "models/program/cpu_text_encoder.h"
#include "models/text_encoder.h"
#include "models/text_head.h"
#include "models/weight_source.h"

namespace espalier {

bool is_text_encoder(const ModelLoadOptions& options) {
  const auto config = read_changed_config(options);
  if (!config) return false;
  const auto names = config->strings("architectures");
  return names && !names->empty() && names_text_encoder(names->front());
}

Result<std::unique_ptr<TextEncoder>> load_text_encoder(const ModelLoadOptions& options,
                                                       int32_t step_tokens_max) {
  ESP_CHECK(options.pool != nullptr, "an encoder of texts is loaded with the threads that compute");
  const auto start = std::chrono::steady_clock::now();
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  ESP_ASSIGN_OR_RETURN(TextHead head, TextHead::load(options, plan.spec));
  std::unique_ptr<program::CpuTextEncoder> encoder;
  if (options.format == LoadFormat::kDummy) {
    DummySource source(options.seed, plan.type, *options.pool);
    ESP_ASSIGN_OR_RETURN(
        encoder, program::CpuTextEncoder::create(plan.spec, std::move(head), plan.weights, source,
                                                 *options.pool, step_tokens_max));
  } else {
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
    CheckpointSource source(checkpoint, plan.spec, plan.type, options.pool);
    source.report_to(options.progress);
    ESP_ASSIGN_OR_RETURN(
        encoder, program::CpuTextEncoder::create(plan.spec, std::move(head), plan.weights, source,
                                                 *options.pool, step_tokens_max));
  }
  const ModelInfo& info = encoder->info();
  log_info("model loaded path={} architecture={} parameters={} weight_bytes={} seconds={:.2f}",
           options.path.string(), info.architecture, info.num_parameters, info.weight_bytes,
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return encoder;
}

}  // namespace espalier
