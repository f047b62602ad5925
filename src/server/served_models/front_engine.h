// The engine of the routes that need no model of a server of several: it generates nothing, and
// knows the figures of all models that are ready together.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace espalier::server {

struct ServerParts;

class FrontEngine final : public Engine {
 public:
  explicit FrontEngine(std::weak_ptr<ServerParts> parts);

  Result<std::string> submit(GenerateRequest request, EventSink sink) override;  // kUnavailable
  void abort(std::string_view rid, AbortScope scope) override;  // in every model that is ready
  Status flush_cache() override;                                // kFailedPrecondition
  void drain(Duration) override {}
  EngineStats stats() const override;  // sums over the models that are ready
  const ModelInfo& model_info() const override { return info_; }
  const EngineConfig& config() const override { return config_; }
  const Tokenizer* tokenizer() const override { return nullptr; }
  int32_t context_length() const override { return 0; }

 private:
  const std::weak_ptr<ServerParts> parts_;
  const ModelInfo info_;
  EngineConfig config_;
};

}  // namespace espalier::server
