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
#include <utility>

#include "base/check.h"
#include "net/answer_parser.h"
#include "net/deadline.h"
#include "net/io_thread.h"

namespace espalier::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kAnswerReadBytes = 64 << 10;

// A connection between two calls. Its socket is not read meanwhile.
struct IdleConnection {
  tcp::socket socket;
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

  std::optional<tcp::socket> take(const Endpoint& endpoint) {
    auto& idle = idle_[{endpoint.address, endpoint.port}];
    const TimePoint oldest = std::chrono::steady_clock::now() - config_.keep_alive;
    while (!idle.empty()) {
      IdleConnection connection = std::move(idle.back());
      idle.pop_back();
      if (connection.since >= oldest && is_usable(connection.socket))
        return std::move(connection.socket);
    }
    return std::nullopt;
  }

  void give_back(const Endpoint& endpoint, tcp::socket socket) {
    auto& idle = idle_[{endpoint.address, endpoint.port}];
    const TimePoint now = std::chrono::steady_clock::now(), oldest = now - config_.keep_alive;
    std::erase_if(idle, [&](const IdleConnection& c) { return c.since < oldest; });
    if (idle.size() < config_.max_idle_per_endpoint) idle.push_back({std::move(socket), now});
  }

 private:
  const std::shared_ptr<IoThread> io_;  // first: it owns the sockets' context
  const UpstreamConfig& config_;
  std::map<std::pair<std::string, int>, std::vector<IdleConnection>> idle_;  // the newest last
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

class Call final : public UpstreamCall, public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<IoThread> io, UpstreamPool& pool, const UpstreamConfig& config,
       std::atomic<int64_t>& num_connects, std::shared_ptr<void> owner, Endpoint endpoint,
       UpstreamRequest request, std::shared_ptr<UpstreamHandler> handler)
      : io_(std::move(io)),
        owner_(std::move(owner)),
        pool_(pool),
        config_(config),
        num_connects_(num_connects),
        endpoint_(std::move(endpoint)),
        request_(std::move(request)),
        handler_(std::move(handler)),
        socket_(io_->context()),
        deadline_(socket_.get_executor()),
        parser_(request_.method == "HEAD") {}

  void start() {
    deadline_.start(weak_from_this(), [this] {
      fail(error(StatusCode::kDeadlineExceeded, "{}:{} did not answer in time", endpoint_.address,
                 endpoint_.port));
    });
    head_ = serialize_head(endpoint_, request_);
    io_->add(this);
    if (io_->is_finished())
      return asio::post(socket_.get_executor(), [self = shared_from_this()] { self->cancel(); });
    if (auto idle = pool_.take(endpoint_)) {
      socket_ = std::move(*idle);
      reused_ = true;
      // Posted: the caller has not returned yet, and must not be called.
      asio::post(socket_.get_executor(), [self = shared_from_this()] { self->connected({}); });
    } else {
      connect();
    }
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
    socket_.async_connect(
        tcp::endpoint(address, static_cast<uint16_t>(endpoint_.port)),
        [self = shared_from_this()](error_code failed) { self->connected(failed); });
  }

  void connected(error_code ec) {
    if (done_) return;
    if (ec) return fail_with("cannot connect to {}:{}: {}", ec);
    if (!reused_) {
      error_code ignored;
      socket_.non_blocking(true, ignored);
      socket_.set_option(tcp::no_delay(true), ignored);
    }
    deadline_.set(config_.head_timeout);
    num_written_ = 0;
    read_more();
    write_more();
  }

  size_t num_to_write() const {
    return head_.size() + (request_.body != nullptr ? request_.body->size() : 0);
  }

  void write_more() {
    while (!done_ && num_written_ < num_to_write()) {
      std::array<asio::const_buffer, 2> parts;
      const size_t in_head = std::min(num_written_, head_.size());
      parts[0] = asio::buffer(head_.data() + in_head, head_.size() - in_head);
      if (request_.body != nullptr)
        parts[1] = asio::buffer(*request_.body) + (num_written_ - in_head);
      error_code ec;
      num_written_ += socket_.write_some(parts, ec);
      if (ec == asio::error::would_block || ec == asio::error::try_again)
        return socket_.async_wait(tcp::socket::wait_write,
                                  [self = shared_from_this(), id = connection_id_](error_code e) {
                                    if (!e && id == self->connection_id_) self->write_more();
                                  });
      // An answer may have come before the server ended the connection: the reading side decides.
      if (ec) return;
    }
  }

  void read_more() {
    if (reading_ || paused_ || done_) return;
    reading_ = true;
    socket_.async_wait(tcp::socket::wait_read,
                       [self = shared_from_this(), id = connection_id_](error_code ec) {
                         if (id == self->connection_id_) self->on_readable(ec);
                       });
  }

  void on_readable(error_code ec) {
    reading_ = false;
    if (done_ || paused_) return;
    thread_local std::array<char, kAnswerReadBytes> buffer;
    size_t n = 0;
    if (!ec) n = socket_.read_some(asio::buffer(buffer), ec);
    if (ec == asio::error::would_block || ec == asio::error::try_again) return read_more();
    if (ec && !parser_.has_begun() && reused_) {  // closed while it was idle
      replace_connection();
      return;
    }
    std::string body;
    Status status;
    if (!ec) {
      status = parser_.feed({buffer.data(), n}, body);
    } else if (ec == asio::error::eof) {
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
    if (!at_eof && parser_.keeps_alive() && num_written_ == num_to_write())
      pool_.give_back(endpoint_, std::move(socket_));
    else
      close();
    handler->on_end();
  }

  void replace_connection() {
    error_code ignored;
    socket_.close(ignored);
    ++connection_id_;
    socket_ = tcp::socket(io_->context());
    connect();
  }

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
    error_code ignored;
    socket_.close(ignored);
  }

  const std::shared_ptr<IoThread> io_;  // first: it owns the context of socket and deadline
  const std::shared_ptr<void> owner_;   // of the next three
  UpstreamPool& pool_;
  const UpstreamConfig& config_;
  std::atomic<int64_t>& num_connects_;
  Endpoint endpoint_;
  UpstreamRequest request_;
  std::shared_ptr<UpstreamHandler> handler_;  // shared with who waits; null after the end
  tcp::socket socket_;
  Deadline deadline_;
  AnswerParser parser_;
  std::string head_;
  size_t num_written_ = 0;
  uint64_t connection_id_ = 0;  // waits of an earlier connection mean nothing
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
                                     endpoint, std::move(request), std::move(handler));
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
