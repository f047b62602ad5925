#include "server/authorize.h"

#include <algorithm>

#include "server/cache_namespace.h"
#include "server/errors.h"
#include "tenants/api_key.h"

namespace espalier::server {

using net::HttpRequest;

namespace {

std::string_view key_of(const HttpRequest& request) {
  return api_key_of(request.header("Authorization"), request.header("x-api-key"));
}

enum class Verdict { kAllowed, kUnauthorized, kForbidden };

Verdict authorize(const AccessConfig& config, const Tenants* tenants, Access access,
                  const HttpRequest& request) {
  const std::string& admin_key =
      config.admin_api_key.empty() ? config.api_key : config.admin_api_key;
  const bool for_admin = access != Access::kUser && access != Access::kOpen;
  const std::string& key = for_admin ? admin_key : config.api_key;
  if (access == Access::kOpen || (key.empty() && tenants == nullptr)) return Verdict::kAllowed;
  const std::string_view given = key_of(request);
  if (given.empty()) return Verdict::kUnauthorized;
  if (tenants != nullptr && (tenants->is_router(given) || tenants->find(given) != nullptr))
    return for_admin ? Verdict::kForbidden : Verdict::kAllowed;
  // The administrator's key opens everything.
  if ((!key.empty() && same_key(given, key)) ||
      (!config.admin_api_key.empty() && same_key(given, admin_key))) {
    return Verdict::kAllowed;
  }
  const bool is_user = !config.api_key.empty() && same_key(given, config.api_key);
  return is_user ? Verdict::kForbidden : Verdict::kUnauthorized;
}

// Whether a browser sends the request for a page that neither this server nor --cors-origins
// names. A page's requests of its own origin by GET carry no Origin.
bool is_of_foreign_page(const AccessConfig& config, const HttpRequest& head) {
  const std::string* const origin = head.header("Origin");
  if (origin == nullptr ||
      std::ranges::find(config.cors_origins, *origin) != config.cors_origins.end())
    return false;
  const size_t colon = origin->find("://");
  const std::string* const host = head.header("Host");
  return colon == std::string::npos || host == nullptr || origin->substr(colon + 3) != *host;
}

}  // namespace

std::optional<net::HttpResponse> refusal(const AccessConfig& config, const Tenants* tenants,
                                         Access access, const HttpRequest& head) {
  const bool needs_key =
      tenants != nullptr || !config.api_key.empty() || !config.admin_api_key.empty();
  if (access == Access::kPrompts && !needs_key && is_of_foreign_page(config, head))
    return http_error(
        403,
        "this shows prompts, so pages of other origins may not read it without a key: "
        "set --admin-api-key, or name the origin in --cors-origins");
  if (access == Access::kControl && !needs_key) {
    if (is_of_foreign_page(config, head))
      return http_error(403,
                        "pages of other origins may not call this without a key: set "
                        "--admin-api-key, or name the origin in --cors-origins");
    if (head.method != "POST")
      return http_error(403,
                        "without a key this is called by POST, for any page can make a browser GET "
                        "it: send POST, or set --admin-api-key");
  }
  switch (authorize(config, tenants, access, head)) {
    case Verdict::kAllowed:
      return std::nullopt;
    case Verdict::kUnauthorized:
      return unauthorized();
    case Verdict::kForbidden:
      return forbidden();
  }
  return forbidden();
}

bool is_admin(const AccessConfig& config, const Tenants* tenants, const HttpRequest& head) {
  return authorize(config, tenants, Access::kAdmin, head) == Verdict::kAllowed;
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

TenantPtr tenant_of(Tenants* tenants, const HttpRequest& request) {
  if (tenants == nullptr) return nullptr;
  if (!request.tenant.empty()) return tenants->named(request.tenant);
  const std::string_view key = key_of(request);
  if (!tenants->is_router(key)) return tenants->find(key);
  return tenants->stated(request.header(kTenantHeader), request.header(kTenantWeightHeader),
                         request.header(kTenantPriorityHeader));
}

std::string owned_id(const Tenants* tenants, const Tenant* tenant, std::string_view id) {
  if (tenants == nullptr) return std::string(id);
  return cache_namespace(tenant != nullptr ? tenant->name() : "", id);
}

}  // namespace espalier::server
