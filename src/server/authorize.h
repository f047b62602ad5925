// Which key opens which route. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "net/http.h"
#include "server/routes.h"
#include "server/server_config.h"
#include "tenants/tenants.h"

namespace espalier::server {

// What a request that lacks the key of a route is answered (401 without a key of this server, 403
// with the wrong one); nothing where it may pass. The administrator's key opens everything.
// tenants: whose keys open what --api-key opens; null: there are none.
std::optional<net::HttpResponse> refusal(const AccessConfig& config, const Tenants* tenants,
                                         Access access, const net::HttpRequest& head);

// Whether a request may see what is shown to administrators alone; without keys everyone is one.
bool is_admin(const AccessConfig& config, const Tenants* tenants, const net::HttpRequest& head);

// Whether an address, as --host states it, is reached from this computer alone.
bool is_loopback(std::string_view host);

// The tenant whose key a request brings, that a router states with its own, or whose the process
// makes it; null: none.
TenantPtr tenant_of(Tenants* tenants, const net::HttpRequest& request);

// The engine's name of what a client names `id`: with tenants each one's ids are its own. tenant:
// null for a key that is no tenant's.
std::string owned_id(const Tenants* tenants, const Tenant* tenant, std::string_view id);

}  // namespace espalier::server
