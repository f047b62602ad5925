#include "tenants/tenant.h"

#include <fmt/format.h>

#include <algorithm>

namespace espalier {

namespace {

std::string seconds_text(Duration duration) { return fmt::format("{:.3f}s", to_seconds(duration)); }

}  // namespace

Tenant::Tenant(std::string name, const TenantLimits& limits, TimePoint now)
    : name_(std::move(name)) {
  set_limits(limits, now);
}

void Tenant::set_limits(const TenantLimits& limits, TimePoint now) {
  std::lock_guard lock(mutex_);
  limits_ = limits;
  requests_.set_limit(limits.requests_per_minute, now);
  tokens_.set_limit(limits.tokens_per_minute, now);
}

// Both buckets or none: a request that waits for tokens has not used up its place among the
// requests.
std::optional<Duration> Tenant::admit(int64_t tokens, TimePoint now) {
  std::lock_guard lock(mutex_);
  const Duration wait = std::max(requests_.wait_for(1, now), tokens_.wait_for(tokens, now));
  if (wait > Duration::zero()) return wait;
  requests_.take(1, now);
  tokens_.take(tokens, now);
  ++counts_.requests;
  return std::nullopt;
}

void Tenant::count_refusal() {
  std::lock_guard lock(mutex_);
  ++counts_.refused;
}

// Tokens are charged by the most that a request may use, and what it did not use comes back at its
// end.
void Tenant::settle(int64_t reserved, int64_t used, TimePoint now) {
  std::lock_guard lock(mutex_);
  tokens_.take(used - reserved, now);
  counts_.tokens += used;
}

Status Tenant::check_priority(int32_t priority) const {
  std::lock_guard lock(mutex_);
  if (!limits_.max_priority || priority <= *limits_.max_priority) return {};
  return invalid_argument("priority is {}; the most that this key may state is {}", priority,
                          *limits_.max_priority);
}

TenantLimits Tenant::limits() const {
  std::lock_guard lock(mutex_);
  return limits_;
}

HeaderList Tenant::rate_limit_headers(TimePoint now) {
  std::lock_guard lock(mutex_);
  HeaderList out;
  const auto add = [&](std::string_view of, RateBucket& bucket) {
    if (bucket.limit() == 0) return;
    out.emplace_back(fmt::format("x-ratelimit-limit-{}", of), std::to_string(bucket.limit()));
    out.emplace_back(fmt::format("x-ratelimit-remaining-{}", of),
                     std::to_string(bucket.remaining(now)));
    out.emplace_back(fmt::format("x-ratelimit-reset-{}", of), seconds_text(bucket.until_full(now)));
  };
  add("requests", requests_);
  add("tokens", tokens_);
  return out;
}

Tenant::Counts Tenant::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

TokenReservation::~TokenReservation() {
  tenant_->settle(reserved_, used_, std::chrono::steady_clock::now());
}

}  // namespace espalier
