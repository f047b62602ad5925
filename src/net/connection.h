// One client's connection. Internal to the room; includes Asio.
//
// Bytes are always being read, also while an answer is under way: that is how a client that leaves
// is noticed at once. A request that arrives meanwhile (pipelining) waits in the buffer, which
// stops being filled at a bound.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "net/http.h"
#include "net/http_server.h"
#include "net/io_thread.h"
#include "net/request_reader.h"

namespace espalier::net {

// What the connections of one server share. Immutable but for the counters.
struct ServerShared {
  HttpServerConfig config;
  Router router;

  std::atomic<bool> stopping{false};
  std::atomic<int64_t> connections_total{0}, requests_total{0}, dropped_slow_total{0},
      socket_writes_total{0};

  std::mutex mutex;  // guards connections_open
  std::condition_variable none_open;
  int64_t connections_open = 0;
};

// How an exchange stands; shared with the handle, which reads it from any thread.
enum class Outcome : int { kOpen, kAnswered, kGone };
using SharedOutcome = std::shared_ptr<std::atomic<Outcome>>;

// Everything but the constructor runs on the connection's I/O thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, std::shared_ptr<IoThread> io,
             std::shared_ptr<ServerShared> shared);
  ~Connection();

  void start();
  void begin_shutdown();  // closes when idle, else after the answer in progress
  void close();           // at once
  void flush();

  // The handle's side. Calls for an exchange that is over do nothing.
  void send(uint64_t exchange, HttpResponse&& response);
  void start_stream(uint64_t exchange, int status, Headers&& headers);
  void write(uint64_t exchange, std::string&& bytes);
  void finish(uint64_t exchange);
  void abandon(uint64_t exchange);
  void on_disconnect(uint64_t exchange, std::function<void()>&& callback);
  size_t pending_output() const { return out_.size() - out_begin_; }

 private:
  enum class State {
    kReading,     // a request, or waiting for one
    kResponding,  // a handler has it
    kLingering,   // all written, our side shut; reading what the client still sends
    kClosed,
  };
  enum class Answer { kNone, kStreaming, kDone };

  void read_more();
  void on_readable(boost::system::error_code ec);
  void on_read(boost::system::error_code ec, size_t num_bytes);
  void process();   // as many buffered requests as can be taken now
  void dispatch();  // answers a refused request, hands another one to its handler
  void begin_exchange(RequestTraits traits);
  void route(HttpRequest&& request);

  void append_head(int status, const Headers& headers, bool chunked, size_t content_length);
  void answer_done();
  bool charge_output();
  void flush_soon();
  void wait_writable();
  void linger();
  void drop(std::string_view why);

  void set_deadline(Duration from_now);
  void await_request();  // sets the deadline of what is read
  void clear_deadline() { deadline_ = TimePoint::max(); }
  void arm_timer();
  void on_deadline();

  const std::shared_ptr<IoThread> io_;  // first: it holds the context of the socket and the timer
  boost::asio::ip::tcp::socket socket_;
  const std::shared_ptr<ServerShared> shared_;
  std::string peer_;

  State state_ = State::kReading;
  RequestReader reader_;
  bool reading_ = false;  // a read is outstanding
  bool eof_ = false;
  bool processing_ = false;

  // The exchange under way.
  uint64_t exchange_ = 0;  // counts up; 0: none yet
  Answer answer_ = Answer::kDone;
  bool keep_alive_ = true;
  RequestTraits traits_;
  bool chunked_ = false;
  SharedOutcome outcome_;
  std::function<void()> disconnect_;

  std::string out_;
  size_t out_begin_ = 0;         // bytes of out_ that are written
  size_t last_write_bytes_ = 0;  // of the stream
  MemoryCharge output_charge_;
  bool flush_wanted_ = false;
  bool waiting_writable_ = false;

  boost::asio::steady_timer timer_;
  bool timer_armed_ = false;
  TimePoint timer_at_ = TimePoint::max();
  TimePoint deadline_ = TimePoint::max();
};

}  // namespace espalier::net
