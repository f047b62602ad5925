// Counters and recent requests of a server, which /metrics and the playground read.
#pragma once

#include <memory>
#include <string>

#include "server/expert_record.h"
#include "server/http_counts.h"
#include "server/kv_event_publisher.h"
#include "server/metrics.h"
#include "server/request_log.h"
#include "server/tracing/profiler.h"
#include "server/tracing/request_recorder.h"
#include "server/tracing/span_exporter.h"
#include "server/tree_mirror.h"

namespace espalier::server {

// Thread-safe, as its parts are. The engine outlives it.
struct Observations {
  Observations(const std::string& model_name, Engine& engine)
      : metrics(model_name, engine.config().schedule.schedule_policy == "priority"),
        tree(make_tree_watch(engine)),
        gpus(watch_gpus(engine.config())) {}

  Metrics metrics;                                                          // GET /metrics
  const std::shared_ptr<HttpCounts> http = std::make_shared<HttpCounts>();  // GET /metrics
  RequestLog requests;                                                      // GET /requests
  // Shared by all models of a server; null without --request-log.
  std::shared_ptr<RequestRecorder> recorder;
  Profiler profiler;                    // /start_profile
  ExpertRecord experts;                 // /start_expert_distribution_record
  std::shared_ptr<SpanExporter> spans;  // the same, without --otlp-traces-endpoint
  // One for each replica; none but with --kv-events-config's zmq.
  std::vector<std::unique_ptr<KvEventPublisher>> kv_events;
  const std::shared_ptr<TreeWatch> tree;  // GET /cache_tree; shared with a reading under way
  const std::unique_ptr<GpuWatch> gpus;   // GET /metrics; null where the processor computes
};

}  // namespace espalier::server
