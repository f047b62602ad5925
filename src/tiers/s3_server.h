// Which store of S3's objects keeps pages, and how it is spoken to. Plain data.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "net/client_tls.h"

namespace espalier {

struct S3Server {
  std::string endpoint;  // "https://HOST:PORT", or http; empty: AWS's of the region
  std::string bucket;    // objects are https://HOST:PORT/BUCKET/KEY
  std::string region;    // empty: from the environment, or us-east-1
  // Empty: from the environment.
  std::string access_key_id, secret_access_key, session_token;
  std::string ca_file;  // PEM; empty: the system's
  std::string key_prefix = "espalier/kv/";
  int32_t num_connections = 16;  // that move pages; half as many look up
  Duration connect_timeout = std::chrono::seconds(2);
  Duration lookup_timeout = std::chrono::seconds(1);
  Duration transfer_timeout = std::chrono::seconds(10);  // of at most 16 MiB, or one page

  // With what is empty taken from the variables of the environment that AWS's programs read:
  // AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN (together, so that no half of a
  // key is mixed with another), AWS_REGION, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 and
  // AWS_ENDPOINT_URL. kInvalidArgument states what is missing or wrong.
  Result<S3Server> resolved() const;
  std::string shown_url() const;  // "s3://BUCKET/PREFIX at ENDPOINT"; "" without a bucket
};

}  // namespace espalier
