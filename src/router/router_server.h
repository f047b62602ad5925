// `espalier route` as an object: a server that passes requests on to workers.
//
//   ESP_ASSIGN_OR_RETURN(auto server, RouterServer::start(config));
//   ... server->stop(std::chrono::seconds(30));
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/client_tls.h"
#include "net/tls_files.h"
#include "router/ext_proc.h"
#include "router/health.h"
#include "router/kv_feed.h"
#include "router/policy.h"
#include "router/proxy.h"
#include "router/worker_sources.h"

namespace espalier::router {

struct RouterConfig {
  std::string host = "127.0.0.1";
  int port = 30000;           // 0: any free one
  std::string api_key;        // that clients must send; empty: open
  std::string admin_api_key;  // for /workers and its like; empty: api_key
  std::string api_keys_file;  // keys with names and limits; empty: none
  net::TlsFiles tls;          // --ssl-certfile and its like; no certificate: plain HTTP
  int io_threads = 1;
  int max_connections = 16384;
  size_t max_body_bytes = size_t{64} << 20;
  size_t max_bodies_bytes = size_t{1} << 30;   // of all requests under way
  size_t max_outputs_bytes = size_t{1} << 30;  // of all answers that clients have not read
  PolicyOptions policy;
  WorkerTableOptions workers;
  SourcesConfig sources;
  HealthConfig health;
  net::ClientTlsFiles worker_tls;  // of workers whose urls are https
  KvFeedConfig kv_feed;
  ProxyConfig proxy;
  ExtProcConfig ext_proc;  // its port and fallbacks; the rest is filled in
};

// Thread-safe.
class RouterServer {
 public:
  // kInvalidArgument where a setting is wrong, kFailedPrecondition where the port is taken.
  static Result<std::unique_ptr<RouterServer>> start(RouterConfig config);
  ~RouterServer();

  int port() const;
  int ext_proc_port() const;  // of the endpoint picker; 0: there is none
  Dispatcher& dispatcher();
  // Reads the certificate and the file of keys again; open connections keep their certificate.
  // After an error all is as before.
  Status reload();
  void stop(Duration timeout);  // waits so long for answers under way

 private:
  struct Impl;
  explicit RouterServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::router
