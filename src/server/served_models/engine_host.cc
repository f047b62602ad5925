#include "server/served_models/engine_host.h"

#include <malloc.h>

#include <utility>

#include "engine/weights/weight_control.h"
#include "server/observations.h"
#include "server/open_context.h"

namespace espalier::server {
namespace {

int64_t bytes_in_memory(const Engine& engine) {
  const EngineStats::Memory memory = engine.stats().memory;
  return memory.weight_bytes + memory.kv_bytes + memory.scratch_bytes + memory.graph_bytes;
}

// A processor's weights lie in the host's memory already.
std::vector<MemoryPart> sleeping_parts(const Engine& engine) {
  if (engine.config().compute.device.starts_with("cuda"))
    return {MemoryPart::kKvCache, MemoryPart::kWeights};
  return {MemoryPart::kKvCache};
}

Result<WeightControl*> memory_of(Engine& engine) {
  if (WeightControl* const control = engine.weights()) return control;
  return fail(error(StatusCode::kUnimplemented, "its engine releases no memory"));
}

}  // namespace

EngineHost::EngineHost(ServedModels models, ServerConfig config, std::weak_ptr<ServerParts> parts)
    : models_(std::move(models)),
      config_(std::move(config)),
      parts_(std::move(parts)),
      loaded_(models_.models.size()) {}

EngineHost::~EngineHost() {
  for (size_t i = 0; i < loaded_.size(); ++i) unload(i);
}

Result<int64_t> EngineHost::load(size_t model) {
  const ServedModel& served = models_.models[model];
  const std::shared_ptr<ServerParts> parts = parts_.lock();
  if (parts == nullptr) return fail(error(StatusCode::kUnavailable, "the server has stopped"));
  Loaded made;
  ESP_ASSIGN_OR_RETURN(made.engine, served.start());
  ServerConfig config = config_;
  config.answers = served.answers;
  config.answers.served_model_name = served.name;
  config.telemetry.kv_events = served.kv_events;
  ESP_ASSIGN_OR_RETURN(made.context, open_context(std::move(config), *made.engine, parts));
  const ContextPtr front = parts->front.lock();
  if (front != nullptr) {
    made.context->observed->recorder = front->observed->recorder;
    made.context->observed->spans = front->observed->spans;
  }
  loaded_[model] = std::move(made);
  return bytes_in_memory(*loaded_[model].engine);
}

Result<int64_t> EngineHost::wake(size_t model) {
  Engine& engine = *loaded_[model].engine;
  ESP_ASSIGN_OR_RETURN(WeightControl* const control, memory_of(engine));
  ESP_ASSIGN_OR_RETURN([[maybe_unused]] const MemoryReport report,
                       control->resume_memory(sleeping_parts(engine)));
  return bytes_in_memory(engine);
}

Result<int64_t> EngineHost::sleep(size_t model) {
  Engine& engine = *loaded_[model].engine;
  ESP_ASSIGN_OR_RETURN(WeightControl* const control, memory_of(engine));
  const int64_t before = bytes_in_memory(engine);
  ESP_ASSIGN_OR_RETURN(const MemoryReport report, control->release_memory(sleeping_parts(engine)));
  return std::max<int64_t>(0, before - report.released_bytes);
}

void EngineHost::unload(size_t model) {
  if (loaded_[model].engine == nullptr) return;
  // At the server's end tasks may still run, and they have the context and the engine.
  if (const ContextPtr& context = loaded_[model].context) {
    for (WorkerPool* pool : {&context->threads->workers, &context->threads->grammars,
                             &context->threads->weights, &context->threads->sounds})
      pool->stop();
  }
  loaded_[model].context = nullptr;
  loaded_[model].engine = nullptr;
  ::malloc_trim(0);  // the system gets back what the heap would keep
}

bool EngineHost::is_stateful(size_t model) const {
  const Loaded& loaded = loaded_[model];
  return loaded.engine->stats().sessions.num_open > 0 ||
         loaded.context->observed->profiler.is_active();
}

std::vector<RegisteredModel> registered_models(const ServedModels& models) {
  std::vector<RegisteredModel> out;
  for (const ServedModel& model : models.models)
    out.push_back({.name = model.name,
                   .aliases = model.aliases,
                   .traits = {.keep_alive = model.keep_alive,
                              .sleeps = model.sleeps,
                              .bytes = model.estimated_bytes},
                   .preload = model.preload});
  return out;
}

}  // namespace espalier::server
