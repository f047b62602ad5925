#include "net/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <exception>

#include "base/log.h"

namespace espalier::net {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytesMin = 4096;           // of an idle connection's buffer
constexpr size_t kReadBytesMax = 64 << 10;       // while a body comes in
constexpr size_t kPipelinedBytesMax = 64 << 10;  // read ahead while an answer is under way
constexpr size_t kPipelinedOutputMax = 1 << 20;  // unread answers before the next request waits
constexpr size_t kUnchargedOutput = 64 << 10;    // of a connection, no part of the account
constexpr Duration kLingerStopping = std::chrono::milliseconds(100);
constexpr Duration kLinger = std::chrono::seconds(1);  // for a client to take our last answer

TimePoint now() { return std::chrono::steady_clock::now(); }

// Header values come from handlers, which may pass on a user's text: it must not start a header.
void append_header_text(std::string& out, std::string_view text) {
  for (const char c : text) out.push_back(c == '\r' || c == '\n' || c == '\0' ? ' ' : c);
}

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
    // Posted, also on the I/O thread: an answer that another thread has posted comes first.
    io_->post([connection = connection_, exchange = exchange_] {
      if (const auto c = connection.lock()) c->abandon(exchange);
    });
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
      } else if (const auto c = connection.lock()) {
        c->on_disconnect(exchange, std::move(callback));
      }
    });
  }
  void post(std::function<void()> task) override { io_->post(std::move(task)); }
  void post_after(Duration delay, std::function<void()> task) override {
    io_->post_after(delay, std::move(task));
  }
  bool closed() const override { return outcome_->load() != Outcome::kOpen; }

 private:
  template <typename F>
  void with_connection(F&& f) {
    io_->run([connection = connection_, exchange = exchange_, f = std::forward<F>(f)]() mutable {
      if (const auto c = connection.lock()) f(*c, exchange);
    });
  }

  const std::shared_ptr<IoThread> io_;
  const std::weak_ptr<Connection> connection_;
  const uint64_t exchange_;
  const SharedOutcome outcome_;
};

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, std::shared_ptr<IoThread> io,
                       std::shared_ptr<ServerShared> shared)
    : io_(std::move(io)),
      socket_(std::move(socket)),
      shared_(std::move(shared)),
      reader_(shared_->config, shared_->router),
      output_charge_(shared_->config.outputs),
      timer_(socket_.get_executor()) {}

Connection::~Connection() = default;

void Connection::start() {
  io_->add(shared_from_this());
  error_code ec;
  socket_.non_blocking(true, ec);
  socket_.set_option(asio::ip::tcp::no_delay(true), ec);
  const auto remote = socket_.remote_endpoint(ec);
  if (!ec) peer_ = fmt::format("{}:{}", remote.address().to_string(), remote.port());
  reader_.set_peer(peer_);
  if (shared_->stopping) return close();
  set_deadline(shared_->config.idle_timeout);
  read_more();
}

// Reading.

void Connection::read_more() {
  if (reading_ || eof_ || state_ == State::kClosed) return;
  if (state_ == State::kResponding && reader_.num_buffered() >= kPipelinedBytesMax) return;
  // A read under way would hold on to a part of the buffer, which moves when a pipelined request is
  // taken from it meanwhile: so it is touched only once bytes are there.
  reading_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](error_code ec) { self->on_readable(ec); });
}

void Connection::on_readable(error_code ec) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  reader_.shrink_input();
  const bool in_body = state_ == State::kReading && reader_.in_body();
  const size_t want = in_body || state_ == State::kLingering ? kReadBytesMax : kReadBytesMin;
  size_t num_bytes = 0;
  if (!ec) num_bytes = socket_.read_some(asio::buffer(reader_.prepare(want), want), ec);
  if (ec == asio::error::would_block || ec == asio::error::try_again) return read_more();
  on_read(ec, num_bytes);
}

void Connection::on_read(error_code ec, size_t num_bytes) {
  if (ec) {
    eof_ = true;
    // A whole answer that is still being written may yet be taken by a client that only shut its
    // sending side; anything else is over.
    const bool answered = state_ == State::kResponding && answer_ == Answer::kDone;
    if (ec == asio::error::eof && (answered || pending_output() > 0) && answer_ == Answer::kDone &&
        state_ != State::kLingering) {
      keep_alive_ = false;
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
  processing_ = true;
  while (state_ == State::kReading && pending_output() <= kPipelinedOutputMax) {
    const RequestReader::Progress progress = reader_.read();
    if (progress == RequestReader::Progress::kContinue) out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    if (progress != RequestReader::Progress::kComplete &&
        progress != RequestReader::Progress::kRefused)
      break;
    dispatch();
  }
  processing_ = false;
  flush();
}

void Connection::dispatch() {
  clear_deadline();
  RequestReader::Taken taken = reader_.take();
  begin_exchange(std::move(taken.traits));
  if (taken.refusal) return send(exchange_, std::move(*taken.refusal));
  route(std::move(taken.request));
}

void Connection::begin_exchange(RequestTraits traits) {
  ++exchange_;
  ++shared_->requests_total;
  state_ = State::kResponding;
  answer_ = Answer::kNone;
  traits_ = std::move(traits);
  keep_alive_ = traits_.keep_alive && !shared_->stopping && !eof_;
  chunked_ = false;
  outcome_ = std::make_shared<std::atomic<Outcome>>(Outcome::kOpen);
}

void Connection::route(HttpRequest&& request) {
  Router::Match match = shared_->router.find(request.method, request.path);
  std::string allow;
  for (const std::string& method : match.allowed) allow += method + ", ";
  if (!allow.empty()) allow += "OPTIONS";

  if (match.handler == nullptr && request.method == "OPTIONS") {
    HttpResponse response{
        204, {{"Allow", allow.empty() ? "GET, HEAD, POST, PUT, OPTIONS" : allow}}, {}};
    if (!traits_.origin.empty()) {
      response.headers.emplace_back("Access-Control-Allow-Methods", "*");
      const std::string* wanted = request.header("Access-Control-Request-Headers");
      response.headers.emplace_back("Access-Control-Allow-Headers", wanted ? *wanted : "*");
      response.headers.emplace_back("Access-Control-Max-Age", "600");
    }
    return send(exchange_, std::move(response));
  }
  if (match.handler == nullptr) {
    const bool known = !match.allowed.empty();
    HttpResponse response =
        make_error(shared_->config, known ? 405 : 404,
                   known ? fmt::format("{} takes {}, not {}", request.path, allow, request.method)
                         : fmt::format("there is no {} here", request.path));
    if (known) response.headers.emplace_back("Allow", allow);
    return send(exchange_, std::move(response));
  }
  request.params = std::move(match.params);
  auto writer = std::make_shared<Writer>(io_, weak_from_this(), exchange_, outcome_);
  const uint64_t exchange = exchange_;
  try {
    (*match.handler)(std::move(request), std::move(writer));
  } catch (const std::exception& e) {  // a third party's (bad_alloc): this request fails alone
    log_error("handler threw path={} what={}", request.path, e.what());
    send(exchange, make_error(shared_->config, 500, "internal error"));
  }
}

// Answering.

void Connection::append_head(int status, const Headers& headers, bool chunked,
                             size_t content_length) {
  if (shared_->stopping) keep_alive_ = false;
  fmt::format_to(std::back_inserter(out_), "HTTP/1.1 {} {}\r\nDate: {}\r\n", status,
                 status_reason(status), io_->http_date());
  for (const auto& [name, value] : headers) {
    append_header_text(out_, name);
    out_ += ": ";
    append_header_text(out_, value);
    out_ += "\r\n";
  }
  if (!traits_.origin.empty()) {
    out_ += "Access-Control-Allow-Origin: " + traits_.origin +
            "\r\nAccess-Control-Expose-Headers: *\r\n";
    if (traits_.origin != "*") out_ += "Vary: Origin\r\n";
  }
  if (chunked) {
    out_ += "Transfer-Encoding: chunked\r\n";
  } else if (status != 204 && content_length != std::string::npos) {
    fmt::format_to(std::back_inserter(out_), "Content-Length: {}\r\n", content_length);
  }
  if (!keep_alive_) {
    out_ += "Connection: close\r\n";
  } else if (traits_.http10) {
    out_ += "Connection: keep-alive\r\n";
  }
  out_ += "\r\n";
}

void Connection::send(uint64_t exchange, HttpResponse&& response) {
  if (exchange != exchange_ || answer_ != Answer::kNone || state_ != State::kResponding) return;
  if (response.body.size() > kUnchargedOutput &&
      !output_charge_.resize(static_cast<int64_t>(out_.size() + response.body.size()))) {
    response = make_error(
        shared_->config, 503,
        "the answers of all requests take what memory there is for them: try again later");
    response.headers.emplace_back("Retry-After", "1");
  }
  append_head(response.status, response.headers, false, response.body.size());
  if (!traits_.is_head && response.status != 204) out_ += response.body;
  answer_done();
}

void Connection::start_stream(uint64_t exchange, int status, Headers&& headers) {
  if (exchange != exchange_ || answer_ != Answer::kNone || state_ != State::kResponding) return;
  chunked_ = !traits_.http10;
  if (traits_.http10) keep_alive_ = false;  // the end of the connection ends the answer
  append_head(status, headers, chunked_, std::string::npos);
  answer_ = Answer::kStreaming;
  last_write_bytes_ = 0;
  flush_soon();
}

void Connection::write(uint64_t exchange, std::string&& bytes) {
  if (exchange != exchange_ || answer_ != Answer::kStreaming || bytes.empty() || traits_.is_head)
    return;
  // What comes now, of whatever size, the client has not been able to read; what came before may
  // be more than the bound by itself.
  const size_t bound = shared_->config.max_pending_output_bytes + last_write_bytes_;
  if (pending_output() > bound) flush();
  if (state_ == State::kClosed) return;
  if (pending_output() > bound) {
    ++shared_->dropped_slow_total;
    return drop("its client does not read");
  }
  if (chunked_) fmt::format_to(std::back_inserter(out_), "{:x}\r\n", bytes.size());
  out_ += bytes;
  if (chunked_) out_ += "\r\n";
  last_write_bytes_ = bytes.size();
  if (!charge_output()) {
    ++shared_->dropped_slow_total;
    return drop("its client does not read, and unread answers take what memory there is for them");
  }
  flush_soon();
}

void Connection::finish(uint64_t exchange) {
  if (exchange != exchange_ || answer_ != Answer::kStreaming) return;
  if (chunked_ && !traits_.is_head) out_ += "0\r\n\r\n";
  answer_done();
}

void Connection::abandon(uint64_t exchange) {
  if (exchange != exchange_ || state_ != State::kResponding || answer_ == Answer::kDone) return;
  if (answer_ == Answer::kStreaming) return drop("its answer was abandoned");
  send(exchange, make_error(shared_->config, 500, "internal error: the request was not answered"));
}

void Connection::on_disconnect(uint64_t exchange, std::function<void()>&& callback) {
  if (exchange != exchange_ || state_ != State::kResponding || answer_ == Answer::kDone) return;
  disconnect_ = std::move(callback);
}

void Connection::answer_done() {
  answer_ = Answer::kDone;
  outcome_->store(Outcome::kAnswered);
  const auto callback = std::move(disconnect_);  // destroyed at the end of this call
  disconnect_ = nullptr;
  if (keep_alive_) {
    state_ = State::kReading;
    set_deadline(shared_->config.idle_timeout);
  }
  if (processing_) return;  // process() goes on and flushes
  flush_soon();
}

// Writing.

bool Connection::charge_output() {
  const size_t held = out_.capacity();
  return output_charge_.resize(held > kUnchargedOutput ? static_cast<int64_t>(held) : 0);
}

void Connection::flush_soon() {
  if (flush_wanted_ || waiting_writable_) return;
  flush_wanted_ = true;
  io_->flush_later(shared_from_this());
}

void Connection::flush() {
  flush_wanted_ = false;
  if (waiting_writable_ || state_ == State::kClosed) return;
  while (pending_output() > 0) {
    error_code ec;
    const size_t n =
        socket_.write_some(asio::buffer(out_.data() + out_begin_, pending_output()), ec);
    ++shared_->socket_writes_total;
    if (ec == asio::error::would_block || ec == asio::error::try_again) return wait_writable();
    if (ec) return close();
    out_begin_ += n;
    if (out_begin_ > out_.size() / 2) {
      out_.erase(0, out_begin_);
      out_begin_ = 0;
    }
  }
  if (out_.capacity() > (256 << 10)) std::string().swap(out_);
  (void)charge_output();  // it holds no more than before
  if (state_ == State::kResponding) {
    if (answer_ == Answer::kDone) return linger();
    clear_deadline();
  } else if (state_ == State::kReading && !processing_) {
    if (eof_) return close();
    await_request();
    if (reader_.num_buffered() > 0 && !reader_.begun()) process();
    read_more();
  }
}

void Connection::wait_writable() {
  waiting_writable_ = true;
  set_deadline(shared_->config.write_timeout);
  socket_.async_wait(asio::ip::tcp::socket::wait_write, [self = shared_from_this()](error_code ec) {
    self->waiting_writable_ = false;
    if (!ec) self->flush();
  });
}

// Shuts our side and waits a little for the client's end: closing at once, with bytes of its still
// unread, would reset the connection and lose the answer.
void Connection::linger() {
  if (eof_) return close();
  state_ = State::kLingering;
  error_code ec;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ec);
  if (ec) return close();
  set_deadline(shared_->stopping ? kLingerStopping : kLinger);
  reader_.clear_input();
  read_more();
}

void Connection::drop(std::string_view why) {
  log_debug("connection dropped peer={} why=\"{}\"", peer_, why);
  close();
}

void Connection::begin_shutdown() {
  keep_alive_ = false;
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
  if (outcome_ && answer_ != Answer::kDone) outcome_->store(Outcome::kGone);
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  io_->remove(self);
  {
    std::lock_guard lock(shared_->mutex);
    if (--shared_->connections_open == 0) shared_->none_open.notify_all();
  }
  const auto callback = std::move(disconnect_);
  disconnect_ = nullptr;
  if (callback && answer_ != Answer::kDone) callback();
}

// Deadlines. The timer is set again only when it fires or must fire earlier, so that moving the
// deadline costs nothing.

void Connection::set_deadline(Duration from_now) {
  deadline_ = now() + from_now;
  arm_timer();
}

// A head has one deadline however its bytes come; between requests, and between two pieces of a
// body, the client may be idle.
void Connection::await_request() {
  const bool in_head = reader_.begun() && !reader_.in_body();
  deadline_ = in_head ? reader_.head_deadline() : now() + shared_->config.idle_timeout;
  arm_timer();
}

void Connection::arm_timer() {
  if (deadline_ == TimePoint::max() || (timer_armed_ && timer_at_ <= deadline_)) return;
  timer_armed_ = true;
  timer_at_ = deadline_;
  timer_.expires_at(std::chrono::time_point_cast<std::chrono::steady_clock::duration>(deadline_));
  timer_.async_wait([weak = weak_from_this()](error_code ec) {
    const auto self = weak.lock();
    if (ec || self == nullptr || self->state_ == State::kClosed) return;
    self->timer_armed_ = false;
    if (self->deadline_ <= now()) {
      self->on_deadline();
    } else {
      self->arm_timer();
    }
  });
}

void Connection::on_deadline() {
  clear_deadline();
  if (state_ == State::kReading && reader_.begun() && pending_output() == 0) {
    begin_exchange(reader_.take().traits);
    keep_alive_ = false;
    send(exchange_, make_error(shared_->config, 408, "the request took too long to arrive"));
    return flush();
  }
  if (state_ != State::kLingering && pending_output() > 0) ++shared_->dropped_slow_total;
  drop("timeout");
}

}  // namespace espalier::net
