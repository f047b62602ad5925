#include "net/byte_stream.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "net/tls.h"

namespace espalier::net {
namespace {

Status broken(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }

// Messages are written whole, so none waits for another one's bytes.
void send_at_once(int fd) {
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Status wait_ready(int fd, int16_t events, TimePoint deadline) {
  const SteadyClock clock;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock.now());
    pollfd waits{.fd = fd, .events = events, .revents = 0};
    const int count =
        ::poll(&waits, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
    if (count > 0) return {};
    if (count < 0 && errno != EINTR) return broken(fmt::format("poll: {}", strerror(errno)));
    if (count == 0 && clock.now() >= deadline)
      return {StatusCode::kDeadlineExceeded, "the socket is not ready"};
  }
}

ByteStream::ByteStream() = default;

ByteStream::ByteStream(int fd) : fd_(fd) { send_at_once(fd); }

ByteStream::~ByteStream() { close(); }

void ByteStream::close() {
  {
    const std::lock_guard lock(mutex_);
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  tls_.reset();
  in_.clear();
  begin_ = 0;
}

bool ByteStream::is_stale() const {
  if (fd_ < 0 || !buffered().empty()) return true;
  char byte = 0;
  const ssize_t n = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

void ByteStream::interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

void ByteStream::resume() {
  const std::lock_guard lock(mutex_);
  interrupted_ = false;
}

bool ByteStream::interrupted() const {
  const std::lock_guard lock(mutex_);
  return interrupted_;
}

void ByteStream::consume(size_t n) {
  begin_ += n;
  if (begin_ == in_.size()) {
    in_.clear();
    begin_ = 0;
  } else if (begin_ > (64 << 10)) {
    in_.erase(0, begin_);
    begin_ = 0;
  }
}

Status ByteStream::wait(int16_t events, Duration timeout, const char* what) {
  const TimePoint start = SteadyClock().now();
  const TimePoint deadline = std::min(start + timeout, deadline_);
  const Status status = wait_ready(fd_, events, deadline);
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return error(StatusCode::kDeadlineExceeded, "timeout after {:.1f} s while {}",
               to_seconds(deadline - start), what);
}

Status ByteStream::connect_to(const addrinfo& address, Duration timeout) {
  {
    const std::lock_guard lock(mutex_);
    if (interrupted_) return broken("interrupted");
    fd_ = ::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                   address.ai_protocol);
  }
  if (fd_ < 0) return broken(fmt::format("socket: {}", strerror(errno)));
  send_at_once(fd_);
  if (::connect(fd_, address.ai_addr, address.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return broken(strerror(errno));
  ESP_RETURN_IF_ERROR(wait(POLLOUT, timeout, "connecting"));
  int failure = 0;
  socklen_t size = sizeof failure;
  ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &failure, &size);
  if (failure != 0) return broken(strerror(failure));
  return {};
}

Status ByteStream::connect(const ByteStreamTarget& target) {
  close();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(target.port);
  if (const int rc = ::getaddrinfo(target.host.c_str(), port.c_str(), &hints, &found); rc != 0) {
    return broken(fmt::format("host \"{}\": {}", target.host, gai_strerror(rc)));
  }
  Status status = broken("no address");
  for (const addrinfo* a = found; a != nullptr && !is_open(); a = a->ai_next) {
    if (target.allow_address && !target.allow_address(*a->ai_addr)) {
      status = error(StatusCode::kPermissionDenied, "the host's address may not be connected to");
      continue;
    }
    status = connect_to(*a, target.connect_timeout);
    if (!status.ok()) close();
  }
  ::freeaddrinfo(found);
  if (status.ok() && target.tls != nullptr) {
    status = agree(target);
    if (!status.ok()) close();
  }
  return status.with_context(fmt::format("cannot connect to {}:{}", target.host, target.port));
}

Status ByteStream::agree(const ByteStreamTarget& target) {
  const Duration timeout = target.connect_timeout;
  ESP_ASSIGN_OR_RETURN(tls_, Tls::connect(target.tls, target.host));
  while (true) {
    const Result<bool> done = tls_->handshake();
    ESP_RETURN_IF_ERROR(send_raw(tls_->output(), timeout));  // an alert, too
    if (!done) return done.error();
    if (*done) return {};
    std::string received;
    ESP_ASSIGN_OR_RETURN(const bool more, receive_into(received, timeout));
    if (!more) return broken("the server closed the connection while TLS was agreed on");
    tls_->feed(received);
  }
}

Status ByteStream::write_all(std::string_view bytes, Duration timeout) {
  if (tls_ == nullptr) return send_raw(bytes, timeout);
  ESP_RETURN_IF_ERROR(tls_->encrypt(bytes));
  return send_raw(tls_->output(), timeout);
}

Result<bool> ByteStream::read_more(Duration timeout) {
  if (tls_ == nullptr) return receive_into(in_, timeout);
  const size_t before = in_.size();
  while (true) {
    // What read_exactly() has left undecrypted comes first.
    ESP_ASSIGN_OR_RETURN(const bool goes_on, tls_->decrypt(in_));
    if (in_.size() > before) return true;
    if (!goes_on) return false;
    std::string received;
    ESP_ASSIGN_OR_RETURN(const bool more, receive_into(received, timeout));
    if (!more) return false;
    tls_->feed(received);
  }
}

Status ByteStream::read_exactly(std::span<char> to, Duration timeout) {
  const size_t ready = std::min(to.size(), buffered().size());
  std::copy_n(buffered().data(), ready, to.data());
  consume(ready);
  to = to.subspan(ready);
  while (!to.empty()) {
    size_t n = 0;
    if (tls_ == nullptr) {
      ESP_ASSIGN_OR_RETURN(n, receive_raw(to, timeout));
      if (n == 0) return broken("the other side closed the connection");
    } else {
      ESP_ASSIGN_OR_RETURN(n, tls_->decrypt(to));
      if (n == 0 && tls_->has_ended()) return broken("the other side closed the connection");
      if (n == 0) {
        std::string received;
        ESP_ASSIGN_OR_RETURN(const bool more, receive_into(received, timeout));
        if (!more) return broken("the other side closed the connection");
        tls_->feed(received);
      }
    }
    to = to.subspan(n);
  }
  return {};
}

Status ByteStream::send_raw(std::string_view bytes, Duration timeout) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ESP_RETURN_IF_ERROR(wait(POLLOUT, timeout, "sending"));
    } else if (errno != EINTR) {
      return broken(fmt::format("the connection broke while sending: {}", strerror(errno)));
    }
  }
  return {};
}

Result<size_t> ByteStream::receive_raw(std::span<char> to, Duration timeout) {
  while (true) {
    // A server that always sends more than is read never lets wait() see the deadline.
    if (deadline_ != TimePoint::max() && std::chrono::steady_clock::now() >= deadline_)
      return fail(error(StatusCode::kDeadlineExceeded, "the answer takes too long"));
    const ssize_t n = ::recv(fd_, to.data(), to.size(), 0);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ESP_RETURN_IF_ERROR(wait(POLLIN, timeout, "waiting for the answer"));
    } else if (errno != EINTR) {
      return fail(broken(fmt::format("the connection broke: {}", strerror(errno))));
    }
  }
}

Result<bool> ByteStream::receive_into(std::string& out, Duration timeout) {
  char chunk[16 << 10];
  ESP_ASSIGN_OR_RETURN(const size_t n, receive_raw(chunk, timeout));
  out.append(chunk, n);
  return n > 0;
}

}  // namespace espalier::net
