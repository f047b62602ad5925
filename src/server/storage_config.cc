#include "server/storage_config.h"

#include <boost/json/parse.hpp>
#include <fstream>
#include <iterator>
#include <limits>

namespace espalier {
namespace {

namespace json = boost::json;

constexpr int64_t kMillisecondsMax = 600'000;
constexpr int64_t kConnectionsMax = 64;

Status read_text(std::string_view name, const json::value& member, std::string& out) {
  if (!member.is_string()) return invalid_argument("{} must be text", name);
  out = member.get_string();
  return {};
}

template <typename Int>
Status read_whole(std::string_view name, const json::value& member, int64_t least, int64_t most,
                  Int& out) {
  if (!member.is_int64() || member.get_int64() < least || member.get_int64() > most)
    return invalid_argument("{} must be a whole number from {} to {}", name, least, most);
  out = static_cast<Int>(member.get_int64());
  return {};
}

Status read_milliseconds(std::string_view name, const json::value& member, Duration& out) {
  int64_t number = 0;
  ESP_RETURN_IF_ERROR(read_whole(name, member, 1, kMillisecondsMax, number));
  out = std::chrono::milliseconds(number);
  return {};
}

Status read_member(std::string_view name, const json::value& member, RedisServer& server) {
  if (name == "url") {
    std::string url;
    ESP_RETURN_IF_ERROR(read_text(name, member, url));
    return server.set_url(url);
  }
  if (name == "user") return read_text(name, member, server.user);
  if (name == "password") return read_text(name, member, server.password);
  if (name == "database") return read_whole(name, member, 0, 1 << 20, server.database);
  if (name == "key_prefix") return read_text(name, member, server.key_prefix);
  if (name == "ttl_seconds")
    return read_whole(name, member, 0, std::numeric_limits<int32_t>::max(), server.ttl_seconds);
  if (name == "connections")
    return read_whole(name, member, 1, kConnectionsMax, server.num_connections);
  if (name == "connect_timeout_ms") return read_milliseconds(name, member, server.connect_timeout);
  if (name == "lookup_timeout_ms") return read_milliseconds(name, member, server.lookup_timeout);
  if (name == "transfer_timeout_ms")
    return read_milliseconds(name, member, server.transfer_timeout);
  if (name == "ca_file") return read_text(name, member, server.tls_files.ca);
  if (name == "certificate_file") return read_text(name, member, server.tls_files.certificate);
  if (name == "key_file") return read_text(name, member, server.tls_files.key);
  return invalid_argument(
      "there is no '{}': give url, user, password, database, key_prefix, ttl_seconds, connections, "
      "connect_timeout_ms, lookup_timeout_ms, transfer_timeout_ms, ca_file, certificate_file and "
      "key_file",
      name);
}

Status read_member(std::string_view name, const json::value& member, S3Server& server) {
  if (name == "bucket") return read_text(name, member, server.bucket);
  if (name == "endpoint") return read_text(name, member, server.endpoint);
  if (name == "region") return read_text(name, member, server.region);
  if (name == "access_key_id") return read_text(name, member, server.access_key_id);
  if (name == "secret_access_key") return read_text(name, member, server.secret_access_key);
  if (name == "session_token") return read_text(name, member, server.session_token);
  if (name == "ca_file") return read_text(name, member, server.ca_file);
  if (name == "key_prefix") return read_text(name, member, server.key_prefix);
  if (name == "connections")
    return read_whole(name, member, 2, kConnectionsMax, server.num_connections);
  if (name == "connect_timeout_ms") return read_milliseconds(name, member, server.connect_timeout);
  if (name == "lookup_timeout_ms") return read_milliseconds(name, member, server.lookup_timeout);
  if (name == "transfer_timeout_ms")
    return read_milliseconds(name, member, server.transfer_timeout);
  return invalid_argument(
      "there is no '{}' of s3: give bucket, endpoint, region, access_key_id, secret_access_key, "
      "session_token, ca_file, key_prefix, connections, connect_timeout_ms, lookup_timeout_ms and "
      "transfer_timeout_ms",
      name);
}

}  // namespace

Status read_storage_config(std::string_view text, bool allows_file, TierSettings& settings) {
  std::string from_file;
  if (text.starts_with('@') && allows_file) {
    std::ifstream file{std::string(text.substr(1))};
    if (!file) return invalid_argument("{} cannot be read", text.substr(1));
    from_file.assign(std::istreambuf_iterator<char>(file), {});
    text = from_file;
  }
  boost::system::error_code failed;
  const json::value value = json::parse(text, failed);
  if (failed || !value.is_object())
    return invalid_argument(
        "no JSON object such as {{\"url\": \"redis://cache:6379\"}} or "
        "{{\"bucket\": \"cache\"}}");
  const json::object& members = value.get_object();
  if (members.contains("bucket")) {
    // A token belongs to its key.
    if (members.contains("access_key_id")) settings.s3.session_token.clear();
    for (const auto& [name, member] : members)
      ESP_RETURN_IF_ERROR(read_member(name, member, settings.s3));
    return {};
  }
  // The URL first, so that members of their own win.
  if (const json::value* url = members.if_contains("url"))
    ESP_RETURN_IF_ERROR(read_member("url", *url, settings.redis));
  for (const auto& [name, member] : members)
    if (name != "url") ESP_RETURN_IF_ERROR(read_member(name, member, settings.redis));
  return {};
}

}  // namespace espalier
