// Engines of the models of one server, with what its routes have at hand for each. Internal to the
// room.
#pragma once

#include <memory>
#include <vector>

#include "server/context.h"
#include "server/served_models/model_registry.h"
#include "server/served_models/served_models.h"

namespace espalier::server {

class EngineHost final : public ModelHost {
 public:
  // config: of the server; `answers` and the publisher of events are replaced by each model's.
  EngineHost(ServedModels models, ServerConfig config, std::weak_ptr<ServerParts> parts);
  ~EngineHost() override;

  Result<int64_t> load(size_t model) override;
  Result<int64_t> wake(size_t model) override;
  // Keys and values leave the device; on a GPU the weights too, for the host's memory. A model
  // whose memory cannot be released (replicas, speech) fails.
  Result<int64_t> sleep(size_t model) override;
  void unload(size_t model) override;
  bool is_stateful(size_t model) const override;  // by open sessions
  int64_t free_bytes() const override { return models_.free_bytes(); }
  ContextPtr context(size_t model) const override { return loaded_[model].context; }

 private:
  // The context goes before its engine.
  struct Loaded {
    std::unique_ptr<Engine> engine;
    ContextPtr context;
  };

  const ServedModels models_;
  const ServerConfig config_;
  const std::weak_ptr<ServerParts> parts_;  // which owns this
  std::vector<Loaded> loaded_;              // by model; null where it is not in memory
};

std::vector<RegisteredModel> registered_models(const ServedModels& models);

}  // namespace espalier::server
