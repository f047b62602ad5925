#include "router/dispatcher.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "net/client.h"

namespace espalier::router {

std::string worker_url(const std::string& host, int port, bool is_https) {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}:{}", is_https ? "https" : "http", v6 ? "[" + host + "]" : host, port);
}

std::string endpoint_text(const net::Endpoint& endpoint) {
  const bool v6 = endpoint.address.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", endpoint.address, v6 ? "]" : "", endpoint.port);
}

Result<std::string> normal_worker_url(std::string_view text) {
  const Result<net::Url> url = net::Url::parse(text);
  if (!url) return fail(url.error().with_context(fmt::format("worker '{}'", text)));
  if (!url->path.empty() && url->path != "/")
    return fail(
        invalid_argument("worker '{}': give http://HOST:PORT or https, without a path", text));
  return worker_url(url->host, url->port, url->is_https);
}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  end(WorkerOutcome::kAbandoned);
  dispatcher_ = std::exchange(other.dispatcher_, nullptr);
  slot_ = other.slot_;
  generation_ = other.generation_;
  num_tokens_ = other.num_tokens_;
  num_blocks_shared_ = other.num_blocks_shared_;
  endpoint_ = std::move(other.endpoint_);
  bootstrap_port_ = other.bootstrap_port_;
  takes_ids_ = other.takes_ids_;
  fallbacks_ = std::move(other.fallbacks_);
  return *this;
}

void Lease::end(WorkerOutcome outcome) {
  if (Dispatcher* const dispatcher = std::exchange(dispatcher_, nullptr); dispatcher != nullptr)
    dispatcher->end(slot_, num_tokens_, outcome);
}

Result<std::unique_ptr<Dispatcher>> Dispatcher::create(const PolicyOptions& policy,
                                                       const WorkerTableOptions& table,
                                                       const Clock& clock) {
  ESP_ASSIGN_OR_RETURN(auto made, make_policy(policy));
  return std::unique_ptr<Dispatcher>(new Dispatcher(policy.name, std::move(made), table, clock));
}

Dispatcher::Dispatcher(std::string policy_name, std::unique_ptr<Policy> policy,
                       const WorkerTableOptions& table, const Clock& clock)
    : policy_name_(std::move(policy_name)),
      clock_(clock),
      table_(table, clock),
      policy_(std::move(policy)) {}

Result<Lease> Dispatcher::assign(const RoutedRequest& request, std::span<const WorkerSlot> tried,
                                 WorkerRole role) {
  std::lock_guard lock(mutex_);
  const ModelName asked = table_.models().read(request.model, request.adapter);
  find_candidates(request, asked, tried, role);
  if (candidates_.empty())
    return fail(error(StatusCode::kUnavailable,
                      "no {} can take the request now: each of {} is starting, draining, broken, "
                      "of another model or of another role (GET /workers)",
                      role == WorkerRole::kPrefill ? "prefill worker" : "worker",
                      table_.slots().size()));
  const Choice choice = choose(request, asked.adapter, role);
  const Worker& worker = *table_.worker(choice.slot);
  table_.begin(choice.slot, request.num_tokens,
               std::min(request.num_tokens, choice.num_blocks_shared * kTokensPerBlock));
  Lease lease;
  lease.dispatcher_ = this;
  lease.slot_ = choice.slot;
  lease.generation_ = worker.generation;
  lease.num_tokens_ = request.num_tokens;
  lease.num_blocks_shared_ = choice.num_blocks_shared;
  lease.endpoint_ = worker.endpoint;
  lease.bootstrap_port_ = worker.bootstrap_port;
  lease.takes_ids_ = worker.takes_ids.value_or(TakenIds{});
  if (request.num_fallbacks > 0)
    lease.fallbacks_ = least_loaded_beside(choice.slot, request.num_fallbacks);
  return lease;
}

// Those of the model, and of them the ones that list the adapter, where there are any.
void Dispatcher::find_candidates(const RoutedRequest& request, const ModelName& asked,
                                 std::span<const WorkerSlot> tried, WorkerRole role) {
  candidates_.clear();
  const ModelName of_model{asked.model, {}};
  for (const ModelName& name : {asked, of_model})
    for (const auto& exclude : {tried, std::span<const WorkerSlot>()})
      if (candidates_.empty()) table_.candidates(role, name, exclude, candidates_);
  if (request.endpoints) keep_endpoints(*request.endpoints);
}

Choice Dispatcher::choose(const RoutedRequest& request, std::string_view adapter, WorkerRole role) {
  if (!request.session.empty()) return {session_worker(request.session, candidates_), 0};
  PolicyRequest asked{request.key, request.name_space, &request.tokens, clock_.now(), role};
  if (adapter.empty()) return policy_->choose(asked, candidates_);
  asked.adapter = name_space_hash(adapter);
  PromptTokens tokens = request.tokens;
  if (!tokens.ids.empty()) tokens.extra = adapter_extra(adapter, tokens.extra);
  asked.tokens = &tokens;
  return policy_->choose(asked, candidates_);
}

void Dispatcher::keep_endpoints(const std::vector<std::string>& endpoints) {
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return std::ranges::find(endpoints, endpoint_text(table_.worker(candidate.slot)->endpoint)) ==
           endpoints.end();
  });
}

std::vector<net::Endpoint> Dispatcher::least_loaded_beside(WorkerSlot slot, int count) {
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.slot == slot; });
  const size_t n = std::min(candidates_.size(), static_cast<size_t>(count));
  std::ranges::partial_sort(candidates_, candidates_.begin() + static_cast<std::ptrdiff_t>(n), {},
                            &Candidate::load);
  std::vector<net::Endpoint> out;
  for (size_t i = 0; i < n; ++i) out.push_back(table_.worker(candidates_[i].slot)->endpoint);
  return out;
}

void Dispatcher::end(WorkerSlot slot, int64_t num_tokens, WorkerOutcome outcome) {
  std::lock_guard lock(mutex_);
  table_.end(slot, num_tokens, outcome);
  forget_removed();
}

void Dispatcher::forget_removed() {
  for (const WorkerSlot slot : table_.take_removed()) policy_->forget_worker(slot);
}

Result<WorkerSlot> Dispatcher::add_worker(const std::string& url, net::Endpoint endpoint,
                                          int bootstrap_port) {
  std::lock_guard lock(mutex_);
  ESP_ASSIGN_OR_RETURN(const WorkerSlot slot, table_.add(url));
  table_.set_endpoint(slot, std::move(endpoint));
  table_.set_bootstrap_port(slot, bootstrap_port);
  log_info("worker added url={}", url);
  return slot;
}

Status Dispatcher::drain_worker(std::string_view url, bool leaves) {
  std::lock_guard lock(mutex_);
  ESP_ASSIGN_OR_RETURN(const WorkerSlot slot, table_.find(url));
  table_.drain(slot, leaves);
  forget_removed();
  log_info("worker {} url={}", leaves ? "leaves" : "drains", url);
  return {};
}

Status Dispatcher::resume_worker(std::string_view url) {
  std::lock_guard lock(mutex_);
  ESP_ASSIGN_OR_RETURN(const WorkerSlot slot, table_.find(url));
  table_.resume(slot);
  return {};
}

std::vector<WorkerInfo> Dispatcher::workers() const {
  std::lock_guard lock(mutex_);
  std::vector<WorkerInfo> out;
  const TimePoint now = clock_.now();
  for (const WorkerSlot slot : table_.slots()) {
    const Worker& w = *table_.worker(slot);
    out.push_back({slot, w.id, w.generation, w.url, w.endpoint, w.bootstrap_port, w.models,
                   w.takes_ids, w.state, w.breaker.state(now), w.requests_in_flight,
                   w.tokens_in_flight, w.counts});
  }
  return out;
}

const Worker* Dispatcher::find(WorkerSlot slot, uint64_t generation) const {
  const Worker* const worker = table_.worker(slot);
  return worker != nullptr && worker->generation == generation ? worker : nullptr;
}

bool Dispatcher::report_check(WorkerSlot slot, uint64_t generation, bool healthy) {
  {
    std::lock_guard lock(mutex_);
    const Worker* const worker = find(slot, generation);
    if (worker == nullptr) return false;
    const bool changed = table_.report_check(slot, healthy);
    const WorkerState state = worker->state;
    if (!changed) return !healthy && state == WorkerState::kHealthy;
    log_info("worker {} url={}", worker_state_name(state), worker->url);
    if (state != WorkerState::kBroken) return false;
    policy_->forget_worker(slot);  // a worker that comes back has an empty cache, as a rule
  }
  if (on_broken_) on_broken_(generation);
  return false;
}

bool Dispatcher::is_back(WorkerSlot slot, uint64_t generation) const {
  std::lock_guard lock(mutex_);
  const Worker* const worker = find(slot, generation);
  return worker != nullptr &&
         (worker->state == WorkerState::kHealthy || worker->state == WorkerState::kStarting);
}

void Dispatcher::set_models(WorkerSlot slot, uint64_t generation, std::vector<std::string> models,
                            std::vector<std::string> adapters) {
  std::lock_guard lock(mutex_);
  if (find(slot, generation) != nullptr)
    table_.set_models(slot, std::move(models), std::move(adapters));
}

void Dispatcher::set_takes_ids(WorkerSlot slot, uint64_t generation, TakenIds takes_ids) {
  std::lock_guard lock(mutex_);
  const Worker* const worker = find(slot, generation);
  if (worker == nullptr || worker->takes_ids == takes_ids) return;
  table_.set_takes_ids(slot, takes_ids);
  if (takes_ids.texts) {
    log_info("prompts go as token ids to url={} chats={}", worker->url, takes_ids.chats);
  } else {
    log_warning("prompts go as text to url={}: its tokenizer is not known to be the router's",
                worker->url);
  }
}

void Dispatcher::set_endpoint(WorkerSlot slot, uint64_t generation, net::Endpoint endpoint) {
  std::lock_guard lock(mutex_);
  if (find(slot, generation) != nullptr) table_.set_endpoint(slot, std::move(endpoint));
}

void Dispatcher::apply_events(WorkerSlot slot, uint64_t generation,
                              std::span<const KvEvent> events) {
  for (const KvEvent& event : events) {
    std::lock_guard lock(mutex_);
    if (find(slot, generation) == nullptr) return;
    policy_->apply_event(slot, event);
  }
}

std::optional<TreeStats> Dispatcher::tree_stats() const {
  std::lock_guard lock(mutex_);
  const PrefixTree* const tree = policy_->tree();
  if (tree == nullptr) return std::nullopt;
  const CacheMirror* const mirror = policy_->mirror();
  return TreeStats{tree->num_nodes(), tree->num_blocks(), tree->num_evicted_total(),
                   mirror == nullptr ? 0 : mirror->tree().num_nodes()};
}

void Dispatcher::check_invariants() const {
  std::lock_guard lock(mutex_);
  table_.check_invariants();
  if (policy_->tree() != nullptr) policy_->tree()->check_invariants();
  if (policy_->mirror() != nullptr) policy_->mirror()->check_invariants();
}

}  // namespace espalier::router
