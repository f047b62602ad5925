#include "router/worker_table.h"

#include <algorithm>

#include "base/check.h"
#include "cache/shadow/prefix_key.h"

namespace espalier::router {

namespace {

constexpr float kWeightMin = 0.1f;  // of a worker at the begin of its slow start

}  // namespace

std::string_view worker_state_name(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kHealthy:
      return "healthy";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kBroken:
      return "broken";
  }
  return "";
}

WorkerTable::WorkerTable(const WorkerTableOptions& options, const Clock& clock)
    : options_(options), clock_(clock) {}
WorkerTable::~WorkerTable() = default;

Worker& WorkerTable::at(WorkerSlot slot) const {
  ESP_CHECK(slot < workers_.size() && workers_[slot] != nullptr, "no worker in slot {}", slot);
  return *workers_[slot];
}

const Worker* WorkerTable::worker(WorkerSlot slot) const {
  return slot < workers_.size() ? workers_[slot].get() : nullptr;
}

std::vector<WorkerSlot> WorkerTable::slots() const {
  std::vector<WorkerSlot> out;
  for (size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i] != nullptr) out.push_back(static_cast<WorkerSlot>(i));
  return out;
}

Result<WorkerSlot> WorkerTable::find(std::string_view url) const {
  for (const WorkerSlot slot : slots())
    if (workers_[slot]->url == url) return slot;
  return fail(error(StatusCode::kNotFound, "there is no worker {}: GET /workers lists them", url));
}

Result<WorkerSlot> WorkerTable::add(std::string_view url) {
  if (const auto known = find(url); known) {
    if (!at(*known).leaves)
      return fail(error(StatusCode::kAlreadyExists, "the worker {} is there already", url));
    resume(*known);
    return *known;
  }
  if (free_.empty() && workers_.size() >= kMaxWorkers)
    return fail(error(StatusCode::kResourceExhausted,
                      "there are {} workers, the most that a "
                      "router takes: start another router",
                      kMaxWorkers));
  if (free_.empty()) {
    free_.push_back(static_cast<WorkerSlot>(workers_.size()));
    workers_.emplace_back();
  }
  const WorkerSlot slot = free_.back();
  free_.pop_back();
  workers_[slot] = std::make_unique<Worker>(options_.breaker);
  workers_[slot]->url = url;
  workers_[slot]->id = name_space_hash(url);
  workers_[slot]->generation = ++generation_;
  return slot;
}

void WorkerTable::drain(WorkerSlot slot, bool leaves) {
  Worker& worker = at(slot);
  worker.state = WorkerState::kDraining;
  worker.leaves = worker.leaves || leaves;
  remove_if_done(slot);
}

void WorkerTable::resume(WorkerSlot slot) {
  Worker& worker = at(slot);
  if (worker.state != WorkerState::kDraining) return;
  worker.state = WorkerState::kStarting;
  worker.leaves = false;
  worker.num_checks_failed = worker.num_checks_passed = 0;
}

void WorkerTable::remove_if_done(WorkerSlot slot) {
  Worker& worker = at(slot);
  if (!worker.leaves || worker.requests_in_flight > 0) return;
  models_.erase(slot, worker.models, worker.adapters);
  workers_[slot].reset();
  free_.push_back(slot);
  removed_.push_back(slot);
}

std::vector<WorkerSlot> WorkerTable::take_removed() { return std::exchange(removed_, {}); }

bool WorkerTable::report_check(WorkerSlot slot, bool healthy) {
  Worker& worker = at(slot);
  worker.num_checks_passed = healthy ? worker.num_checks_passed + 1 : 0;
  worker.num_checks_failed = healthy ? 0 : worker.num_checks_failed + 1;
  const WorkerState before = worker.state;
  const bool recovers = (before == WorkerState::kStarting && healthy) ||
                        (before == WorkerState::kBroken &&
                         worker.num_checks_passed >= options_.health_success_threshold);
  if (recovers) {
    worker.state = WorkerState::kHealthy;
    worker.healthy_since = clock_.now();
  } else if (before == WorkerState::kHealthy &&
             worker.num_checks_failed >= options_.health_failure_threshold) {
    worker.state = WorkerState::kBroken;
    worker.takes_ids.reset();  // what comes back may be another model
  }
  return worker.state != before;
}

void WorkerTable::set_models(WorkerSlot slot, std::vector<std::string> models,
                             std::vector<std::string> adapters) {
  Worker& worker = at(slot);
  models_.erase(slot, worker.models, worker.adapters);
  worker.models = std::move(models);
  worker.adapters = std::move(adapters);
  models_.insert(slot, worker.models, worker.adapters);
}

void WorkerTable::set_endpoint(WorkerSlot slot, net::Endpoint endpoint) {
  at(slot).endpoint = std::move(endpoint);
}

void WorkerTable::set_bootstrap_port(WorkerSlot slot, int port) { at(slot).bootstrap_port = port; }

void WorkerTable::begin(WorkerSlot slot, int64_t tokens, int64_t shared) {
  Worker& worker = at(slot);
  ++worker.requests_in_flight;
  worker.tokens_in_flight += tokens;
  ++worker.counts.requests;
  worker.counts.tokens += tokens;
  worker.counts.tokens_shared += shared;
  worker.breaker.begin();
}

void WorkerTable::end(WorkerSlot slot, int64_t tokens, WorkerOutcome outcome) {
  Worker& worker = at(slot);
  --worker.requests_in_flight;
  worker.tokens_in_flight -= tokens;
  switch (outcome) {
    case WorkerOutcome::kBusy:  // it answers, so it is not broken
      ++worker.counts.busy;
      [[fallthrough]];
    case WorkerOutcome::kSuccess:
      worker.breaker.succeed(clock_.now());
      break;
    case WorkerOutcome::kFailure:
      ++worker.counts.failures;
      worker.breaker.fail(clock_.now());
      break;
    case WorkerOutcome::kAbandoned:
      worker.breaker.abandon();
      break;
  }
  remove_if_done(slot);
}

float WorkerTable::weight_of(const Worker& worker, TimePoint now) const {
  const Duration age = now - worker.healthy_since;
  if (age >= options_.slow_start) return 1;
  return std::max(kWeightMin,
                  static_cast<float>(to_seconds(age) / to_seconds(options_.slow_start)));
}

const WorkerSet* WorkerTable::listing(WorkerRole role, std::string_view name) const {
  const WorkerSet* const workers = name.empty() ? nullptr : models_.workers_of(name);
  if (workers == nullptr) return nullptr;
  bool is_of_role = false;
  workers->for_each(
      [&](WorkerSlot slot) { is_of_role = is_of_role || workers_[slot]->role() == role; });
  return is_of_role ? workers : nullptr;
}

void WorkerTable::candidates(WorkerRole role, const ModelName& asked,
                             std::span<const WorkerSlot> exclude,
                             std::vector<Candidate>& out) const {
  out.clear();
  const WorkerSet* const of_model = listing(role, asked.model);
  const WorkerSet* const of_adapter = listing(role, asked.adapter);
  if (of_adapter == nullptr && !asked.adapter.empty()) return;
  const TimePoint now = clock_.now();
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker* const worker = workers_[i].get();
    if (worker == nullptr || worker->role() != role || worker->state != WorkerState::kHealthy)
      continue;
    const auto slot = static_cast<WorkerSlot>(i);
    const bool is_listed = (of_model == nullptr || of_model->contains(slot)) &&
                           (of_adapter == nullptr || of_adapter->contains(slot));
    if (!is_listed || !worker->breaker.allows(now)) continue;
    if (std::ranges::find(exclude, slot) != exclude.end()) continue;
    out.push_back({slot, worker->id, worker->requests_in_flight, worker->tokens_in_flight,
                   weight_of(*worker, now)});
  }
}

void WorkerTable::check_invariants() const {
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker* const worker = workers_[i].get();
    const bool is_free = std::ranges::find(free_, static_cast<WorkerSlot>(i)) != free_.end();
    ESP_CHECK((worker == nullptr) == is_free, "slot {} is free and taken", i);
    if (worker == nullptr) continue;
    ESP_CHECK(worker->requests_in_flight >= 0 && worker->tokens_in_flight >= 0,
              "slot {} ends more than it begins", i);
    ESP_CHECK(worker->requests_in_flight > 0 || worker->tokens_in_flight == 0,
              "slot {} has tokens of no request", i);
    ESP_CHECK(!worker->leaves ||
                  (worker->state == WorkerState::kDraining && worker->requests_in_flight > 0),
              "slot {} should be gone", i);
    for (const std::string& model : worker->models) {
      const WorkerSet* const workers = models_.workers_of(model);
      ESP_CHECK(workers != nullptr && workers->contains(static_cast<WorkerSlot>(i)),
                "slot {} lists '{}', which its index does not know", i, model);
    }
  }
}

}  // namespace espalier::router
