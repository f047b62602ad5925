#include "net/tcp_listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "net/bound_address.h"

namespace espalier::net {

Result<std::unique_ptr<TcpListener>> TcpListener::listen(const std::string& host, int port) {
  ESP_ASSIGN_OR_RETURN(BoundAddress address, BoundAddress::bind(host, port));
  const int bound_port = address.port();
  ESP_ASSIGN_OR_RETURN(const int fd, std::move(address).listen());
  return std::unique_ptr<TcpListener>(new TcpListener(fd, bound_port));
}

TcpListener::~TcpListener() { ::close(fd_); }

void TcpListener::shutdown() { (void)::shutdown(fd_, SHUT_RDWR); }

std::unique_ptr<ByteStream> TcpListener::accept(Duration timeout) {
  if (!wait_ready(fd_, POLLIN, SteadyClock().now() + timeout).ok()) return nullptr;
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) return std::make_unique<ByteStream>(fd);
  // Without descriptors or memory the connection stays ready to be accepted.
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
    ::poll(nullptr, 0, 100);
  return nullptr;
}

}  // namespace espalier::net
