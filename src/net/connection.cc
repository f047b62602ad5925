#include "net/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <exception>
#include <limits>
#include <new>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "net/upstream.h"

namespace espalier::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytesMin = 4096;           // of an idle connection's buffer
constexpr size_t kReadBytesMax = 64 << 10;       // while a body comes in
constexpr size_t kPipelinedBytesMax = 64 << 10;  // read ahead while an answer is under way
constexpr size_t kPipelinedOutputMax = 1 << 20;  // unread answers before the next request waits
constexpr Duration kLingerStopping = std::chrono::milliseconds(100);
constexpr Duration kLinger = std::chrono::seconds(1);  // for a client to take our last answer

constexpr std::string_view kPlainHttpRefusal =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 40\r\n"
    "Connection: close\r\n\r\nthis port takes HTTPS; use an https URL\n";

// The handle that a handler holds.
class Writer final : public ResponseWriter {
 public:
  Writer(std::shared_ptr<IoThread> io, std::weak_ptr<Connection> connection, uint64_t exchange,
         SharedOutcome outcome)
      : io_(std::move(io)),
        connection_(std::move(connection)),
        exchange_(exchange),
        outcome_(std::move(outcome)) {}

  ~Writer() override {
    if (closed()) return;
    const MemoryReserveScope reserve;
    try {
      // Posted, also on the I/O thread: an answer that another thread has posted comes first.
      io_->post([connection = connection_, exchange = exchange_] {
        with_open(connection, [&](Connection& c) { c.abandon(exchange); });
      });
    } catch (const std::bad_alloc&) {  // the connection ends with its client, or when serving ends
    }
  }

  void send(HttpResponse response) override {
    with_connection([response = std::move(response)](Connection& c, uint64_t exchange) mutable {
      c.send(exchange, std::move(response));
    });
  }
  void start_stream(int status, Headers headers) override {
    with_connection([status, headers = std::move(headers)](Connection& c, uint64_t id) mutable {
      c.start_stream(id, status, std::move(headers));
    });
  }
  void write(std::string bytes) override {
    with_connection([bytes = std::move(bytes)](Connection& c, uint64_t exchange) mutable {
      c.write(exchange, std::move(bytes));
    });
  }
  size_t pending_output() const override {
    const auto c = connection_.lock();
    return c ? c->pending_output() : 0;
  }
  void finish() override {
    with_connection([](Connection& c, uint64_t exchange) { c.finish(exchange); });
  }
  void on_disconnect(std::function<void()> callback) override {
    io_->run([connection = connection_, exchange = exchange_, outcome = outcome_,
              callback = std::move(callback)]() mutable {
      if (outcome->load() == Outcome::kGone) {
        if (callback) callback();
      } else {
        with_open(connection,
                  [&](Connection& c) { c.on_disconnect(exchange, std::move(callback)); });
      }
    });
  }
  void post(std::function<void()> task) override { io_->post(guarded(std::move(task))); }
  void post_after(Duration delay, std::function<void()> task) override {
    io_->post_after(delay, guarded(std::move(task)));
  }
  bool closed() const override { return outcome_->load() != Outcome::kOpen; }
  const std::shared_ptr<IoThread>& io() const { return io_; }

 private:
  // On the I/O thread itself without a task, whose memory would be an allocation for each write.
  template <typename F>
  void with_connection(F&& f) {
    if (io_->in_thread()) return with_open(connection_, [&](Connection& c) { f(c, exchange_); });
    io_->post([connection = connection_, exchange = exchange_, f = std::forward<F>(f)]() mutable {
      with_open(connection, [&](Connection& c) { f(c, exchange); });
    });
  }

  template <typename F>
  static void with_open(const std::weak_ptr<Connection>& connection, F&& f) {
    if (const auto c = connection.lock()) run_step(*c, [&] { f(*c); });
  }

  // A task of the handler's, whose want of memory ends this exchange and no other.
  std::function<void()> guarded(std::function<void()> task) const {
    return [connection = connection_, outcome = outcome_, task = std::move(task)] {
      try {
        task();
      } catch (const std::bad_alloc&) {
        const auto c = connection.lock();
        if (c != nullptr && outcome->load() == Outcome::kOpen) c->on_memory_shortage();
      }
    };
  }

  const std::shared_ptr<IoThread> io_;
  const std::weak_ptr<Connection> connection_;
  const uint64_t exchange_;
  const SharedOutcome outcome_;
};

// A flag that is true while the object lives.
class Raised {
 public:
  explicit Raised(bool& flag) : flag_(flag) { flag_ = true; }
  ~Raised() { flag_ = false; }
  Raised(const Raised&) = delete;
  Raised& operator=(const Raised&) = delete;

 private:
  bool& flag_;
};

// The client has gone: there is nothing left to answer where memory ends in the callback.
void call_at_disconnect(const std::function<void()>& callback) {
  const MemoryReserveScope reserve;
  try {
    callback();
  } catch (const std::bad_alloc&) {
    log_error("a request whose client has gone goes on: no memory to abort it");
  }
}

// `allow`: the methods of the path; "" where there is no such path.
HttpResponse options_response(const HttpRequest& request, const RequestTraits& traits,
                              const std::string& allow) {
  HttpResponse response{
      204, {{"Allow", allow.empty() ? "GET, HEAD, POST, PUT, OPTIONS" : allow}}, {}};
  if (traits.origin.empty()) return response;
  response.headers.emplace_back("Access-Control-Allow-Methods", "*");
  const std::string* wanted = request.header("Access-Control-Request-Headers");
  response.headers.emplace_back("Access-Control-Allow-Headers", wanted ? *wanted : "*");
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace

// Not a method of ResponseWriter: few handlers call other servers, and some answers go to no
// connection.
std::shared_ptr<IoThread> io_thread_of(const ResponseWriter& response) {
  const auto* const writer = dynamic_cast<const Writer*>(&response);
  return writer == nullptr ? nullptr : writer->io();
}

Connection::Connection(Transport transport, std::shared_ptr<IoThread> io,
                       std::shared_ptr<ServerShared> shared)
    : io_(std::move(io)),
      transport_(std::move(transport)),
      shared_(std::move(shared)),
      reader_(shared_->config, shared_->router),
      output_(shared_->config.outputs),
      deadline_(transport_.socket().get_executor()) {}

Connection::~Connection() = default;

void Connection::start() {
  io_->add(shared_from_this());
  error_code ec;
  tcp::socket& socket = transport_.socket();
  socket.non_blocking(true, ec);
  socket.set_option(tcp::no_delay(true), ec);
  const auto remote = socket.remote_endpoint(ec);
  if (!ec) peer_ = fmt::format("{}:{}", remote.address().to_string(), remote.port());
  reader_.set_peer(peer_);
  deadline_.start(weak_from_this(), [this] { run_step(*this, [this] { on_deadline(); }); });
  if (shared_->stopping) return close();
  handshake_deadline_ = std::chrono::steady_clock::now() + shared_->config.header_timeout;
  await_request();
  read_more();
}

// Reading.

void Connection::read_more() {
  if (reading_ || eof_ || state_ == State::kClosed) return;
  if (state_ == State::kResponding && reader_.num_buffered() >= kPipelinedBytesMax) return;
  // A read under way would hold on to a part of the buffer, which moves when a pipelined request is
  // taken from it meanwhile: so it is touched only once bytes are there.
  reading_ = true;
  auto next = [self = shared_from_this()](error_code ec) {
    run_step(*self, [&] { self->on_readable(ec); });
  };
  tcp::socket& socket = transport_.socket();
  if (!transport_.has_input()) return socket.async_wait(tcp::socket::wait_read, std::move(next));
  asio::post(socket.get_executor(), [next = std::move(next)] { next({}); });
}

void Connection::on_readable(error_code ec) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  reader_.shrink_input();
  const bool in_body = state_ == State::kReading && reader_.in_body();
  const size_t want = in_body || state_ == State::kLingering ? kReadBytesMax : kReadBytesMin;
  size_t num_bytes = 0;
  if (!ec) num_bytes = transport_.read(reader_.prepare(want), want, ec);
  if (transport_.take_plain_http()) {
    output_.tail() += kPlainHttpRefusal;
    exchange_.close_after();
    state_ = State::kResponding;
    return flush();
  }
  if (transport_.num_unsent() > kPipelinedOutputMax) return drop("its client does not read");
  if (ec == asio::error::would_block || ec == asio::error::try_again) {
    if (transport_.num_unsent() > 0) flush();  // the handshake's
    return read_more();
  }
  on_read(ec, num_bytes);
}

void Connection::on_read(error_code ec, size_t num_bytes) {
  if (ec) {
    eof_ = true;
    // A whole answer that is still being written may yet be taken by a client that only shut its
    // sending side; anything else is over.
    const bool answered = state_ == State::kResponding && exchange_.answer() == Answer::kDone;
    if (ec == asio::error::eof && (answered || pending_output() > 0) &&
        exchange_.answer() == Answer::kDone && state_ != State::kLingering) {
      exchange_.close_after();
      return;
    }
    return close();
  }
  reader_.commit(num_bytes);
  if (state_ == State::kLingering) {
    reader_.clear_input();
  } else if (state_ == State::kReading) {
    process();
  }
  read_more();
}

void Connection::process() {
  if (processing_) return;
  {
    const Raised processing(processing_);
    while (state_ == State::kReading && pending_output() <= kPipelinedOutputMax) {
      const RequestReader::Progress progress = reader_.read();
      if (progress == RequestReader::Progress::kContinue)
        output_.tail() += "HTTP/1.1 100 Continue\r\n\r\n";
      if (progress != RequestReader::Progress::kComplete &&
          progress != RequestReader::Progress::kRefused)
        break;
      dispatch();
    }
  }
  flush();
}

void Connection::dispatch() {
  deadline_.clear();
  RequestReader::Taken taken = reader_.take();
  begin_exchange(std::move(taken.traits));
  if (taken.refusal) return send(exchange_.id(), std::move(*taken.refusal));
  route(std::move(taken.request));
}

void Connection::begin_exchange(RequestTraits traits) {
  ++shared_->requests_total;
  state_ = State::kResponding;
  const bool keep_alive = traits.keep_alive && !shared_->stopping && !eof_;
  exchange_.begin(std::move(traits), keep_alive);
}

void Connection::route(HttpRequest&& request) {
  Router::Match match = shared_->router.find(request.method, request.path);
  const uint64_t exchange = exchange_.id();
  std::string allow;
  for (const std::string& method : match.allowed) allow += method + ", ";
  if (!allow.empty()) allow += "OPTIONS";
  if (match.handler == nullptr && request.method == "OPTIONS")
    return send(exchange, options_response(request, exchange_.traits(), allow));
  if (match.handler == nullptr) {
    const bool known = !match.allowed.empty();
    HttpResponse response =
        make_error(shared_->config, known ? 405 : 404,
                   known ? fmt::format("{} takes {}, not {}", request.path, allow, request.method)
                         : fmt::format("there is no {} here", request.path));
    if (known) response.headers.emplace_back("Allow", allow);
    return send(exchange, std::move(response));
  }
  request.params = std::move(match.params);
  auto writer = std::make_shared<Writer>(io_, weak_from_this(), exchange, exchange_.outcome());
  try {
    (*match.handler)(std::move(request), std::move(writer));
  } catch (const std::bad_alloc&) {
    on_memory_shortage();
  } catch (const std::exception& e) {  // a third party's: this request fails alone
    log_error("handler threw path={} what={}", request.path, e.what());
    send(exchange, make_error(shared_->config, 500, "internal error"));
  }
}

// Answering.

// Whether a call for `exchange` means the one under way, with its answer in that state.
bool Connection::is_current(uint64_t exchange, Answer answer) const {
  return exchange == exchange_.id() && exchange_.answer() == answer && state_ == State::kResponding;
}

void Connection::append_head(int status, const Headers& headers,
                             std::optional<size_t> content_length) {
  if (shared_->stopping) exchange_.close_after();
  exchange_.append_head(output_.tail(), status, headers, content_length, io_->http_date());
}

void Connection::send(uint64_t exchange, HttpResponse&& response) {
  if (!is_current(exchange, Answer::kNone)) return;
  if (!output_.reserve(response.body.size())) {
    response = make_error(
        shared_->config, 503,
        "the answers of all requests take what memory there is for them: try again later");
    response.headers.emplace_back("Retry-After", "1");
  }
  const size_t before = output_.tail().size();
  try {
    append_head(response.status, response.headers, response.body.size());
    if (!exchange_.traits().is_head && response.status != 204) output_.tail() += response.body;
  } catch (const std::bad_alloc&) {
    output_.tail().resize(before);  // a part of an answer would garble the 503 behind it
    throw;
  }
  answer_done();
}

void Connection::on_memory_shortage() {
  const MemoryReserveScope reserve;
  if (state_ == State::kClosed) return;
  try {
    if (state_ == State::kReading && reader_.begun()) {  // the request found no room
      begin_exchange(reader_.take().traits);
      exchange_.close_after();
    }
    if (is_current(exchange_.id(), Answer::kNone)) {
      HttpResponse response =
          make_error(shared_->config, 503, "there is no memory for this request: try again later");
      response.headers.emplace_back("Retry-After", "1");
      return send(exchange_.id(), std::move(response));
    }
  } catch (const std::bad_alloc&) {  // the connection goes, and gives back what it holds
  }
  close();
}

void Connection::start_stream(uint64_t exchange, int status, Headers&& headers) {
  if (!is_current(exchange, Answer::kNone)) return;
  exchange_.start_stream();
  append_head(status, headers, std::nullopt);
  output_.start_stream();
  flush_soon();
}

void Connection::write(uint64_t exchange, std::string&& bytes) {
  if (exchange != exchange_.id() || exchange_.answer() != Answer::kStreaming || bytes.empty() ||
      exchange_.traits().is_head)
    return;
  // A stream's client has not been able to read what comes now, of whatever size.
  const size_t bound = shared_->config.max_pending_output_bytes;
  if (output_.exceeds(bound, transport_.num_unsent())) flush(std::numeric_limits<size_t>::max());
  if (state_ == State::kClosed) return;
  if (output_.exceeds(bound, transport_.num_unsent())) {
    ++shared_->dropped_slow_total;
    return drop("its client does not read");
  }
  if (!output_.append_to_stream(bytes, exchange_.is_chunked())) {
    ++shared_->dropped_slow_total;
    return drop("its client does not read, and unread answers take what memory there is for them");
  }
  flush_soon();
}

void Connection::finish(uint64_t exchange) {
  if (exchange != exchange_.id() || exchange_.answer() != Answer::kStreaming) return;
  if (exchange_.is_chunked() && !exchange_.traits().is_head) output_.tail() += "0\r\n\r\n";
  answer_done();
}

void Connection::abandon(uint64_t exchange) {
  if (is_current(exchange, Answer::kStreaming)) return drop("its answer was abandoned");
  if (!is_current(exchange, Answer::kNone)) return;
  send(exchange, make_error(shared_->config, 500, "internal error: the request was not answered"));
}

void Connection::on_disconnect(uint64_t exchange, std::function<void()>&& callback) {
  if (is_current(exchange, Answer::kNone) || is_current(exchange, Answer::kStreaming))
    exchange_.set_disconnect(std::move(callback));
}

void Connection::answer_done() {
  const auto callback = exchange_.finish();  // destroyed at the end of this call
  if (exchange_.keeps_alive()) {
    state_ = State::kReading;
    deadline_.set(shared_->config.idle_timeout);
  }
  if (processing_) return;  // process() goes on and flushes
  flush_soon();
}

// Writing.

void Connection::flush_soon() {
  if (flush_wanted_ || waiting_writable_) return;
  flush_wanted_ = true;
  io_->flush_later(shared_from_this());
}

void Connection::flush(size_t num_bytes_max) {
  flush_wanted_ = false;
  if (waiting_writable_ || state_ == State::kClosed) return;
  size_t num_written = 0;
  while (pending_output() > 0) {
    if (num_written > num_bytes_max) return flush_soon();
    error_code ec;
    const size_t num_bytes = transport_.write(output_.pending(), ec);
    num_written += num_bytes;
    output_.consume(num_bytes);
    ++shared_->socket_writes_total;
    if (ec == asio::error::would_block || ec == asio::error::try_again) return wait_writable();
    if (ec) return close();
  }
  output_.shrink();
  if (state_ == State::kResponding) {
    if (exchange_.answer() == Answer::kDone) return transport_.end_stream() ? flush() : linger();
    deadline_.clear();
  } else if (state_ == State::kReading && !processing_) {
    if (eof_) return close();
    await_request();
    if (reader_.num_buffered() > 0 && !reader_.begun()) process();
    read_more();
  }
}

void Connection::wait_writable() {
  waiting_writable_ = true;
  deadline_.set(shared_->config.write_timeout);
  transport_.socket().async_wait(tcp::socket::wait_write,
                                 [self = shared_from_this()](error_code ec) {
                                   self->waiting_writable_ = false;
                                   if (!ec) run_step(*self, [&] { self->flush(); });
                                 });
}

// Shuts our side and waits a little for the client's end: closing at once, with bytes of its still
// unread, would reset the connection and lose the answer.
void Connection::linger() {
  if (eof_) return close();
  state_ = State::kLingering;
  error_code ec;
  transport_.socket().shutdown(tcp::socket::shutdown_send, ec);
  if (ec) return close();
  deadline_.set(shared_->stopping ? kLingerStopping : kLinger);
  reader_.clear_input();
  read_more();
}

void Connection::drop(std::string_view why) {
  log_debug("connection dropped peer={} why=\"{}\"", peer_, why);
  close();
}

void Connection::begin_shutdown() {
  exchange_.close_after();
  if (state_ != State::kReading) return;
  if (pending_output() > 0) {  // the answer is complete: write it, then close
    state_ = State::kResponding;
    return;
  }
  close();
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  const auto self = shared_from_this();  // the last other reference may go below
  state_ = State::kClosed;
  const auto disconnected = exchange_.lose();
  transport_.close(exchange_.answer() == Answer::kDone && pending_output() == 0);
  deadline_.stop();
  io_->remove(self);
  {
    std::lock_guard lock(shared_->mutex);
    if (--shared_->connections_open == 0) shared_->none_open.notify_all();
  }
  if (disconnected) call_at_disconnect(disconnected);
}

// Deadlines.

// A head has one deadline however its bytes come; between requests, and between two pieces of a
// body, the client may be idle.
void Connection::await_request() {
  if (transport_.is_handshaking()) return deadline_.set_at(handshake_deadline_);
  const bool in_head = reader_.begun() && !reader_.in_body();
  if (in_head) return deadline_.set_at(reader_.head_deadline());
  deadline_.set(shared_->config.idle_timeout);
}

void Connection::on_deadline() {
  if (state_ == State::kReading && reader_.begun() && pending_output() == 0) {
    begin_exchange(reader_.take().traits);
    exchange_.close_after();
    send(exchange_.id(), make_error(shared_->config, 408, "the request took too long to arrive"));
    return flush();
  }
  if (state_ != State::kLingering && pending_output() > 0) ++shared_->dropped_slow_total;
  drop("timeout");
}

}  // namespace espalier::net
