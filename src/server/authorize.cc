#include "server/authorize.h"

#include <strings.h>

#include "server/cache_namespace.h"
#include "server/errors.h"

namespace espalier::server {

using net::HttpRequest;

namespace {

// Takes the same time however much of the key is right.
bool same_key(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return difference == 0;
}

// The key of "Authorization: Bearer KEY", or of "x-api-key: KEY" as Anthropic's clients send it;
// empty: there is none.
std::string_view key_of(const HttpRequest& request) {
  constexpr std::string_view kScheme = "Bearer ";  // in any case (RFC 9110, 11.1)
  const std::string* header = request.header("Authorization");
  if (header != nullptr && ::strncasecmp(header->c_str(), kScheme.data(), kScheme.size()) == 0)
    return std::string_view(*header).substr(kScheme.size());
  const std::string* key = request.header("x-api-key");
  return key != nullptr ? std::string_view(*key) : std::string_view();
}

enum class Verdict { kAllowed, kUnauthorized, kForbidden };

Verdict authorize(const ServerConfig& config, const Tenants* tenants, Access access,
                  const HttpRequest& request) {
  const std::string& admin_key =
      config.admin_api_key.empty() ? config.api_key : config.admin_api_key;
  const std::string& key = access == Access::kAdmin ? admin_key : config.api_key;
  if (access == Access::kOpen || (key.empty() && tenants == nullptr)) return Verdict::kAllowed;
  const std::string_view given = key_of(request);
  if (given.empty()) return Verdict::kUnauthorized;
  if (tenants != nullptr && tenants->find(given) != nullptr)
    return access == Access::kUser ? Verdict::kAllowed : Verdict::kForbidden;
  // The administrator's key opens everything.
  if ((!key.empty() && same_key(given, key)) ||
      (!config.admin_api_key.empty() && same_key(given, admin_key))) {
    return Verdict::kAllowed;
  }
  const bool is_user = !config.api_key.empty() && same_key(given, config.api_key);
  return is_user ? Verdict::kForbidden : Verdict::kUnauthorized;
}

}  // namespace

std::optional<net::HttpResponse> refusal(const ServerConfig& config, const Tenants* tenants,
                                         Access access, const HttpRequest& head) {
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

bool is_admin(const ServerConfig& config, const Tenants* tenants, const HttpRequest& head) {
  return authorize(config, tenants, Access::kAdmin, head) == Verdict::kAllowed;
}

TenantPtr tenant_of(const Tenants* tenants, const HttpRequest& request) {
  if (tenants == nullptr) return nullptr;
  return request.tenant.empty() ? tenants->find(key_of(request)) : tenants->named(request.tenant);
}

std::string owned_id(const Tenants* tenants, const Tenant* tenant, std::string_view id) {
  if (tenants == nullptr) return std::string(id);
  return cache_namespace(tenant != nullptr ? tenant->name() : "", id);
}

}  // namespace espalier::server
