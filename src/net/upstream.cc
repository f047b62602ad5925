#include "net/upstream.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "net/answer_parser.h"
#include "net/deadline.h"
#include "net/io_thread.h"
#include "net/transport.h"

namespace espalier::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kAnswerReadBytes = 64 << 10;
constexpr size_t kFirstBytes = 1 << 10;  // of an answer, at a time: an event, mostly

// A connection between two calls. Its socket is not read meanwhile.
struct IdleConnection {
  std::unique_ptr<Transport> transport;
  TimePoint since;
};

// Whether the server has neither closed an idle connection nor sent bytes that no call expects.
bool is_usable(tcp::socket& socket) {
  char byte = 0;
  const ssize_t n = ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

std::string serialize_head(const Endpoint& endpoint, const UpstreamRequest& request) {
  std::string head = request.method + " " + request.target + " HTTP/1.1\r\n";
  if (find_header(request.headers, "Host") == nullptr) {
    const bool v6 = endpoint.address.find(':') != std::string::npos;
    const std::string host = v6 ? "[" + endpoint.address + "]" : endpoint.address;
    head += fmt::format("Host: {}:{}\r\n", host, endpoint.port);
  }
  for (const auto& [name, value] : request.headers) head += name + ": " + value + "\r\n";
  if (request.body != nullptr) head += fmt::format("Content-Length: {}\r\n", request.body->size());
  return head + "\r\n";
}

}  // namespace

// The idle connections of one I/O thread, which alone uses them.
class UpstreamPool {
 public:
  UpstreamPool(std::shared_ptr<IoThread> io, const UpstreamConfig& config)
      : io_(std::move(io)), config_(config) {}

  // Null: there is none.
  std::unique_ptr<Transport> take(const Endpoint& endpoint) {
    auto& idle = idle_[{endpoint.address, endpoint.port, endpoint.tls_host}];
    const TimePoint oldest = std::chrono::steady_clock::now() - config_.keep_alive;
    while (!idle.empty()) {
      IdleConnection connection = std::move(idle.back());
      idle.pop_back();
      if (connection.since >= oldest && is_usable(connection.transport->socket()))
        return std::move(connection.transport);
    }
    return nullptr;
  }

  void give_back(const Endpoint& endpoint, std::unique_ptr<Transport> transport) {
    auto& idle = idle_[{endpoint.address, endpoint.port, endpoint.tls_host}];
    const TimePoint now = std::chrono::steady_clock::now(), oldest = now - config_.keep_alive;
    std::erase_if(idle, [&](const IdleConnection& c) { return c.since < oldest; });
    if (idle.size() < config_.max_idle_per_endpoint) idle.push_back({std::move(transport), now});
  }

 private:
  const std::shared_ptr<IoThread> io_;  // first: it owns the sockets' context
  const UpstreamConfig& config_;
  using Key = std::tuple<std::string, int, std::string>;
  std::map<Key, std::vector<IdleConnection>> idle_;  // the newest last
};

struct Upstream::Impl {
  explicit Impl(UpstreamConfig c) : config(c) {}

  UpstreamPool& pool(const std::shared_ptr<IoThread>& io) {
    std::lock_guard lock(mutex);
    auto& pool = pools[io.get()];
    if (pool == nullptr) pool = std::make_unique<UpstreamPool>(io, config);
    return *pool;
  }

  const UpstreamConfig config;
  std::atomic<int64_t> num_connects{0};
  std::mutex mutex;  // guards pools, not what each holds
  std::map<IoThread*, std::unique_ptr<UpstreamPool>> pools;
};

namespace {

// Null for plain HTTP.
Result<std::unique_ptr<Tls>> make_tls(const Endpoint& endpoint, const UpstreamConfig& config) {
  if (endpoint.tls_host.empty()) return nullptr;
  ESP_CHECK(config.tls != nullptr, "an endpoint of https without UpstreamConfig::tls");
  return Tls::connect(config.tls, endpoint.tls_host);
}

// Under TLS an end without a close_notify may be anyone's.
bool may_end(const Transport& transport, const Endpoint& endpoint) {
  return endpoint.tls_host.empty() || transport.has_ended();
}

// Why TLS has ended the connection.
Status tls_failure(Transport& transport, const Endpoint& endpoint) {
  if (transport.take_plain_http())
    return error(StatusCode::kUnavailable,
                 "{}:{} speaks plain HTTP, not https: give its url as http://", endpoint.address,
                 endpoint.port);
  if (transport.failure().empty()) return {};
  return error(StatusCode::kUnavailable, "{}:{}: {}", endpoint.address, endpoint.port,
               transport.failure());
}

void prepare(Transport& transport) {
  error_code ignored;
  transport.socket().non_blocking(true, ignored);
  transport.socket().set_option(tcp::no_delay(true), ignored);
  if (transport.is_handshaking()) transport.begin_handshake();
}

// A request on its way: what of its head and its body is not written yet.
class RequestBytes {
 public:
  RequestBytes(const Endpoint& endpoint, const UpstreamRequest& request)
      : is_plain_(endpoint.tls_host.empty()),
        head_(serialize_head(endpoint, request)),
        body_(request.body) {}

  void restart() { num_written_ = 0; }
  bool is_sent() const { return num_written_ == head_.size() + body().size(); }
  // Of the request, or of what it has become under TLS. A handshake goes before it.
  bool has_more(const Transport& transport) const {
    return transport.num_unsent() > 0 || (!transport.is_handshaking() && !is_sent());
  }
  void write(Transport& transport, error_code& ec) {
    const size_t in_head = std::min(num_written_, head_.size());
    const std::string_view head = std::string_view(head_).substr(in_head);
    const std::string_view rest = body().substr(num_written_ - in_head);
    if (is_plain_) {
      const std::array<asio::const_buffer, 2> parts = {asio::buffer(head.data(), head.size()),
                                                       asio::buffer(rest.data(), rest.size())};
      num_written_ += transport.socket().write_some(parts, ec);
    } else if (transport.is_handshaking()) {
      transport.write("", ec);
    } else {
      num_written_ += transport.write(head.empty() ? rest : head, ec);
    }
  }

 private:
  std::string_view body() const { return body_ == nullptr ? std::string_view() : *body_; }

  const bool is_plain_;
  const std::string head_;
  const std::shared_ptr<const std::string> body_;  // shared with other attempts
  size_t num_written_ = 0;
};

// Waits for bytes of an answer. Of plain HTTP the wait reads the first ones itself, for Asio arms a
// descriptor again by a system call for each wait that reads nothing. A call that was paused
// meanwhile finds them later.
class AnswerInput {
 public:
  explicit AnswerInput(const Endpoint& endpoint) : is_plain_(endpoint.tls_host.empty()) {}

  bool is_plain() const { return is_plain_; }
  // `next` keeps this alive.
  template <typename Next>
  void wait(Transport& transport, Next next) {
    tcp::socket& socket = transport.socket();
    if (transport.has_input() || num_bytes_ > 0)
      return asio::post(socket.get_executor(), [next] { next({}); });
    if (!is_plain_) return socket.async_wait(tcp::socket::wait_read, next);
    socket.async_read_some(asio::buffer(bytes_), [this, next](error_code ec, size_t n) {
      num_bytes_ += n;
      next(ec);
    });
  }

  // Of plain HTTP: the bytes of the wait, and where these filled their place, what is behind them.
  size_t read(Transport& transport, std::span<char> to, error_code& ec) {
    const size_t num_bytes = std::exchange(num_bytes_, 0);
    std::copy_n(bytes_.begin(), num_bytes, to.begin());
    if (num_bytes > 0 && num_bytes < bytes_.size()) return num_bytes;
    error_code why;
    const size_t n = transport.read(to.data() + num_bytes, to.size() - num_bytes, why);
    if (num_bytes == 0) ec = why;  // else the next read finds it, too
    return num_bytes + (why ? 0 : n);
  }

 private:
  const bool is_plain_;
  std::array<char, kFirstBytes> bytes_;
  size_t num_bytes_ = 0;
};

class Call final : public UpstreamCall, public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<IoThread> io, UpstreamPool& pool, const UpstreamConfig& config,
       std::atomic<int64_t>& num_connects, std::shared_ptr<void> owner, Endpoint endpoint,
       const UpstreamRequest& request, std::shared_ptr<UpstreamHandler> handler)
      : io_(std::move(io)),
        owner_(std::move(owner)),
        pool_(pool),
        config_(config),
        num_connects_(num_connects),
        endpoint_(std::move(endpoint)),
        handler_(std::move(handler)),
        deadline_(io_->context().get_executor()),
        parser_(request.method == "HEAD"),
        to_send_(endpoint_, request),
        input_(endpoint_) {}

  void start() {
    deadline_.start(weak_from_this(), [this] {
      fail(error(StatusCode::kDeadlineExceeded, "{}:{} did not answer in time", endpoint_.address,
                 endpoint_.port));
    });
    io_->add(this);
    if (io_->is_finished())
      return asio::post(io_->context(), [self = shared_from_this()] { self->cancel(); });
    transport_ = pool_.take(endpoint_);
    reused_ = transport_ != nullptr;
    if (!reused_) return connect();
    // Posted: the caller has not returned yet, and must not be called.
    asio::post(io_->context(), [self = shared_from_this()] { self->connected({}); });
  }

  void cancel() override {
    const auto self = shared_from_this();  // the last other reference may go below
    if (!end()) return;
    close();
    handler_ = nullptr;
  }
  void pause() override { paused_ = true; }
  void resume() override {
    if (std::exchange(paused_, false)) read_more();
  }

 private:
  void connect() {
    ++num_connects_;
    reused_ = false;
    error_code ec;
    const auto address = asio::ip::make_address(endpoint_.address, ec);
    ESP_CHECK(!ec, "'{}' is no numeric address", endpoint_.address);
    deadline_.set(config_.connect_timeout);
    auto tls = make_tls(endpoint_, config_);
    if (!tls)  // posted, as above
      return asio::post(io_->context(),
                        [self = shared_from_this(), why = tls.error()] { self->fail(why); });
    transport_ = std::make_unique<Transport>(tcp::socket(io_->context()), std::move(*tls));
    socket().async_connect(
        tcp::endpoint(address, static_cast<uint16_t>(endpoint_.port)),
        [self = shared_from_this()](error_code failed) { self->connected(failed); });
  }

  void connected(error_code ec) {
    if (done_) return;
    if (ec) return fail_with("cannot connect to {}:{}: {}", ec);
    if (!reused_) prepare(*transport_);
    if (!transport_->is_handshaking()) deadline_.set(config_.head_timeout);
    to_send_.restart();
    read_more();
    write_more();
  }

  void write_more() {
    while (!done_ && to_send_.has_more(*transport_)) {
      error_code ec;
      to_send_.write(*transport_, ec);
      if (ec == asio::error::would_block || ec == asio::error::try_again) return wait_to_write();
      // An answer may have come before the server ended the connection: the reading side decides.
      if (ec) return;
    }
  }

  void wait_to_write() {
    if (std::exchange(waiting_to_write_, true)) return;
    socket().async_wait(tcp::socket::wait_write,
                        [self = shared_from_this(), id = connection_id_](error_code e) {
                          if (id != self->connection_id_) return;
                          self->waiting_to_write_ = false;
                          if (!e && !self->done_) self->write_more();
                        });
  }

  void read_more() {
    if (reading_ || paused_ || done_) return;
    reading_ = true;
    input_.wait(*transport_, [self = shared_from_this(), id = connection_id_](error_code ec) {
      const IoThread::Step step(*self->io_);
      if (id == self->connection_id_) self->on_readable(ec);
    });
  }

  // What the connection has; `ec` as a socket's.
  size_t read_some(std::span<char> buffer, error_code& ec) {
    if (input_.is_plain()) return input_.read(*transport_, buffer, ec);
    const bool was_handshaking = transport_->is_handshaking();
    const size_t n = transport_->read(buffer.data(), buffer.size(), ec);
    if (was_handshaking && !transport_->is_handshaking()) deadline_.set(config_.head_timeout);
    if (transport_->num_unsent() > 0 || was_handshaking) write_more();
    return n;
  }

  void on_readable(error_code ec) {
    reading_ = false;
    if (done_ || paused_) return;
    thread_local std::array<char, kAnswerReadBytes> buffer;
    size_t n = 0;
    if (!ec) n = read_some(buffer, ec);
    const bool waits = ec == asio::error::would_block || ec == asio::error::try_again;
    if (ec && !waits && !parser_.has_begun() && reused_)  // closed while it was idle
      return replace_connection();
    if (Status why = tls_failure(*transport_, endpoint_); !why.ok()) return fail(std::move(why));
    if (waits) return read_more();
    std::string body;
    Status status;
    if (!ec) {
      status = parser_.feed({buffer.data(), n}, body);
    } else if (ec == asio::error::eof && may_end(*transport_, endpoint_)) {
      status = parser_.end_of_stream();
    } else {
      return fail_with("the connection to {}:{} broke: {}", ec);
    }
    if (!status.ok())
      return fail(status.with_context(fmt::format("{}:{}", endpoint_.address, endpoint_.port)));
    deliver(std::move(body), ec == asio::error::eof);
  }

  // The handler may cancel at any of its calls.
  void deliver(std::string body, bool at_eof) {
    const auto handler = handler_;
    if (parser_.has_head() && !std::exchange(head_delivered_, true))
      handler->on_head(parser_.status(), parser_.take_headers(), parser_.content_length());
    if (!done_ && !body.empty()) handler->on_body(std::move(body));
    if (done_) return;
    if (!parser_.is_complete()) {
      if (head_delivered_) deadline_.set(config_.idle_timeout);
      return read_more();
    }
    end();
    deadline_.stop();
    handler_ = nullptr;
    if (!at_eof && parser_.keeps_alive() && to_send_.is_sent())
      pool_.give_back(endpoint_, std::move(transport_));
    else
      close();
    handler->on_end();
  }

  void replace_connection() {
    transport_->close(true);
    ++connection_id_;
    waiting_to_write_ = false;
    connect();
  }

  tcp::socket& socket() { return transport_->socket(); }
  void fail_with(fmt::format_string<std::string&, int&, std::string> format, error_code ec) {
    fail(error(StatusCode::kUnavailable, format, endpoint_.address, endpoint_.port, ec.message()));
  }
  void fail(Status why) {
    if (!end()) return;
    close();
    const auto handler = std::exchange(handler_, nullptr);
    handler->on_failure(std::move(why));
  }
  bool end() {  // false where it was over
    if (std::exchange(done_, true)) return false;
    io_->remove(this);
    return true;
  }
  void close() {
    deadline_.stop();
    if (transport_ != nullptr) transport_->close(true);
  }

  const std::shared_ptr<IoThread> io_;  // first: it owns the context of transport and deadline
  const std::shared_ptr<void> owner_;   // of the next three
  UpstreamPool& pool_;
  const UpstreamConfig& config_;
  std::atomic<int64_t>& num_connects_;
  Endpoint endpoint_;
  std::shared_ptr<UpstreamHandler> handler_;  // shared with who waits; null after the end
  std::unique_ptr<Transport> transport_;      // null before it connects, and after the end
  Deadline deadline_;
  AnswerParser parser_;
  RequestBytes to_send_;
  AnswerInput input_;
  uint64_t connection_id_ = 0;  // waits of an earlier connection mean nothing
  bool waiting_to_write_ = false;
  bool reused_ = false, reading_ = false, paused_ = false, head_delivered_ = false, done_ = false;
};

}  // namespace

Upstream::Upstream(UpstreamConfig config) : impl_(std::make_shared<Impl>(config)) {}
Upstream::~Upstream() = default;

std::shared_ptr<UpstreamCall> Upstream::call(const std::shared_ptr<IoThread>& io,
                                             const Endpoint& endpoint, UpstreamRequest request,
                                             std::shared_ptr<UpstreamHandler> handler) {
  ESP_CHECK(io->in_thread(), "a call from another thread");
  auto call = std::make_shared<Call>(io, impl_->pool(io), impl_->config, impl_->num_connects, impl_,
                                     endpoint, request, std::move(handler));
  call->start();
  return call;
}

int64_t Upstream::num_connects_total() const { return impl_->num_connects; }

Result<std::vector<std::string>> resolve_host(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int rc = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); rc != 0)
    return fail(error(StatusCode::kUnavailable, "the host '{}' has no address: {}", host,
                      ::gai_strerror(rc)));
  std::vector<std::string> out;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST];
    if (::getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
        0)
      out.emplace_back(text);
  }
  ::freeaddrinfo(found);
  std::ranges::sort(out);
  out.erase(std::ranges::unique(out).begin(), out.end());
  if (out.empty())
    return fail(error(StatusCode::kUnavailable, "the host '{}' has no address", host));
  return out;
}

void post_on(const std::shared_ptr<IoThread>& io, std::function<void()> task) {
  io->post(std::move(task));
}

BackgroundIo::BackgroundIo(std::string name) : io_(std::make_shared<IoThread>()) {
  io_->start(std::move(name));
}
BackgroundIo::~BackgroundIo() {
  io_->post([io = io_] { io->finish(); });
  io_->join();
}
void BackgroundIo::post(std::function<void()> task) { io_->post(std::move(task)); }
void BackgroundIo::post_after(Duration delay, std::function<void()> task) {
  io_->post_after(delay, std::move(task));
}

}  // namespace espalier::net
