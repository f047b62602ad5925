// A server of gRPC over HTTP/2: calls with messages both ways, for protocols that proxies speak
// with the services beside them. libnghttp2 is loaded when the first server starts; a build without
// its header has none (grpc_server_none.cc). Messages are bytes here, and never compressed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "net/bound_address.h"
#include "net/tls_files.h"

namespace espalier::net {

enum class GrpcStatus : int {
  kOk = 0,
  kNotFound = 5,
  kResourceExhausted = 8,
  kUnimplemented = 12,
  kInternal = 13
};

// One call, as its handler sees it. Belongs to the call's I/O thread.
class GrpcCall {
 public:
  virtual ~GrpcCall() = default;
  // Queued until the client takes it. Nothing is sent after finish(). A call whose client leaves
  // more than GrpcServerConfig::max_pending_bytes unread is ended.
  virtual void send(std::string_view message) = 0;
  // The answer ends, and the handler gets no more messages. It is destroyed when the client has
  // ended its side too.
  virtual void finish(GrpcStatus status, std::string_view message) = 0;
};

// What answers one call, on its I/O thread. Destroyed when the call is over: it has finished, the
// client has reset it, or the connection has broken.
class GrpcHandler {
 public:
  virtual ~GrpcHandler() = default;
  virtual void on_message(GrpcCall& call, std::string_view message) = 0;
  virtual void on_end(GrpcCall& call) = 0;  // the client sends no more messages
};

struct GrpcServerConfig {
  int num_threads = 1;
  int max_connections = 1024;  // beyond, they are closed
  uint32_t max_calls = 4096;   // at once, of one connection; clients keep to it
  Duration greeting_timeout = std::chrono::seconds(10);  // of the TLS handshake and SETTINGS
  size_t max_message_bytes = 64 << 20;    // beyond, the call ends with kResourceExhausted
  size_t max_pending_bytes = 64 << 20;    // of one call's answer, unread
  std::shared_ptr<const TlsContext> tls;  // of read_tls() for kHttp2; null: plain TCP
  // By path, "/package.Service/Method". Called on I/O threads.
  std::map<std::string, std::function<std::unique_ptr<GrpcHandler>()>, std::less<>> methods;
};

// Thread-safe.
class GrpcServer {
 public:
  // kUnavailable: there is no HTTP/2 here; says what to install.
  static Result<std::unique_ptr<GrpcServer>> start(GrpcServerConfig config, BoundAddress address);
  ~GrpcServer();  // stop(0)

  int port() const;
  void set_tls(std::shared_ptr<const TlsContext> tls);  // of connections to come
  // Takes no new connections and calls (GOAWAY); those under way go on.
  void begin_stop();
  // begin_stop(), waits at most `timeout` for calls under way, then closes every connection and
  // joins the threads. Not from an I/O thread.
  void stop(Duration timeout);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::net
