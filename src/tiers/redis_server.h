// Which Redis or Valkey server keeps pages, and how it is spoken to. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "net/client_tls.h"

namespace espalier {

struct RedisServer {
  std::string host = "127.0.0.1";
  int port = 6379;
  bool is_tls = false;
  net::ClientTlsFiles tls_files;  // each may be empty
  std::string user, password;     // empty: the default user, no password
  int database = 0;
  std::string key_prefix = "espalier:kv:";
  int64_t ttl_seconds = 0;      // after which an unused page is gone; 0: the server decides
  int32_t num_connections = 2;  // that move pages; one more looks up
  Duration connect_timeout = std::chrono::milliseconds(500);
  Duration lookup_timeout = std::chrono::milliseconds(50);
  Duration transfer_timeout = std::chrono::seconds(1);  // of at most 16 MiB, or one page

  // "redis://USER:PASSWORD@HOST:PORT/DATABASE", or rediss for TLS; all but the host may be left
  // out. Sets what the URL has. kInvalidArgument without the password.
  Status set_url(std::string_view url);
  std::string shown_url() const;  // without user and password
};

}  // namespace espalier
