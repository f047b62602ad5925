#include "engine/requests/registry.h"

namespace espalier {

Status rid_in_use_error(std::string_view rid) {
  return error(StatusCode::kAlreadyExists,  // it begins with SGLang's words, too
               "Duplicate request ID: rid '{}' is in use by a request that has not ended; take "
               "another",
               rid);
}

Result<RequestRegistry::Admission> RequestRegistry::admit(const Arrival& arrival) {
  const auto& [rid, num_samples, priority, share] = arrival;
  std::lock_guard lock(mutex_);
  if (closed_)
    return fail(error(StatusCode::kUnavailable, "the engine is shutting down: no new requests"));
  if (by_rid_.contains(rid)) return fail(rid_in_use_error(rid));
  if (num_samples > max_samples_)
    return fail(invalid_argument("n is {}, but at most {} samples can wait and run", num_samples,
                                 max_samples_));
  QueueEviction::Request request{static_cast<RequestId>(num_admitted_ + 1), num_samples, priority,
                                 share, rid};
  Admission admission{.id = request.id};
  const int64_t num_together = num_samples_ - num_evicted_samples_ + num_samples;
  const int64_t excess = num_together - max_samples_;
  if (excess > 0) {
    admission.evicted = eviction_.choose(request, excess);
    if (admission.evicted.empty())  // SGLang's words, which its clients compare
      return fail(error(StatusCode::kResourceExhausted, "The request queue is full."));
    for (const RequestId id : admission.evicted) evict(id);
  }
  num_samples_ += num_samples;
  ++num_admitted_;
  by_rid_.emplace(rid, Entry{.id = request.id});
  eviction_.add(std::move(request));
  if (num_together <= max_running_) eviction_.on_scheduled(admission.id);
  return admission;
}

void RequestRegistry::evict(RequestId id) {
  const QueueEviction::Request& request = eviction_.request(id);
  Entry& entry = by_rid_.at(request.rid);
  entry.abort_requested = entry.evicted = true;
  num_evicted_samples_ += request.num_samples;
  eviction_.remove(id);
}

void RequestRegistry::on_scheduled(const std::string& rid) {
  if (eviction_.rule() == QueueEvictionRule::kNone) return;
  std::lock_guard lock(mutex_);
  if (const auto found = by_rid_.find(rid); found != by_rid_.end())
    eviction_.on_scheduled(found->second.id);
}

Status RequestRegistry::queue_eviction_error() const {
  if (eviction_.rule() == QueueEvictionRule::kLowestPriority)  // SGLang's words
    return error(StatusCode::kResourceExhausted,
                 "The request is aborted by a higher priority request.");
  return error(
      StatusCode::kResourceExhausted,
      "The request queue is full, and its tenant has the most requests in it; try again later.");
}

std::vector<RequestId> RequestRegistry::take_for_abort(std::string_view rid,
                                                       Engine::AbortScope scope) {
  using Scope = Engine::AbortScope;
  std::vector<RequestId> ids;
  std::lock_guard lock(mutex_);
  const auto begin = scope == Scope::kAll ? by_rid_.begin() : by_rid_.lower_bound(rid);
  for (auto it = begin; it != by_rid_.end(); ++it) {
    if (scope == Scope::kExact && it->first != rid) break;
    if (scope == Scope::kPrefix && !it->first.starts_with(rid)) break;
    if (it->second.abort_requested) continue;
    ids.push_back(it->second.id);
    it->second.abort_requested = true;
  }
  return ids;
}

void RequestRegistry::release_sample(const std::string& rid) {
  std::lock_guard lock(mutex_);
  --num_samples_;
  if (num_evicted_samples_ > 0 && by_rid_.at(rid).evicted) --num_evicted_samples_;
}

void RequestRegistry::release_rid(const std::string& rid) {
  std::lock_guard lock(mutex_);
  const auto entry = by_rid_.find(rid);
  eviction_.remove(entry->second.id);
  by_rid_.erase(entry);
}

void RequestRegistry::settle() {
  std::lock_guard lock(mutex_);
  if (++num_settled_ == num_admitted_) settled_changed_.notify_all();
}

void RequestRegistry::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

bool RequestRegistry::wait_settled(Duration timeout) {
  std::unique_lock lock(mutex_);
  return settled_changed_.wait_for(lock, timeout, [&] { return num_settled_ == num_admitted_; });
}

int64_t RequestRegistry::num_samples() const {
  std::lock_guard lock(mutex_);
  return num_samples_;
}

int64_t RequestRegistry::num_requests_total() const {
  std::lock_guard lock(mutex_);
  return num_admitted_;
}

}  // namespace espalier
