#include "server/served_models/front_engine.h"

#include <vector>

#include "engine/replicas/replicas.h"
#include "server/context.h"
#include "server/served_models/model_registry.h"

namespace espalier::server {
namespace {

std::vector<ContextPtr> ready_models(const std::weak_ptr<ServerParts>& weak) {
  std::vector<ContextPtr> out;
  const std::shared_ptr<ServerParts> parts = weak.lock();
  if (parts == nullptr || parts->models == nullptr) return out;
  for (size_t i = 0; i < parts->models->size(); ++i)
    if (ContextPtr model = parts->models->look_at(i)) out.push_back(std::move(model));
  return out;
}

}  // namespace

// Half of them are lines of batches that run at once.
FrontEngine::FrontEngine(std::weak_ptr<ServerParts> parts) : parts_(std::move(parts)) {
  config_.schedule.max_running_requests = 32;
}

Result<std::string> FrontEngine::submit(GenerateRequest, EventSink) {
  return fail(error(StatusCode::kUnavailable, "this server has several models: name one"));
}

void FrontEngine::abort(std::string_view rid, AbortScope scope) {
  for (const ContextPtr& model : ready_models(parts_)) model->engine.abort(rid, scope);
}

Status FrontEngine::flush_cache() {
  return error(StatusCode::kFailedPrecondition, "this server has several models: name one");
}

EngineStats FrontEngine::stats() const {
  std::vector<EngineStats> all;
  for (const ContextPtr& model : ready_models(parts_)) all.push_back(model->engine.stats());
  return all.empty() ? EngineStats() : sum_of(all);
}

}  // namespace espalier::server
