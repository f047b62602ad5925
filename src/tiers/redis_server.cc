#include "tiers/redis_server.h"

#include <charconv>

namespace espalier {
namespace {

Status bad_url(std::string_view what) {
  return invalid_argument(
      "the URL of the Redis server has {}: give redis://USER:PASSWORD@HOST:PORT/DATABASE "
      "(rediss:// for TLS)",
      what);
}

bool parse_number(std::string_view text, int most, int& number) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && number >= 0 &&
         number <= most;
}

}  // namespace

Status RedisServer::set_url(std::string_view url) {
  if (url.starts_with("rediss://")) {
    is_tls = true;
    url.remove_prefix(9);
  } else if (url.starts_with("redis://")) {
    is_tls = false;
    url.remove_prefix(8);
  } else {
    return bad_url("another scheme");
  }
  if (const size_t at = url.rfind('@'); at != std::string_view::npos) {
    const std::string_view login = url.substr(0, at);
    const size_t colon = login.find(':');
    if (colon == std::string_view::npos) return bad_url("a user without a password");
    user = login.substr(0, colon);
    password = login.substr(colon + 1);
    url.remove_prefix(at + 1);
  }
  if (const size_t slash = url.find('/'); slash != std::string_view::npos) {
    const std::string_view number = url.substr(slash + 1);
    if (!number.empty() && !parse_number(number, 1 << 20, database))
      return bad_url("a database that is no number");
    url = url.substr(0, slash);
  }
  std::string_view name = url, port_text;
  if (url.starts_with('[')) {  // [::1]:6379
    const size_t end = url.find(']');
    if (end == std::string_view::npos) return bad_url("a bad host");
    name = url.substr(1, end - 1);
    port_text = url.substr(end + 1);
  } else if (const size_t colon = url.rfind(':'); colon != std::string_view::npos) {
    name = url.substr(0, colon);
    port_text = url.substr(colon);
  }
  if (name.empty()) return bad_url("no host");
  host = name;
  if (port_text.empty()) return {};
  if (!port_text.starts_with(':') || !parse_number(port_text.substr(1), 65535, port) || port == 0)
    return bad_url("a bad port");
  return {};
}

std::string RedisServer::shown_url() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}/{}", is_tls ? "rediss" : "redis", is_ipv6 ? "[" : "", host,
                     is_ipv6 ? "]" : "", port, database);
}

}  // namespace espalier
