#include "net/bound_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/check.h"

namespace espalier::net {
namespace {

// A number beyond what the system allows: it takes its own bound.
constexpr int kBacklog = SOMAXCONN;

Status refused(const std::string& host, int port, int why) {
  switch (why) {
    case EADDRINUSE:
      return error(
          StatusCode::kFailedPrecondition,
          "port {} of {} is in use by another program: stop that one, or choose another port", port,
          host);
    case EACCES:
      return error(StatusCode::kPermissionDenied,
                   "port {} of {} may not be used by this user: choose one above 1023", port, host);
    case EADDRNOTAVAIL:
      return invalid_argument(
          "cannot listen on {}:{}: no network interface of this system has that address; take "
          "127.0.0.1, or 0.0.0.0 for all of them",
          host, port);
    default:
      return invalid_argument("cannot listen on {}:{}: {}", host, port, std::strerror(why));
  }
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// A socket bound to one address, or -1 and errno.
int bind_one(const addrinfo& place) {
  const int fd = ::socket(place.ai_family, place.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1;  // a server that has just ended leaves connections behind
  if (::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      ::bind(fd, place.ai_addr, place.ai_addrlen) == 0)
    return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

}  // namespace

Result<BoundAddress> BoundAddress::bind(const std::string& host, int port) {
  if (port < 0 || port > 65535) {
    return fail(invalid_argument("port {} is outside 0 to 65535", port));
  }
  if (host.empty()) {
    return fail(invalid_argument(
        "the host to listen on is empty: 127.0.0.1 is this system, 0.0.0.0 every interface"));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (problem != 0)
    return fail(
        invalid_argument("cannot listen on host \"{}\": {}", host, ::gai_strerror(problem)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> places(found, &::freeaddrinfo);
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next) {
    const int fd = bind_one(*place);
    if (fd >= 0) return BoundAddress(fd, host, port_of(fd));
  }
  return fail(refused(host, port, errno));
}

BoundAddress::BoundAddress(BoundAddress&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), host_(std::move(other.host_)), port_(other.port_) {}

BoundAddress& BoundAddress::operator=(BoundAddress&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(host_, other.host_);
  std::swap(port_, other.port_);
  return *this;
}

BoundAddress::~BoundAddress() {
  if (fd_ >= 0) ::close(fd_);
}

Result<int> BoundAddress::listen() && {
  ESP_CHECK(fd_ >= 0, "an address is listened on once");
  if (::listen(fd_, kBacklog) != 0) return fail(refused(host_, port_, errno));
  return std::exchange(fd_, -1);
}

}  // namespace espalier::net
