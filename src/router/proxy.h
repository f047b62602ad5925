// Passes requests on to workers and their answers back, without keeping either: streams go through
// as they come, a client that leaves ends its worker's work, and a worker that fails before the
// client has seen anything is replaced by another.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "net/http.h"
#include "net/upstream.h"
#include "router/dispatcher.h"
#include "router/forward_plan.h"
#include "router/prompt_ids.h"
#include "router/route_table.h"
#include "tenants/tenants.h"

namespace espalier::router {

struct ProxyConfig {
  int max_retries = 5;                                     // of one request
  Duration retry_backoff = std::chrono::milliseconds(50);  // doubles with each retry of a request
  Duration retry_backoff_max = std::chrono::seconds(1);
  double retry_ratio = 0.2;  // retries that a request earns for all
  int retry_reserve = 100;
  // Sent to workers in place of the client's; empty: the client's, or none where there are tenants.
  std::string worker_api_key;
  bool pairs = false;  // routes that can are answered by a prefill and a decode worker together
  bool tenant_isolation = false;  // prompts of different API keys are not taken for shared
  net::UpstreamConfig upstream;
  // Whose keys clients send, and their limits; null: there are none. Outlives the proxy.
  const Tenants* tenants = nullptr;
  // For prompts that are text; null: their tokens are not known.
  TokenizePrompt tokenize;
  bool needs_tokens = false;  // to choose a worker; so of every route
  bool sends_ids = false;     // workers that have the same tokenizer get ids in place of text
};

struct ProxyStats {
  int64_t requests = 0, retries = 0;
  int64_t refused = 0;       // answered with an error of the router's own
  int64_t cut = 0;           // answers that had begun and ended with an error
  int64_t clients_gone = 0;  // before their answers were complete
  int64_t streams_open = 0;  // requests under way
  int64_t connects = 0;      // connections that were made to workers
  int64_t ids_sent = 0;      // attempts whose prompts went out as ids in place of text
};

class Forwarding;

// Thread-safe. Outlives the requests: the server is stopped before.
class Proxy {
 public:
  Proxy(ProxyConfig config, Dispatcher& dispatcher);
  ~Proxy();

  // On the response's I/O thread, as a handler. `route` outlives the request.
  void forward(const PassedRoute& route, net::HttpRequest&& request, net::ResponsePtr response);

  // A worker does not answer any more: what it was to answer is tried elsewhere, or ends. A stream
  // that still comes goes on, for a worker that is being stopped completes what it has begun.
  void abandon_worker(uint64_t generation);

  ProxyStats stats() const;
  net::Upstream& upstream() { return upstream_; }

 private:
  friend class Forwarding;
  // Requests under way by worker generation, for abandon_worker().
  void enter(uint64_t generation, const std::shared_ptr<Forwarding>& forwarding);
  void leave(uint64_t generation, const std::shared_ptr<Forwarding>& forwarding);

  const ProxyConfig config_;
  Dispatcher& dispatcher_;
  net::Upstream upstream_;
  RetryBudget budget_;
  std::atomic<int64_t> requests_{0}, retries_{0}, refused_{0}, cut_{0}, clients_gone_{0}, open_{0},
      ids_sent_{0};
  std::mutex mutex_;  // guards the next
  std::map<uint64_t, std::unordered_set<std::shared_ptr<Forwarding>>> under_way_;
};

}  // namespace espalier::router
