// The workers that a router knows: their state, what they are doing, and whether they may get more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cache/shadow/worker_set.h"
#include "net/upstream.h"
#include "router/circuit_breaker.h"
#include "router/model_index.h"
#include "router/prompt_ids.h"

namespace espalier::router {

//   starting --healthy check--> healthy <--checks--> broken
//   any of these --drain()--> draining --its last request ends, where it is to go--> removed
enum class WorkerState : uint8_t { kStarting, kHealthy, kDraining, kBroken };
std::string_view worker_state_name(WorkerState state);  // "healthy"

// Whole requests and decode halves go to serving workers; the prompts of pairs to prefill workers.
enum class WorkerRole : uint8_t { kServing, kPrefill };

// How a request to a worker ended, as far as the worker is concerned.
enum class WorkerOutcome : uint8_t {
  kSuccess,
  kFailure,    // no connection, a broken one, a timeout, 5xx
  kBusy,       // 429 or 503: it works, and has too much to do
  kAbandoned,  // the client left, or another attempt won
};

struct WorkerTableOptions {
  BreakerOptions breaker;
  int health_failure_threshold = 3;  // checks in a row that make a worker broken
  int health_success_threshold = 2;  // that make a broken one healthy again; a starting one: 1
  // A worker that became healthy gets a share of the load that grows over this time.
  Duration slow_start = std::chrono::seconds(5);
};

struct WorkerCounts {
  int64_t requests = 0, failures = 0, busy = 0;
  int64_t tokens = 0;         // of prompts that it was sent
  int64_t tokens_shared = 0;  // of those, what a policy expected in its cache
};

struct Worker {
  std::string url;                    // "http://10.0.0.1:30000", its identity
  net::Endpoint endpoint;             // where that is
  int bootstrap_port = 0;             // of a prefill worker; 0: it is a serving one
  std::vector<std::string> models;    // that it serves; empty: not known yet
  std::vector<std::string> adapters;  // of models, those that are LoRA adapters
  std::optional<TakenIds> takes_ids;  // nothing: not known
  WorkerState state = WorkerState::kStarting;
  bool leaves = false;  // removed once it has no request; kDraining
  int32_t requests_in_flight = 0;
  int64_t tokens_in_flight = 0;  // of prompts
  WorkerCounts counts;
  uint64_t generation = 0;  // differs between the workers that have had this slot
  uint64_t id = 0;          // a hash of the url
  TimePoint healthy_since{};
  int num_checks_failed = 0, num_checks_passed = 0;  // in a row
  CircuitBreaker breaker;

  explicit Worker(const BreakerOptions& options) : breaker(options) {}
  WorkerRole role() const {
    return bootstrap_port > 0 ? WorkerRole::kPrefill : WorkerRole::kServing;
  }
};

// What a policy sees of a worker that may be chosen.
struct Candidate {
  WorkerSlot slot = 0;
  uint64_t id = 0;       // a hash of its address: the same in every router
  int32_t requests = 0;  // in flight
  int64_t tokens = 0;    // in flight, of prompts
  float weight = 1;      // less than 1 during slow start

  // Requests in flight as a worker of full weight would feel them.
  float load() const { return static_cast<float>(requests) / weight; }
};

// Not thread-safe. `clock` outlives it.
class WorkerTable {
 public:
  WorkerTable(const WorkerTableOptions& options, const Clock& clock);
  ~WorkerTable();

  // kAlreadyExists; kResourceExhausted beyond kMaxWorkers. A worker that was leaving stays.
  Result<WorkerSlot> add(std::string_view url);
  Result<WorkerSlot> find(std::string_view url) const;  // kNotFound names the url
  // It gets no new requests. `leaves`: it is removed once it has none.
  void drain(WorkerSlot slot, bool leaves);
  void resume(WorkerSlot slot);  // after drain(): its next healthy check counts

  // An active check has ended. True when the state has changed.
  bool report_check(WorkerSlot slot, bool healthy);
  void set_models(WorkerSlot slot, std::vector<std::string> models,
                  std::vector<std::string> adapters = {});
  void set_takes_ids(WorkerSlot slot, TakenIds takes_ids) { at(slot).takes_ids = takes_ids; }
  void set_endpoint(WorkerSlot slot, net::Endpoint endpoint);
  void set_bootstrap_port(WorkerSlot slot, int port);

  // A request is sent to a worker, and has ended there. `shared`: of its tokens, what is expected
  // in the worker's cache.
  void begin(WorkerSlot slot, int64_t tokens, int64_t shared);
  void end(WorkerSlot slot, int64_t tokens, WorkerOutcome outcome);

  // Workers of the role that may get a request for the model, by slot; where none lists that model,
  // of all. With an adapter only those that list it, too. `exclude`: slots that have failed this
  // request.
  void candidates(WorkerRole role, const ModelName& asked, std::span<const WorkerSlot> exclude,
                  std::vector<Candidate>& out) const;

  const ModelIndex& models() const { return models_; }  // that workers list

  const Worker* worker(WorkerSlot slot) const;  // null: free
  std::vector<WorkerSlot> slots() const;
  // The slots whose workers have been removed since the last call: what is known of them is void.
  std::vector<WorkerSlot> take_removed();

  // Aborts (ESP_CHECK) unless counts are not negative and states fit.
  void check_invariants() const;

 private:
  Worker& at(WorkerSlot slot) const;
  void remove_if_done(WorkerSlot slot);
  float weight_of(const Worker& worker, TimePoint now) const;
  // The workers that list a name; null where none of the role does.
  const WorkerSet* listing(WorkerRole role, std::string_view name) const;

  const WorkerTableOptions options_;
  const Clock& clock_;
  std::vector<std::unique_ptr<Worker>> workers_;  // by slot
  std::vector<WorkerSlot> free_, removed_;
  ModelIndex models_;  // of workers_
  uint64_t generation_ = 0;
};

}  // namespace espalier::router
