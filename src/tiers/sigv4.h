// Signature Version 4 of AWS, by which requests to S3 and stores like it prove whose they are
// (https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html).
//
// Stateless; thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier {

struct SigV4Key {
  std::string access_key_id, secret_access_key;
  std::string region, service;  // "us-east-1", "s3"
};

struct SigV4Request {
  std::string_view method;
  std::string_view path;   // as it is sent: percent-encoded, from '/' on
  std::string_view query;  // "NAME=VALUE&...", encoded and sorted by name; "": none
  // That are signed, with names in lower case: host and those that begin with x-amz-, at least.
  std::vector<std::pair<std::string, std::string>> headers;
  // hex_sha256() of the body, or "UNSIGNED-PAYLOAD". The header x-amz-content-sha256 has the same.
  std::string_view body_hash;
};

// The value of the header Authorization. `time`: that of the header x-amz-date (sigv4_time).
std::string sigv4_authorization(const SigV4Key& key, SigV4Request request, std::string_view time);

std::string sigv4_time(std::chrono::system_clock::time_point time);  // "20130524T000000Z"
std::string hex_sha256(std::string_view bytes);                      // in lower case
// Every byte but A-Z, a-z, 0-9, '-', '.', '_' and '~' (and '/', unless it is encoded too) as %XX.
std::string uri_encode(std::string_view text, bool encodes_slash);

}  // namespace espalier
