#include "router/model_index.h"

#include "base/check.h"

namespace espalier::router {

void ModelIndex::insert(WorkerSlot slot, std::span<const std::string> models,
                        std::span<const std::string> adapters) {
  for (const std::string& name : models) listed_[name].workers.insert(slot);
  for (const std::string& name : adapters) ++listed_[name].num_as_adapter;
}

void ModelIndex::erase(WorkerSlot slot, std::span<const std::string> models,
                       std::span<const std::string> adapters) {
  for (const std::string& name : adapters) {
    const auto found = listed_.find(name);
    ESP_CHECK(found != listed_.end() && found->second.num_as_adapter > 0, "'{}' is no adapter",
              name);
    --found->second.num_as_adapter;
    erase_if_empty(found);
  }
  for (const std::string& name : models) {
    const auto found = listed_.find(name);
    if (found == listed_.end()) continue;  // the worker lists it twice
    found->second.workers.erase(slot);
    erase_if_empty(found);
  }
}

void ModelIndex::erase_if_empty(Listings::iterator listed) {
  if (listed->second.workers.empty() && listed->second.num_as_adapter == 0) listed_.erase(listed);
}

const WorkerSet* ModelIndex::workers_of(std::string_view name) const {
  const auto found = listed_.find(name);
  return found == listed_.end() || found->second.workers.empty() ? nullptr
                                                                 : &found->second.workers;
}

bool ModelIndex::is_adapter(std::string_view name) const {
  const auto found = listed_.find(name);
  return found != listed_.end() && found->second.num_as_adapter > 0;
}

ModelName ModelIndex::read(std::string_view model, std::string_view adapter) const {
  if (!adapter.empty() || model.empty()) return {model, adapter};
  if (is_adapter(model)) return {model, model};
  const size_t colon = model.rfind(':');
  if (colon == std::string_view::npos || listed_.contains(model)) return {model, {}};
  const std::string_view behind = model.substr(colon + 1);
  if (!is_adapter(behind)) return {model, {}};
  return {model.substr(0, colon), behind};
}

}  // namespace espalier::router
