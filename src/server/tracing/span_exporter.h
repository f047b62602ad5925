// Sends spans of requests to an OpenTelemetry collector, by OTLP over HTTP with JSON.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "net/client.h"
#include "server/tracing/request_span.h"

namespace espalier::server {

struct ExportCounts {
  int64_t exported = 0;  // requests whose spans the collector took
  int64_t dropped = 0;   // that found no room, or that the collector did not take
};

// As /metrics has them.
void append_metrics(std::string& out, const ExportCounts& counts);

// Thread-safe. A thread of its own sends what has come, at most kBatch requests at once and each
// second what there is; a collector that is slow or away costs requests nothing: beyond kWaiting
// they are dropped and counted. A batch is tried three times.
class SpanExporter {
 public:
  static constexpr size_t kWaiting = 8192, kBatch = 512;

  // endpoint: "http://HOST:4318" or https; a path replaces "/v1/traces". kInvalidArgument says what
  // is wrong with it.
  static Result<std::unique_ptr<SpanExporter>> start(const std::string& endpoint,
                                                     std::string service_name);
  ~SpanExporter();  // sends what has come, for at most ten seconds

  // Nothing is kept of a request whose caller does not sample its trace. Never waits.
  void add(RequestSpan&& span);
  ExportCounts counts() const { return {exported_, dropped_}; }

 private:
  SpanExporter(net::HttpClient client, std::string path, std::string service_name);
  void run();
  bool send(const std::string& body);
  std::string body_of(const std::vector<RequestSpan>& spans);

  net::HttpClient client_;
  const std::string path_, service_name_;
  SpanIds ids_;
  std::string last_failure_;  // that stands in the log
  BoundedQueue<RequestSpan> waiting_{kWaiting};
  std::atomic<int64_t> exported_{0}, dropped_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace espalier::server
