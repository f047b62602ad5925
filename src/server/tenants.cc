#include "server/tenants.h"

#include <openssl/sha.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "base/mapped_file.h"
#include "server/json_fields.h"

namespace espalier::server {
namespace {

constexpr int64_t kMostPerMinute = int64_t{1} << 40;
constexpr double kLeastWeight = 0.001, kMostWeight = 1000;

struct Entry {
  std::string name, key, key_sha256;
  TenantLimits limits;
};

Status read_rate(const Json& value, std::string_view where, int64_t& out) {
  if (!value.is_int64() || value.get_int64() < 1 || value.get_int64() > kMostPerMinute)
    return invalid_argument("{} must be a whole number from 1 to {}", where, kMostPerMinute);
  out = value.get_int64();
  return {};
}

Status read_weight(const Json& value, std::string_view where, Entry& out) {
  if (value.is_number()) out.limits.weight = value.to_number<double>();
  // Comparisons of what is no number are false.
  if (value.is_number() && out.limits.weight >= kLeastWeight && out.limits.weight <= kMostWeight)
    return {};
  return invalid_argument("{} must be a number from {} to {}", where, kLeastWeight, kMostWeight);
}

const Fields<Entry>& entry_fields() {
  static const Fields<Entry> fields = [] {
    const std::string integer = R"({"type":"integer"})";
    Fields<Entry> f = {
        field<Entry>("name", "the tenant", &Entry::name),
        field<Entry>("key", "that its clients send", &Entry::key),
        field<Entry>("key_sha256", "the key's SHA-256, hexadecimal", &Entry::key_sha256),
        custom<Entry>("requests_per_minute", integer, "admitted",
                      [](const Json& value, std::string_view where, Entry& out) {
                        return read_rate(value, where, out.limits.requests_per_minute);
                      }),
        custom<Entry>("tokens_per_minute", integer, "of prompts and answers",
                      [](const Json& value, std::string_view where, Entry& out) {
                        return read_rate(value, where, out.limits.tokens_per_minute);
                      }),
        field<Entry>(
            "max_priority", "of a request",
            [](Entry & e) -> auto& { return e.limits.max_priority; }),
        custom<Entry>("weight", R"({"type":"number"})", "of its part, with --fair-share tenant",
                      read_weight),
    };
    f[0].required = true;
    return f;
  }();
  return fields;
}

Status check_known(const Json& value) {
  return for_each_member(value, "", [](std::string_view name, const Json&) -> Status {
    for (const auto& known : entry_fields())
      if (known.name == name) return {};
    return invalid_argument("'{}' is no member of an entry", name);
  });
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

std::string seconds_text(Duration duration) { return fmt::format("{:.3f}s", to_seconds(duration)); }

}  // namespace

// A token bucket that holds a minute's worth: it fills evenly, and a tenant that was idle may use a
// minute at once. The level may be negative where more was taken than was there.
void RateBucket::refill(TimePoint now) {
  const double gained = static_cast<double>(limit_) * to_seconds(now - filled_at_) / 60;
  level_ = std::min(static_cast<double>(limit_), level_ + gained);
  filled_at_ = now;
}

// Another limit keeps the share that is filled, so reloading the file neither refills a bucket that
// was used up nor empties a full one.
void RateBucket::set_limit(int64_t per_minute, TimePoint now) {
  const double filled = limit_ == 0 ? 1 : (refill(now), level_ / static_cast<double>(limit_));
  limit_ = per_minute;
  level_ = filled * static_cast<double>(limit_);
  filled_at_ = now;
}

int64_t RateBucket::remaining(TimePoint now) {
  refill(now);
  return std::max<int64_t>(0, static_cast<int64_t>(std::floor(level_)));
}

// An amount beyond the limit waits for a full bucket and then leaves it below zero: a large request
// is delayed, but it is never refused for ever.
Duration RateBucket::wait_for(int64_t amount, TimePoint now) {
  if (limit_ == 0) return Duration::zero();
  refill(now);
  const double missing = static_cast<double>(std::min(amount, limit_)) - level_;
  if (missing <= 1e-6) return Duration::zero();
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(missing * 60 / static_cast<double>(limit_)));
}

void RateBucket::take(int64_t amount, TimePoint now) {
  if (limit_ == 0) return;
  refill(now);
  level_ = std::min(static_cast<double>(limit_), level_ - static_cast<double>(amount));
}

Tenant::Tenant(std::string name, const TenantLimits& limits, TimePoint now)
    : name_(std::move(name)) {
  set_limits(limits, now);
}

void Tenant::set_limits(const TenantLimits& limits, TimePoint now) {
  std::lock_guard lock(mutex_);
  max_priority_ = limits.max_priority;
  weight_ = limits.weight;
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
  return std::nullopt;
}

void Tenant::count_refusal() {
  std::lock_guard lock(mutex_);
  ++num_refused_;
}

// Tokens are charged by the most that a request may use, and what it did not use comes back at its
// end.
void Tenant::give_back(int64_t tokens, TimePoint now) {
  std::lock_guard lock(mutex_);
  tokens_.take(-tokens, now);
}

Status Tenant::check_priority(int32_t priority) const {
  std::lock_guard lock(mutex_);
  if (!max_priority_ || priority <= *max_priority_) return {};
  return invalid_argument("priority is {}; the most that this key may state is {}", priority,
                          *max_priority_);
}

double Tenant::weight() const {
  std::lock_guard lock(mutex_);
  return weight_;
}

net::Headers Tenant::headers(TimePoint now) {
  std::lock_guard lock(mutex_);
  net::Headers out;
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

int64_t Tenant::num_refused() const {
  std::lock_guard lock(mutex_);
  return num_refused_;
}

TokenReservation::~TokenReservation() {
  tenant_->give_back(left_, std::chrono::steady_clock::now());
}

Result<std::unique_ptr<Tenants>> Tenants::read(const std::filesystem::path& file) {
  std::unique_ptr<Tenants> tenants(new Tenants(file));
  ESP_RETURN_IF_ERROR(tenants->reload());
  return tenants;
}

Result<Tenants::Table> Tenants::parse() const {
  ESP_ASSIGN_OR_RETURN(const std::string text, read_text_file(file_));
  ESP_ASSIGN_OR_RETURN(const Json value, parse_json(text));
  if (!value.is_array()) return fail(invalid_argument("it must be a list of objects"));
  Table table;
  const TimePoint now = std::chrono::steady_clock::now();
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    const auto problem = [&](const Status& why) {
      return fail(why.with_context(fmt::format("entry {}", i + 1)));
    };
    Entry entry;
    Status read = check_known(value.get_array()[i]);
    if (read.ok()) read = read_fields(entry_fields(), value.get_array()[i], "", entry);
    if (read.ok()) read = check_name(entry.name);
    if (!read.ok()) return problem(read);
    const auto digest = digest_of(entry);
    if (!digest) return problem(digest.error());
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

TenantPtr Tenants::named(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = table_.by_name.find(name);
  return found == table_.by_name.end() ? nullptr : found->second;
}

std::vector<TenantPtr> Tenants::all() const {
  std::lock_guard lock(mutex_);
  std::vector<TenantPtr> out;
  for (const auto& [name, tenant] : table_.by_name) out.push_back(tenant);
  return out;
}

}  // namespace espalier::server
