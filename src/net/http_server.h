// HTTP/1.1 over TCP: keep-alive, pipelining, chunked bodies, streamed answers, limits, timeouts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/bound_address.h"
#include "net/http.h"
#include "net/router.h"
#include "net/tls_files.h"

namespace espalier::net {

struct HttpServerConfig {
  std::string host = "127.0.0.1";  // an address or a name
  int port = 0;                    // 0: any free one
  int num_threads = 1;             // each with its own connections
  int max_connections = 4096;      // beyond: 503 and closed
  size_t max_header_bytes = 64ull << 10;
  size_t max_target_bytes = 8ull << 10;
  size_t max_body_bytes = 64ull << 20;
  size_t max_pending_output_bytes = 8ull << 20;        // of a stream, unread by its client
  Duration header_timeout = std::chrono::seconds(30);  // of a whole head, from its first byte on
  Duration idle_timeout = std::chrono::seconds(120);   // between requests, or pieces of a body
  Duration write_timeout = std::chrono::seconds(60);
  std::shared_ptr<const TlsContext> tls;  // of read_tls(); null: plain HTTP
  // Origins whose pages may read answers: "*" is every one, none answers no preflight.
  std::vector<std::string> cors_origins = {"*"};
  // Refuse requests whose Host is neither an address nor localhost: a page whose name was bound to
  // the loopback address cannot speak to the server then.
  bool local_hosts_only = false;
  // Bounds over all connections; null: none. A body beyond it gets 503; a client whose unread
  // answer passes it is dropped.
  std::shared_ptr<MemoryAccount> bodies, outputs;

  // Body of an answer that the server makes itself (404, 405, 408, 413, 414, 431, 500, 503 ...).
  std::function<HttpResponse(int status, std::string_view message)> make_error;
};

struct HttpServerStats {
  int64_t connections_open = 0, connections_total = 0;
  int64_t requests_total = 0;
  int64_t dropped_slow_total = 0;   // clients that did not read
  int64_t socket_writes_total = 0;  // system calls that wrote
};

// Thread-safe.
class HttpServer {
 public:
  // Binds and starts the threads. kFailedPrecondition when the port is taken, kInvalidArgument when
  // the host cannot be bound.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerConfig config, Router router);
  // The same at an address that was bound before; `config` says nothing of it then.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerConfig config, Router router,
                                                   BoundAddress address);
  ~HttpServer();  // stop(0)

  int port() const;
  HttpServerStats stats() const;

  // For connections to come; those that are open keep what they have. REQUIRES that the server was
  // started with TLS.
  void set_tls(std::shared_ptr<const TlsContext> tls);

  // Stops accepting, closes idle connections, waits at most `timeout` for answers in progress (they
  // say Connection: close), then closes what is left and joins the threads. Not from an I/O thread.
  void stop(Duration timeout);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::net
