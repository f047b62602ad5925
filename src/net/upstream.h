// The other side of a proxy: HTTP/1.1 calls to servers behind this one, without waiting, on the
// I/O thread of the client's exchange, so that no byte changes threads on its way.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/http.h"

namespace espalier::net {

class IoThread;
class TlsContext;

// Where a server listens: a numeric address, so that connecting never waits for a name.
struct Endpoint {
  std::string address;  // "10.0.0.1", "::1"
  int port = 0;
  std::string tls_host;  // of https: the name or address of its certificate; empty: plain HTTP
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// The addresses of a host's name, without duplicates, in order; a numeric address is its own.
// Blocks. kUnavailable where the name has none.
Result<std::vector<std::string>> resolve_host(const std::string& host);

// The I/O thread of the connection that an answer goes to; null where it goes to none.
std::shared_ptr<IoThread> io_thread_of(const ResponseWriter& response);
// Runs a task on an I/O thread, after what was posted there before. Thread-safe.
void post_on(const std::shared_ptr<IoThread>& io, std::function<void()> task);

struct UpstreamConfig {
  Duration connect_timeout = std::chrono::seconds(5);
  Duration head_timeout = std::chrono::minutes(30);  // until an answer begins
  Duration idle_timeout = std::chrono::minutes(5);   // between two parts of an answer
  Duration keep_alive = std::chrono::seconds(20);    // of a connection without a call
  size_t max_idle_per_endpoint = 256;                // connections, on each I/O thread
  std::shared_ptr<const TlsContext> tls;  // REQUIRED for endpoints of https (read_client_tls)
};

struct UpstreamRequest {
  std::string method, target;               // "POST", "/v1/completions?x=1"
  Headers headers;                          // Content-Length and Connection are added
  std::shared_ptr<const std::string> body;  // shared: another attempt may send it again; or null
};

// What comes back; called on the call's I/O thread, in this order: on_head, any number of on_body,
// then on_end; on_failure ends it at any time instead. Nothing comes after the end, after
// on_failure or after cancel().
class UpstreamHandler {
 public:
  virtual ~UpstreamHandler() = default;
  // `length`: of the body, where it is known before.
  virtual void on_head(int status, Headers headers, std::optional<size_t> length) = 0;
  virtual void on_body(std::string bytes) = 0;
  virtual void on_end() = 0;
  // kUnavailable: no connection, or it broke; kDeadlineExceeded: a timeout; kDataLoss: the answer
  // is not HTTP.
  virtual void on_failure(Status why) = 0;
};

// A call under way. Belongs to its I/O thread.
class UpstreamCall {
 public:
  virtual ~UpstreamCall() = default;
  virtual void cancel() = 0;  // closes the connection; the server notices that its client left
  virtual void pause() = 0;   // reads no more until resume()
  virtual void resume() = 0;
};

// Connections to many servers, kept alive and used again by calls of the same I/O thread.
// Thread-safe. Its idle connections are closed when it is destroyed, which is after the calls.
class Upstream {
 public:
  explicit Upstream(UpstreamConfig config);
  ~Upstream();
  Upstream(const Upstream&) = delete;
  Upstream& operator=(const Upstream&) = delete;

  // On the I/O thread `io` alone, where the handler is called, never from within this call. A
  // connection that the server has closed meanwhile is replaced, unseen. The call keeps the
  // handler.
  std::shared_ptr<UpstreamCall> call(const std::shared_ptr<IoThread>& io, const Endpoint& endpoint,
                                     UpstreamRequest request,
                                     std::shared_ptr<UpstreamHandler> handler);

  int64_t num_connects_total() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared: calls give their connections back
};

// An I/O thread without connections of clients: for health checks. Thread-safe.
class BackgroundIo {
 public:
  explicit BackgroundIo(std::string name);
  ~BackgroundIo();  // tasks and calls that are not done are dropped

  const std::shared_ptr<IoThread>& io() const { return io_; }
  void post(std::function<void()> task);
  void post_after(Duration delay, std::function<void()> task);

 private:
  std::shared_ptr<IoThread> io_;
};

}  // namespace espalier::net
