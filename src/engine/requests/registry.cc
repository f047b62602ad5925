#include "engine/requests/registry.h"

namespace espalier {

Result<RequestId> RequestRegistry::admit(const std::string& rid, int32_t num_samples) {
  std::lock_guard lock(mutex_);
  if (closed_)
    return fail(error(StatusCode::kUnavailable, "the engine is shutting down: no new requests"));
  if (by_rid_.contains(rid))
    return fail(error(StatusCode::kAlreadyExists,
                      "rid '{}' is in use by a request that has not ended: take another", rid));
  if (num_samples > max_samples_)
    return fail(invalid_argument("n is {}, but at most {} samples can wait and run", num_samples,
                                 max_samples_));
  if (num_samples_ + num_samples > max_samples_)
    return fail(error(StatusCode::kResourceExhausted,
                      "the queue is full: {} samples wait or run, at most {} may; try again later",
                      num_samples_, max_samples_));
  num_samples_ += num_samples;
  const auto id = static_cast<RequestId>(++num_admitted_);
  by_rid_.emplace(rid, Entry{.id = id});
  return id;
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
    if (!it->second.abort_requested) ids.push_back(it->second.id);
    it->second.abort_requested = true;
  }
  return ids;
}

void RequestRegistry::release_sample() {
  std::lock_guard lock(mutex_);
  --num_samples_;
}

void RequestRegistry::release_rid(const std::string& rid) {
  std::lock_guard lock(mutex_);
  by_rid_.erase(rid);
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
