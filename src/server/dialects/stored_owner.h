// Whose stored answers a request may see. Thread-safe. Internal to the room.
#pragma once

#include <string>

#include "server/authorize.h"
#include "server/context.h"

namespace espalier::server {

// The name of the tenant whose key the request brings; "" without --api-keys-file, and for keys
// that are no tenant's.
inline std::string owner_of(const Context& context, const net::HttpRequest& request) {
  const TenantPtr tenant = tenant_of(context.tenants.get(), request);
  return tenant != nullptr ? tenant->name() : "";
}

}  // namespace espalier::server
