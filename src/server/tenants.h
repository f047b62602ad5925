// Keys as tenants: --api-keys-file names who calls, with limits of requests and tokens a minute.
// Internal to the room.
//
// The file is a JSON array of objects:
//   {"name", "key" or "key_sha256", "requests_per_minute", "tokens_per_minute", "max_priority",
//    "weight"}
// Keys are kept as SHA-256 alone; they stand in no log, error or answer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/http.h"

namespace espalier::server {

struct TenantLimits {
  int64_t requests_per_minute = 0, tokens_per_minute = 0;  // 0: no limit
  std::optional<int32_t> max_priority;                     // of a request
  double weight = 1;                                       // of its part, with --fair-share tenant
};

// So many a minute: the level rises evenly up to a minute's worth. Not thread-safe.
class RateBucket {
 public:
  // per_minute: 0 for no limit. A changed limit keeps the part that is filled.
  void set_limit(int64_t per_minute, TimePoint now);
  int64_t limit() const { return limit_; }
  int64_t remaining(TimePoint now);  // at least 0
  // Until `amount` can be taken; zero: now. An amount above a minute's worth needs a full bucket.
  Duration wait_for(int64_t amount, TimePoint now);
  Duration until_full(TimePoint now) { return wait_for(limit_, now); }
  // May take more than there is; negative amounts give back.
  void take(int64_t amount, TimePoint now);

 private:
  void refill(TimePoint now);

  int64_t limit_ = 0;
  double level_ = 0;
  TimePoint filled_at_{};
};

// Thread-safe.
class Tenant {
 public:
  Tenant(std::string name, const TenantLimits& limits, TimePoint now);

  const std::string& name() const { return name_; }
  void set_limits(const TenantLimits& limits, TimePoint now);

  // Takes a request of about so many tokens; else how long to wait. A line of a batch then waits; a
  // client is refused, which the caller counts.
  std::optional<Duration> admit(int64_t tokens, TimePoint now);
  void count_refusal();
  // A request was admitted with more tokens than it used; negative: with fewer.
  void give_back(int64_t tokens, TimePoint now);
  // kInvalidArgument above max_priority.
  Status check_priority(int32_t priority) const;
  double weight() const;

  // x-ratelimit-* of OpenAI; none where there is no limit.
  net::Headers headers(TimePoint now);
  int64_t num_refused() const;

  int num_waiting() const { return num_waiting_; }  // its clients' calls without a first token

 private:
  friend class WaitingCall;
  const std::string name_;
  mutable std::mutex mutex_;
  std::optional<int32_t> max_priority_;
  double weight_ = 1;
  RateBucket requests_, tokens_;
  int64_t num_refused_ = 0;
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
  TokenReservation(TenantPtr tenant, int64_t tokens) : tenant_(std::move(tenant)), left_(tokens) {}
  ~TokenReservation();
  TokenReservation(const TokenReservation&) = delete;
  TokenReservation& operator=(const TokenReservation&) = delete;

  void use(int64_t tokens) { left_ -= tokens; }

 private:
  const TenantPtr tenant_;
  int64_t left_;
};

// Thread-safe.
class Tenants {
 public:
  // kInvalidArgument names the entry and what is wrong with it.
  static Result<std::unique_ptr<Tenants>> read(const std::filesystem::path& file);

  // Reads the file again: tenants whose name stays keep what they have used. A file with a mistake
  // changes nothing.
  Status reload();
  // Whose key it is; null: nobody's. Takes the same time for every key of a length.
  TenantPtr find(std::string_view key) const;
  TenantPtr named(const std::string& name) const;  // null: there is none
  std::vector<TenantPtr> all() const;              // by name

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Table {
    std::map<Digest, TenantPtr> by_key;
    std::map<std::string, TenantPtr> by_name;
    std::map<std::string, TenantLimits> limits;  // by name
  };
  explicit Tenants(std::filesystem::path file) : file_(std::move(file)) {}
  Result<Table> parse() const;

  const std::filesystem::path file_;
  mutable std::mutex mutex_;
  Table table_;
};

}  // namespace espalier::server
