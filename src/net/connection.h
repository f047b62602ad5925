// One client's connection. Internal to the room; includes Asio.
//
// Bytes are always being read, also while an answer is under way: that is how a client that leaves
// is noticed at once. A request that arrives meanwhile (pipelining) waits in the buffer, which
// stops being filled at a bound.
#pragma once

#include <atomic>
#include <boost/system/error_code.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "net/deadline.h"
#include "net/exchange.h"
#include "net/http.h"
#include "net/http_server.h"
#include "net/io_thread.h"
#include "net/output_buffer.h"
#include "net/request_reader.h"
#include "net/transport.h"

namespace espalier::net {

// What the connections of one server share. Immutable but for the counters.
struct ServerShared {
  HttpServerConfig config;
  Router router;

  std::atomic<bool> stopping{false};
  std::atomic<int64_t> connections_total{0}, requests_total{0}, dropped_slow_total{0},
      socket_writes_total{0};

  std::mutex mutex;  // guards connections_open and tls
  std::condition_variable none_open;
  int64_t connections_open = 0;
  std::shared_ptr<const TlsContext> tls;  // of connections to come; null: plain HTTP
};

// Everything but the constructor runs on the connection's I/O thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Transport transport, std::shared_ptr<IoThread> io,
             std::shared_ptr<ServerShared> shared);
  ~Connection();

  void start();
  void begin_shutdown();  // closes when idle, else after the answer in progress
  void close();           // at once
  // Writes what the socket takes; beyond so many bytes others have a turn first.
  static constexpr size_t kTurnBytesMax = 4 << 20;
  void flush(size_t num_bytes_max = kTurnBytesMax);

  // The handle's side. Calls for an exchange that is over do nothing.
  void send(uint64_t exchange, HttpResponse&& response);
  void start_stream(uint64_t exchange, int status, Headers&& headers);
  void write(uint64_t exchange, std::string&& bytes);
  void finish(uint64_t exchange);
  void abandon(uint64_t exchange);
  void on_disconnect(uint64_t exchange, std::function<void()>&& callback);
  // Memory ran out: the request under way is answered 503 where its answer has not begun; else, and
  // where the 503 finds no memory either, the connection is closed. Allocates from the reserve.
  void on_memory_shortage();
  size_t pending_output() const { return output_.num_pending() + transport_.num_unsent(); }

 private:
  enum class State {
    kReading,     // a request, or waiting for one
    kResponding,  // a handler has it
    kLingering,   // all written, our side shut; reading what the client still sends
    kClosed,
  };
  using Answer = Exchange::Answer;

  void read_more();
  void on_readable(boost::system::error_code ec);
  void on_read(boost::system::error_code ec, size_t num_bytes);
  void process();   // as many buffered requests as can be taken now
  void dispatch();  // answers a refused request, hands another one to its handler
  void begin_exchange(RequestTraits traits);
  void route(HttpRequest&& request);
  bool is_current(uint64_t exchange, Answer answer) const;

  void append_head(int status, const Headers& headers, std::optional<size_t> content_length);
  void answer_done();
  void flush_soon();
  void wait_writable();
  void linger();
  void drop(std::string_view why);

  void await_request();  // sets the deadline of what is read
  void on_deadline();

  const std::shared_ptr<IoThread> io_;  // first: it owns the context of transport and deadline
  Transport transport_;
  const std::shared_ptr<ServerShared> shared_;
  std::string peer_;

  State state_ = State::kReading;
  RequestReader reader_;
  bool reading_ = false;  // a read is outstanding
  bool eof_ = false;
  bool processing_ = false;

  Exchange exchange_;    // the one under way
  OutputBuffer output_;  // answers that the socket has not taken
  bool flush_wanted_ = false;
  bool waiting_writable_ = false;
  Deadline deadline_;
  TimePoint handshake_deadline_{};  // of TLS, from accepting on
};

// Runs a step of connection `c`; an allocation that fails in it ends the request under way alone.
template <typename F>
void run_step(Connection& c, F&& step) {
  try {
    step();
  } catch (const std::bad_alloc&) {
    c.on_memory_shortage();
  }
}

}  // namespace espalier::net
