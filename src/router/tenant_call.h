// One request of a tenant: admitted or refused by its limits, charged for what it used. Internal to
// the room.
#pragma once

#include <optional>
#include <string_view>

#include "net/http.h"
#include "router/request_facts.h"
#include "router/usage_reader.h"
#include "tenants/tenants.h"

namespace espalier::router {

// The tenant whose key a request brings; null: none, or there are no tenants.
TenantPtr tenant_of(const Tenants* tenants, const net::HttpRequest& request);

// Every member may be called without a tenant and does nothing then. One thread at a time.
class TenantCall {
 public:
  // `is_limited`: whether the limits count the request.
  TenantCall(TenantPtr tenant, const RequestCost& cost, bool is_limited);
  ~TenantCall();
  TenantCall(const TenantCall&) = delete;
  TenantCall& operator=(const TenantCall&) = delete;

  // The answer of a request that may not pass: its priority is above the tenant's (400), or a limit
  // is reached (429). Once, before the others.
  std::optional<net::HttpResponse> admit(ErrorStyle errors, TimePoint now);

  // Adds the tenant's name, weight and priority for the worker.
  void state(net::Headers& to_worker) const;

  // Of the worker's answer. Its own x-ratelimit-* are those of the router's key, and go.
  void on_head(int status, std::string_view content_type, net::Headers& headers, TimePoint now);
  void on_bytes(std::string_view bytes);
  // The tenant is charged before the client sees the end, so that its next request finds it so.
  void on_end();      // the answer is complete
  void on_cut();      // it will not be
  void on_refused();  // the router answers with an error: nothing was used

 private:
  void settle();
  int64_t used() const;

  const TenantPtr tenant_;
  const RequestCost cost_;
  const bool is_limited_;
  std::optional<TokenReservation> reservation_;
  UsageReader usage_;
  int status_ = 0;  // of the answer; 0: none has begun
  bool ended_ = false, refused_ = false;
};

}  // namespace espalier::router
