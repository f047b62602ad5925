#include "net/tcp_stream.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace espalier::net {
namespace {

int milliseconds(Duration duration) {
  const auto count = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::clamp<int64_t>(count, 0, 1 << 30));
}

// Whether the socket is ready for `events`, or has failed; false after the timeout.
bool wait_ready(int fd, int16_t events, Duration timeout) {
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + timeout;
  while (true) {
    pollfd waits{.fd = fd, .events = events, .revents = 0};
    const int count = ::poll(&waits, 1, milliseconds(deadline - clock.now()));
    if (count > 0) return true;
    if (count == 0 || errno != EINTR) return false;
  }
}

Status closed(int why) {
  return error(StatusCode::kUnavailable, "the connection was closed{}{}", why == 0 ? "" : ": ",
               why == 0 ? "" : std::strerror(why));
}

Status silent(Duration silence_max) {
  return error(StatusCode::kDeadlineExceeded, "the other side was silent for {:.1f} s",
               to_seconds(silence_max));
}

// The socket, connecting or connected to one address; -1 and errno where that fails at once.
int begin_connect(const addrinfo& place) {
  const int fd = ::socket(place.ai_family, place.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (::connect(fd, place.ai_addr, place.ai_addrlen) == 0 || errno == EINPROGRESS || errno == EINTR)
    return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

}  // namespace

TcpStream::TcpStream(int fd) : fd_(fd) {
  const int on = 1;  // frames are written whole, so that none waits for another one's bytes
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

TcpStream::~TcpStream() { ::close(fd_); }

Result<std::unique_ptr<TcpStream>> TcpStream::connect(const std::string& host, int port,
                                                      Duration timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (problem != 0)
    return fail(error(StatusCode::kUnavailable, "the host \"{}\" is not known: {}", host,
                      ::gai_strerror(problem)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> places(found, &::freeaddrinfo);
  int why = 0;
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next) {
    const int fd = begin_connect(*place);
    if (fd < 0) {
      why = errno;
      continue;
    }
    auto stream = std::make_unique<TcpStream>(fd);
    socklen_t size = sizeof why;
    if (!wait_ready(fd, POLLOUT, timeout))
      why = ETIMEDOUT;
    else if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size) == 0 && why == 0)
      return stream;
  }
  return fail(error(StatusCode::kUnavailable, "cannot connect to {}:{}: {}", host, port,
                    std::strerror(why)));
}

Status TcpStream::read(std::span<std::byte> to, Duration silence_max) {
  while (!to.empty()) {
    const ssize_t count = ::recv(fd_, to.data(), to.size(), MSG_DONTWAIT);
    if (count > 0) {
      to = to.subspan(static_cast<size_t>(count));
    } else if (count == 0) {
      return closed(0);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(fd_, POLLIN, silence_max)) return silent(silence_max);
    } else if (errno != EINTR) {
      return closed(errno);
    }
  }
  return {};
}

Status TcpStream::write(std::span<const std::byte> bytes, Duration silence_max) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(fd_, POLLOUT, silence_max)) return silent(silence_max);
    } else if (errno != EINTR) {
      return closed(errno);
    }
  }
  return {};
}

void TcpStream::shutdown() { (void)::shutdown(fd_, SHUT_RDWR); }

Result<std::unique_ptr<TcpListener>> TcpListener::listen(const std::string& host, int port) {
  ESP_ASSIGN_OR_RETURN(BoundAddress address, BoundAddress::bind(host, port));
  const int bound_port = address.port();
  ESP_ASSIGN_OR_RETURN(const int fd, std::move(address).listen());
  return std::unique_ptr<TcpListener>(new TcpListener(fd, bound_port));
}

TcpListener::~TcpListener() { ::close(fd_); }

void TcpListener::shutdown() { (void)::shutdown(fd_, SHUT_RDWR); }

std::unique_ptr<TcpStream> TcpListener::accept(Duration timeout) {
  if (!wait_ready(fd_, POLLIN, timeout)) return nullptr;
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) return std::make_unique<TcpStream>(fd);
  // Without descriptors or memory the connection stays ready to be accepted.
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
    ::poll(nullptr, 0, 100);
  return nullptr;
}

}  // namespace espalier::net
