// A tenant: the name behind a key, with its limits and what it has used of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "tenants/rate_bucket.h"

namespace espalier {

using HeaderList = std::vector<std::pair<std::string, std::string>>;  // as HTTP's rooms have them

struct TenantLimits {
  int64_t requests_per_minute = 0, tokens_per_minute = 0;  // 0: no limit
  std::optional<int32_t> max_priority;                     // of a request
  double weight = 1;                                       // of its part, with --fair-share tenant
};

// Thread-safe.
class Tenant {
 public:
  Tenant(std::string name, const TenantLimits& limits, TimePoint now);

  const std::string& name() const { return name_; }
  void set_limits(const TenantLimits& limits, TimePoint now);

  // Admits a request of about `tokens` tokens, or returns how long it has to wait: a request of a
  // batch waits then, a client's is refused, and the caller counts the refusal.
  std::optional<Duration> admit(int64_t tokens, TimePoint now);
  void count_refusal();
  // A request ended that was admitted with `reserved` tokens and used so many of them, or more.
  void settle(int64_t reserved, int64_t used, TimePoint now);
  // kInvalidArgument above max_priority.
  Status check_priority(int32_t priority) const;
  double weight() const { return limits().weight; }
  TenantLimits limits() const;

  // x-ratelimit-* of OpenAI; none where there is no limit.
  HeaderList rate_limit_headers(TimePoint now);

  // Since it was made.
  struct Counts {
    int64_t requests = 0;  // admitted
    int64_t tokens = 0;    // that requests have used which ended
    int64_t refused = 0;
  };
  Counts counts() const;

  int num_waiting() const { return num_waiting_; }  // its clients' calls without a first token

 private:
  friend class WaitingCall;
  const std::string name_;
  mutable std::mutex mutex_;
  TenantLimits limits_;
  RateBucket requests_, tokens_;
  Counts counts_;
  std::atomic<int> num_waiting_{0};
};
using TenantPtr = std::shared_ptr<Tenant>;

// Counts in Tenant::num_waiting() while it lives.
class WaitingCall {
 public:
  explicit WaitingCall(TenantPtr tenant) : tenant_(std::move(tenant)) { ++tenant_->num_waiting_; }
  ~WaitingCall() { --tenant_->num_waiting_; }
  WaitingCall(const WaitingCall&) = delete;
  WaitingCall& operator=(const WaitingCall&) = delete;

 private:
  const TenantPtr tenant_;
};

// What a request has taken of its tenant's tokens; gives back, at its end, what it has not used.
class TokenReservation {
 public:
  TokenReservation(TenantPtr tenant, int64_t tokens)
      : tenant_(std::move(tenant)), reserved_(tokens) {}
  ~TokenReservation();
  TokenReservation(const TokenReservation&) = delete;
  TokenReservation& operator=(const TokenReservation&) = delete;

  void use(int64_t tokens) { used_ += tokens; }

 private:
  const TenantPtr tenant_;
  const int64_t reserved_;
  int64_t used_ = 0;
};

}  // namespace espalier
