#include "tenants/tenants.h"

#include <openssl/sha.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>

#include "base/mapped_file.h"

namespace espalier {

namespace json = boost::json;

namespace {

constexpr int64_t kMostPerMinute = int64_t{1} << 40;
constexpr double kLeastWeight = 0.001, kMostWeight = 1000;
constexpr std::array<std::string_view, 7> kMembers = {
    "name",         "key",   "key_sha256", "requests_per_minute", "tokens_per_minute",
    "max_priority", "weight"};

struct Entry {
  std::string name, key, key_sha256;
  TenantLimits limits;
};

using json::value;

Status read_text(const value& value, std::string_view where, std::string& out) {
  if (!value.is_string()) return invalid_argument("{} must be a string", where);
  out = value.get_string();
  return {};
}

Status read_rate(const value& value, std::string_view where, int64_t& out) {
  if (!value.is_int64() || value.get_int64() < 1 || value.get_int64() > kMostPerMinute)
    return invalid_argument("{} must be a whole number from 1 to {}", where, kMostPerMinute);
  out = value.get_int64();
  return {};
}

Status read_priority(const value& value, std::string_view where, std::optional<int32_t>& out) {
  boost::system::error_code failed;
  const auto number = value.to_number<int32_t>(failed);
  if (failed) return invalid_argument("{} must be a whole number of 32 bits", where);
  out = number;
  return {};
}

Status read_weight(const value& value, std::string_view where, double& out) {
  if (value.is_number()) out = value.to_number<double>();
  // Comparisons of what is no number are false.
  if (value.is_number() && out >= kLeastWeight && out <= kMostWeight) return {};
  return invalid_argument("{} must be a number from {} to {}", where, kLeastWeight, kMostWeight);
}

Status read_member(std::string_view name, const value& value, Entry& out) {
  if (name == "name") return read_text(value, name, out.name);
  if (name == "key") return read_text(value, name, out.key);
  if (name == "key_sha256") return read_text(value, name, out.key_sha256);
  if (name == "requests_per_minute") return read_rate(value, name, out.limits.requests_per_minute);
  if (name == "tokens_per_minute") return read_rate(value, name, out.limits.tokens_per_minute);
  if (name == "max_priority") return read_priority(value, name, out.limits.max_priority);
  return read_weight(value, name, out.limits.weight);
}

// All names are checked first: a member that is misspelt explains why another one is missing. An
// explicit null is the default.
Status read_entry(const value& value, Entry& out) {
  if (!value.is_object()) return invalid_argument("it must be an object");
  for (const auto& member : value.get_object())
    if (std::ranges::find(kMembers, std::string_view(member.key())) == kMembers.end())
      return invalid_argument("'{}' is no member of an entry", std::string_view(member.key()));
  for (const auto& member : value.get_object())
    if (!member.value().is_null())
      ESP_RETURN_IF_ERROR(read_member(member.key(), member.value(), out));
  const auto* const name = value.get_object().if_contains("name");
  if (name == nullptr || name->is_null()) return invalid_argument("name is missing");
  return {};
}

Result<value> parse_json(std::string_view text) {
  boost::system::error_code failed;
  json::value parsed = json::parse(text, failed);
  if (failed) return fail(invalid_argument("it is not valid JSON: {}", failed.message()));
  return parsed;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Keys are kept and compared as digests, so a dump of the memory shows none, and the time that a
// comparison takes says nothing about a key.
std::array<unsigned char, 32> sha256(std::string_view text) {
  std::array<unsigned char, 32> digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

Result<std::array<unsigned char, 32>> digest_of(const Entry& entry) {
  if (entry.key.empty() == entry.key_sha256.empty())
    return fail(invalid_argument("one of key and key_sha256 must be set, and not empty"));
  if (!entry.key.empty()) return sha256(entry.key);
  std::array<unsigned char, 32> digest;
  bool is_hex = entry.key_sha256.size() == 2 * digest.size();
  for (size_t i = 0; is_hex && i < digest.size(); ++i) {
    const int high = hex_digit(entry.key_sha256[2 * i]),
              low = hex_digit(entry.key_sha256[2 * i + 1]);
    is_hex = high >= 0 && low >= 0;
    digest[i] = static_cast<unsigned char>(high * 16 + low);
  }
  if (!is_hex) return fail(invalid_argument("key_sha256 must be 64 hexadecimal digits"));
  return digest;
}

Status check_name(std::string_view name) {
  const bool plain = std::ranges::all_of(name, [](char c) { return c > 0x20 && c < 0x7f; });
  if (name.empty() || name.size() > 64 || !plain)
    return invalid_argument("name must be 1 to 64 printable ASCII characters without spaces");
  return {};
}

// The whole text as a number; nothing where it is none.
template <typename Number>
std::optional<Number> number_of(const std::string* text) {
  Number number{};
  if (text == nullptr) return std::nullopt;
  const char* const end = text->data() + text->size();
  const auto [stop, failed] = std::from_chars(text->data(), end, number);
  if (failed != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace

HeaderList stated_tenant_headers(const Tenant& tenant) {
  const TenantLimits limits = tenant.limits();
  HeaderList out = {{std::string(kTenantHeader), tenant.name()},
                    {std::string(kTenantWeightHeader), fmt::format("{}", limits.weight)}};
  if (limits.max_priority)
    out.emplace_back(kTenantPriorityHeader, std::to_string(*limits.max_priority));
  return out;
}

Tenants::Tenants(std::filesystem::path file, std::string_view router_key)
    : file_(std::move(file)),
      router_key_(router_key.empty() ? std::nullopt : std::optional(sha256(router_key))) {}

Result<std::unique_ptr<Tenants>> Tenants::read(const std::filesystem::path& file,
                                               std::string_view router_key) {
  std::unique_ptr<Tenants> tenants(new Tenants(file, router_key));
  ESP_RETURN_IF_ERROR(tenants->reload());
  return tenants;
}

Result<Tenants::Table> Tenants::parse() const {
  ESP_ASSIGN_OR_RETURN(const std::string text, read_text_file(file_));
  ESP_ASSIGN_OR_RETURN(const json::value value, parse_json(text));
  if (!value.is_array()) return fail(invalid_argument("it must be a list of objects"));
  Table table;
  const TimePoint now = std::chrono::steady_clock::now();
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    const auto problem = [&](const Status& why) {
      return fail(why.with_context(fmt::format("entry {}", i + 1)));
    };
    Entry entry;
    Status read = read_entry(value.get_array()[i], entry);
    if (read.ok()) read = check_name(entry.name);
    if (!read.ok()) return problem(read);
    const auto digest = digest_of(entry);
    if (!digest) return problem(digest.error());
    if (router_key_ == *digest)
      return problem(
          invalid_argument("its key is the router's (--router-api-key), which states any "
                           "tenant: give each a key of its own"));
    const auto tenant = std::make_shared<Tenant>(entry.name, entry.limits, now);
    if (!table.by_name.emplace(entry.name, tenant).second)
      return problem(invalid_argument("an earlier entry has the name '{}'", entry.name));
    if (!table.by_key.emplace(*digest, tenant).second)
      return problem(invalid_argument("an earlier entry has the same key"));
    table.limits[entry.name] = entry.limits;
  }
  if (table.by_key.empty()) return fail(invalid_argument("it has no entry"));
  return table;
}

Status Tenants::reload() {
  if (file_.empty()) return {};
  auto parsed = parse();
  if (!parsed) return parsed.error().with_context(file_.string());
  const TimePoint now = std::chrono::steady_clock::now();
  std::lock_guard lock(mutex_);
  for (auto& [digest, tenant] : parsed->by_key) {
    const auto known = table_.by_name.find(tenant->name());
    if (known == table_.by_name.end()) continue;
    known->second->set_limits(parsed->limits[tenant->name()], now);
    tenant = known->second;
    parsed->by_name[tenant->name()] = tenant;
  }
  table_ = std::move(*parsed);
  return {};
}

// Keys are compared by their digests, whose order says nothing of the keys.
TenantPtr Tenants::find(std::string_view key) const {
  const Digest digest = sha256(key);
  std::lock_guard lock(mutex_);
  const auto found = table_.by_key.find(digest);
  return found == table_.by_key.end() ? nullptr : found->second;
}

bool Tenants::is_router(std::string_view key) const {
  return router_key_ && sha256(key) == *router_key_;
}

// A tenant of the file with the same name is the same tenant, with its own limits.
TenantPtr Tenants::stated(const std::string* name, const std::string* weight,
                          const std::string* max_priority) {
  if (name == nullptr || !check_name(*name).ok()) return nullptr;
  TenantLimits limits{.max_priority = number_of<int32_t>(max_priority)};
  const double stated_weight = number_of<double>(weight).value_or(1);
  if (stated_weight >= kLeastWeight && stated_weight <= kMostWeight) limits.weight = stated_weight;
  const TimePoint now = std::chrono::steady_clock::now();
  std::lock_guard lock(mutex_);
  if (const auto of_file = table_.by_name.find(*name); of_file != table_.by_name.end())
    return of_file->second;
  if (const auto known = stated_.find(*name); known != stated_.end()) {
    known->second->set_limits(limits, now);
    return known->second;
  }
  if (stated_.size() >= kStatedMax)
    std::erase_if(stated_, [](const auto& entry) { return entry.second.use_count() == 1; });
  const auto tenant = std::make_shared<Tenant>(*name, limits, now);
  if (stated_.size() < kStatedMax) stated_.emplace(*name, tenant);
  return tenant;
}

TenantPtr Tenants::named(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = table_.by_name.find(name);
  if (found != table_.by_name.end()) return found->second;
  const auto stated = stated_.find(name);
  return stated == stated_.end() ? nullptr : stated->second;
}

std::vector<TenantPtr> Tenants::all() const {
  std::lock_guard lock(mutex_);
  std::vector<TenantPtr> out;
  for (const auto& [name, tenant] : table_.by_name) out.push_back(tenant);
  return out;
}

}  // namespace espalier
