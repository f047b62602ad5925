// The router as Envoy's endpoint picker: a server of envoy.service.ext_proc.v3.ExternalProcessor,
// by the endpoint picker protocol of the Gateway API Inference Extension. Envoy sends a request's
// head and body, and gets the worker's address in headers and metadata; the traffic itself passes
// by. It answers grpc.health.v1.Health/Check too.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/memory_account.h"
#include "base/status.h"
#include "net/bound_address.h"
#include "net/http.h"
#include "net/tls_files.h"
#include "router/dispatcher.h"
#include "router/proxy.h"

namespace espalier::router {

struct ExtProcConfig {
  int port = -1;      // 0: any that is free; -1: there is no picker
  int fallbacks = 0;  // endpoints beside the one that was picked, for Envoy's retries
  int num_threads = 1;
  size_t max_body_bytes = size_t{64} << 20;  // of a request
  std::shared_ptr<MemoryAccount> bodies;     // of all requests; shared with the proxy
  std::shared_ptr<const net::TlsContext> tls;
  // Who may pass, in a dialect's errors; each may be null, which takes all.
  std::function<net::Admission(ErrorStyle errors)> admission;
};

struct ExtProcStats {
  int64_t requests = 0;    // that Envoy asked for
  int64_t picks = 0;       // of those, which got a worker
  int64_t refused = 0;     // of those, answered with an error here
  int64_t calls_open = 0;  // requests under way
  int64_t ids_sent = 0;    // picks whose prompts went out as ids in place of text
};

// Thread-safe. `proxy` (whose worker_api_key, tenants, tenant_isolation, tokenize and sends_ids
// count) and `dispatcher` outlive it.
class ExtProc {
 public:
  // kUnavailable: there is no HTTP/2 here; says what to install.
  static Result<std::unique_ptr<ExtProc>> start(ExtProcConfig config, const ProxyConfig& proxy,
                                                Dispatcher& dispatcher, net::BoundAddress address);
  ~ExtProc();

  int port() const;
  ExtProcStats stats() const;
  void set_tls(std::shared_ptr<const net::TlsContext> tls);  // of connections to come
  void begin_stop();                                         // takes no new requests
  void stop(Duration timeout);                               // waits so long for requests under way

 private:
  struct Impl;
  explicit ExtProc(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::router
