#include "tiers/s3_server.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include "net/client.h"

namespace espalier {
namespace {

std::string first_set(std::initializer_list<const char*> variables) {
  for (const char* const name : variables)
    if (const char* const value = std::getenv(name); value != nullptr && *value != '\0')
      return value;
  return "";
}

bool has_only(std::string_view text, std::string_view punctuation) {
  return std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           punctuation.find(c) != std::string_view::npos;
  });
}

// Values go into the head of a request.
bool is_one_line(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

}  // namespace

Result<S3Server> S3Server::resolved() const {
  S3Server server = *this;
  if (bucket.size() < 3 || bucket.size() > 63 || !has_only(bucket, ".-_"))
    return fail(invalid_argument(
        "the bucket is '{}': give the name of an S3 bucket (\"bucket\"), 3 to 63 letters, digits, "
        "'-' or '.'",
        bucket));
  if (!has_only(key_prefix, "/._-") || key_prefix.starts_with('/') || key_prefix.size() > 512)
    return fail(invalid_argument(
        "key_prefix is '{}', but must be letters, digits, '/', '.', '_' or '-', and begin with no "
        "'/'",
        key_prefix));
  if (access_key_id.empty() && secret_access_key.empty()) {
    server.access_key_id = first_set({"AWS_ACCESS_KEY_ID"});
    server.secret_access_key = first_set({"AWS_SECRET_ACCESS_KEY"});
    server.session_token = first_set({"AWS_SESSION_TOKEN"});
  }
  if (server.access_key_id.empty() || server.secret_access_key.empty())
    return fail(invalid_argument(
        "there is no key for bucket {}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
        "environment, or give access_key_id and secret_access_key",
        bucket));
  if (server.region.empty()) server.region = first_set({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (server.region.empty()) server.region = "us-east-1";
  if (!is_one_line(server.access_key_id) || !is_one_line(server.session_token) ||
      !has_only(server.region, "-_"))
    return fail(invalid_argument(
        "access_key_id, session_token or region has blanks or other characters that it cannot "
        "have"));
  if (server.endpoint.empty())
    server.endpoint = first_set({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (server.endpoint.empty())
    server.endpoint = fmt::format("https://s3.{}.amazonaws.com", server.region);
  const auto url = net::Url::parse(server.endpoint);
  if (!url || !url->path.empty() || server.endpoint.find("://") == std::string::npos ||
      server.endpoint.find('@') != std::string::npos)
    return fail(invalid_argument(
        "the endpoint of S3 is no URL of a server: give https://HOST:PORT (or http), without a "
        "path and a user"));
  return server;
}

std::string S3Server::shown_url() const {
  if (bucket.empty()) return "";
  return fmt::format("s3://{}/{}{}", bucket, key_prefix, endpoint.empty() ? "" : " at " + endpoint);
}

}  // namespace espalier
