// Where a request goes: the workers and the policy behind one lock, and the count of what each
// worker has in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/upstream.h"
#include "router/policy.h"
#include "router/worker_table.h"

namespace espalier::router {

// What decides where a request goes.
struct RoutedRequest {
  std::string model;        // as the request names it; "": none
  std::string adapter;      // a LoRA adapter's name, where the request states one beside the model
  std::string session;      // requests of one session go to one worker; "": none
  uint64_t name_space = 0;  // where the key's chain begins
  PrefixKey key;            // of the prompt
  PromptTokens tokens;      // likewise, where they are known
  int64_t num_tokens = 0;   // of the prompt, about
  // Of an endpoint picker: "IP:PORT" of those that alone may be chosen (nothing: any), and how many
  // others are named beside the one that is.
  std::optional<std::vector<std::string>> endpoints;
  int num_fallbacks = 0;
};

std::string endpoint_text(const net::Endpoint& endpoint);  // "10.0.0.1:30000", "[::1]:30000"

class Dispatcher;

// A worker that counts a request as its own until the lease ends. Move-only; its dispatcher
// outlives it. Thread-safe as far as one thread at a time uses it.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { end(WorkerOutcome::kAbandoned); }

  bool active() const { return dispatcher_ != nullptr; }
  WorkerSlot slot() const { return slot_; }
  uint64_t generation() const { return generation_; }  // of the slot's worker
  const net::Endpoint& endpoint() const { return endpoint_; }
  int bootstrap_port() const { return bootstrap_port_; }  // of a prefill worker, else 0
  TakenIds takes_ids() const { return takes_ids_; }
  uint32_t num_blocks_shared() const { return num_blocks_shared_; }
  // The least loaded of the other workers that could have got it, as many as were asked for.
  const std::vector<net::Endpoint>& fallbacks() const { return fallbacks_; }
  void end(WorkerOutcome outcome);  // once; later calls do nothing

 private:
  friend class Dispatcher;
  Dispatcher* dispatcher_ = nullptr;
  WorkerSlot slot_ = 0;
  uint64_t generation_ = 0;
  int64_t num_tokens_ = 0;
  uint32_t num_blocks_shared_ = 0;
  net::Endpoint endpoint_;
  int bootstrap_port_ = 0;
  TakenIds takes_ids_;
  std::vector<net::Endpoint> fallbacks_;
};

// A worker as /workers and /metrics show it.
struct WorkerInfo {
  WorkerSlot slot = 0;
  uint64_t id = 0, generation = 0;
  std::string url;
  net::Endpoint endpoint;
  int bootstrap_port = 0;
  std::vector<std::string> models;
  std::optional<TakenIds> takes_ids;
  WorkerState state = WorkerState::kStarting;
  CircuitBreaker::State breaker = CircuitBreaker::State::kClosed;
  int32_t requests_in_flight = 0;
  int64_t tokens_in_flight = 0;
  WorkerCounts counts;
};

struct TreeStats {
  size_t num_nodes = 0, num_blocks = 0, num_evicted_total = 0;
  size_t num_cached_blocks = 0;  // that workers hold, by their events
};

// The url of a worker in its one form: "http://HOST:PORT" or https, an IPv6 address in brackets.
std::string worker_url(const std::string& host, int port, bool is_https = false);
// From a user's text. kInvalidArgument says what is wrong.
Result<std::string> normal_worker_url(std::string_view text);

// Thread-safe. `clock` outlives it.
class Dispatcher {
 public:
  static Result<std::unique_ptr<Dispatcher>> create(const PolicyOptions& policy,
                                                    const WorkerTableOptions& table,
                                                    const Clock& clock);

  // `tried`: workers that have failed this request; they are taken again only where they are all
  // that there are. kUnavailable: no worker can take it now.
  Result<Lease> assign(const RoutedRequest& request, std::span<const WorkerSlot> tried = {},
                       WorkerRole role = WorkerRole::kServing);

  // By normal urls. The endpoint is where the url's host was found; bootstrap_port: of a prefill
  // worker.
  Result<WorkerSlot> add_worker(const std::string& url, net::Endpoint endpoint,
                                int bootstrap_port = 0);
  Status drain_worker(std::string_view url, bool leaves);
  Status resume_worker(std::string_view url);
  std::vector<WorkerInfo> workers() const;

  // Of the worker that had this generation; of another one they do nothing. report_check: whether
  // the worker is in doubt, since a check failed and too few have for it to be broken.
  bool report_check(WorkerSlot slot, uint64_t generation, bool healthy);
  bool is_back(WorkerSlot slot, uint64_t generation) const;  // it answers checks again
  void set_models(WorkerSlot slot, uint64_t generation, std::vector<std::string> models,
                  std::vector<std::string> adapters = {});
  void set_takes_ids(WorkerSlot slot, uint64_t generation, TakenIds takes_ids);
  void set_endpoint(WorkerSlot slot, uint64_t generation, net::Endpoint endpoint);

  // Of the worker's cache. The lock is held for one event at a time.
  void apply_events(WorkerSlot slot, uint64_t generation, std::span<const KvEvent> events);

  // Called, outside of any lock, when a worker has become broken. Set before threads use this.
  void on_broken(std::function<void(uint64_t generation)> callback) {
    on_broken_ = std::move(callback);
  }

  std::optional<TreeStats> tree_stats() const;  // nothing where the policy has no tree
  const std::string& policy_name() const { return policy_name_; }
  void check_invariants() const;

 private:
  friend class Lease;
  Dispatcher(std::string policy_name, std::unique_ptr<Policy> policy,
             const WorkerTableOptions& table, const Clock& clock);
  void end(WorkerSlot slot, int64_t num_tokens, WorkerOutcome outcome);
  void forget_removed();  // REQUIRES the lock
  const Worker* find(WorkerSlot slot, uint64_t generation) const;
  // REQUIRES the lock, as the next ones.
  void find_candidates(const RoutedRequest& request, const ModelName& asked,
                       std::span<const WorkerSlot> tried, WorkerRole role);
  Choice choose(const RoutedRequest& request, std::string_view adapter, WorkerRole role);
  // Of candidates_.
  void keep_endpoints(const std::vector<std::string>& endpoints);
  std::vector<net::Endpoint> least_loaded_beside(WorkerSlot slot, int count);

  const std::string policy_name_;
  const Clock& clock_;
  std::function<void(uint64_t)> on_broken_;
  mutable std::mutex mutex_;  // guards the rest
  WorkerTable table_;
  const std::unique_ptr<Policy> policy_;
  std::vector<Candidate> candidates_;  // of one call, kept for its memory
};

}  // namespace espalier::router
