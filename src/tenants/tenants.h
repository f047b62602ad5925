// Keys as tenants: --api-keys-file names who calls, with limits of requests and tokens a minute.
//
// The file is a JSON array of objects:
//   {"name", "key" or "key_sha256", "requests_per_minute", "tokens_per_minute", "max_priority",
//    "weight"}
// Keys are kept as SHA-256 alone; they stand in no log, error or answer.
//
// A router that keeps the file passes its tenants on by headers. They count only in requests that
// bring the router's key, which no client has; the router drops them from what clients send.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tenants/tenant.h"

namespace espalier {

// What a router states of a request's tenant.
inline constexpr std::string_view kTenantHeader = "X-Espalier-Tenant",
                                  kTenantWeightHeader = "X-Espalier-Tenant-Weight",
                                  kTenantPriorityHeader = "X-Espalier-Tenant-Max-Priority";
HeaderList stated_tenant_headers(const Tenant& tenant);

// Thread-safe.
class Tenants {
 public:
  // kInvalidArgument names the entry and what is wrong with it. file: empty for none. router_key:
  // of a router that states its tenants; empty: there is none.
  static Result<std::unique_ptr<Tenants>> read(const std::filesystem::path& file,
                                               std::string_view router_key = "");

  // Reads the file again: tenants whose name stays keep what they have used. A file with a mistake
  // changes nothing.
  Status reload();
  // Whose key it is; null: nobody's. Takes the same time for every key of a length.
  TenantPtr find(std::string_view key) const;
  bool is_router(std::string_view key) const;
  // The tenant that a router states by the values of the three headers, in their order (null:
  // absent). Null where it states none. What is malformed in the last two is as if it were absent.
  // REQUIRES that the request brings the router's key.
  TenantPtr stated(const std::string* name, const std::string* weight,
                   const std::string* max_priority);
  // Of the file, or stated before; null: there is none.
  TenantPtr named(const std::string& name) const;
  std::vector<TenantPtr> all() const;  // of the file, by name

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Table {
    std::map<Digest, TenantPtr> by_key;
    std::map<std::string, TenantPtr> by_name;
    std::map<std::string, TenantLimits> limits;  // by name
  };
  Tenants(std::filesystem::path file, std::string_view router_key);
  Result<Table> parse() const;

  static constexpr size_t kStatedMax = 1 << 16;

  const std::filesystem::path file_;  // empty: there is none
  const std::optional<Digest> router_key_;
  mutable std::mutex mutex_;
  Table table_;
  // By name. Where it is full, tenants without requests give way.
  std::map<std::string, TenantPtr> stated_;
};

}  // namespace espalier
