// Prometheus metrics under SGLang's names, so that dashboards made for it work unchanged.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/memory_account.h"
#include "engine/engine.h"
#include "engine/startup/gpu_watch.h"
#include "server/http_counts.h"

namespace espalier::server {

// Thread-safe.
class Metrics {
 public:
  // `model_name` labels every series ("": none has that label); with `by_priority` the request's
  // priority labels those of latencies and lengths, as SGLang does under a scheduler with
  // priorities. Clients choose priorities, so what comes after the first kPrioritiesMax of them is
  // labelled "other".
  Metrics(const std::string& model_name, bool by_priority);
  ~Metrics();

  static constexpr size_t kPrioritiesMax = 64;

  void observe_first_token(double seconds, int32_t priority);  // from acceptance
  // `count` tokens, so many seconds each.
  void observe_inter_token(double seconds, int count, int32_t priority);
  void observe_finish(const RequestStats& stats, int32_t priority);

  struct Http {
    int64_t connections_open = 0;
    int64_t dropped_slow_total = 0;
    std::vector<std::shared_ptr<MemoryAccount>> accounts;
    std::vector<std::pair<std::string, int64_t>> num_refused;  // calls, by tenant
    std::vector<cuda::GpuFigures> gpus;                        // of this computer
    std::vector<HttpCounts::Figures> routes;
    int64_t num_routing_keys = 0;
  };
  // The exposition text: what was observed, and the engine's figures as they are now.
  std::string scrape(Engine& engine, const Http& http) const;
  // Of a server of several models: the series of each under its own label, and the server's under
  // this one's.
  struct Source {
    const Metrics* metrics = nullptr;
    Engine* engine = nullptr;
  };
  std::string scrape(const std::vector<Source>& models, const Http& http) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::server
