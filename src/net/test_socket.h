// A raw client for tests: writes any bytes, reads what comes. A signal that interrupts a wait (a
// fuzzer's clock sends one every few seconds) is not taken for the connection's end, nor is a
// process that was stopped meanwhile taken for a server that does not answer.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace espalier::net {

// How much longer to wait. Time is counted in slices, each for no more than it was to last: where
// the whole process is stopped for a minute, or its clock jumps, one slice is lost and the other
// side still gets its time.
class Patience {
 public:
  explicit Patience(std::chrono::milliseconds timeout) : left_(timeout) {}
  bool is_over() const { return left_.count() <= 0; }
  std::chrono::milliseconds slice() const { return std::min(left_, kSliceMax); }
  void spend(std::chrono::milliseconds waited) { left_ -= std::min(waited, slice()); }

 private:
  static constexpr std::chrono::milliseconds kSliceMax{500};
  std::chrono::milliseconds left_;
};

// A socket that listens, and its port; -1 where none could be had. The caller closes it.
inline std::pair<int, int> listen_on_loopback() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(fd, 16) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    return {fd, ntohs(address.sin_port)};
  ::close(fd);
  return {-1, -1};
}

class TestSocket {
 public:
  // `from`: the address it calls from, in the host's byte order; 0: any. Not connected where it
  // cannot be had.
  explicit TestSocket(int port, int receive_buffer = 0, uint32_t from = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (from != 0) {
      sockaddr_in caller{};
      caller.sin_family = AF_INET;
      caller.sin_addr.s_addr = htonl(from);
      if (::bind(fd_, reinterpret_cast<sockaddr*>(&caller), sizeof caller) != 0) return;
    }
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ||
                 (errno == EINTR && connected_after_signal());
  }
  TestSocket(TestSocket&& other) noexcept : fd_(other.fd_), connected_(other.connected_) {
    other.fd_ = -1;
  }
  TestSocket& operator=(TestSocket&&) = delete;
  ~TestSocket() { close(); }

  bool connected() const { return connected_; }
  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void shut_sending() { ::shutdown(fd_, SHUT_WR); }

  bool write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Reads until `done(text)`, the end of the stream, or the timeout; `at_end` is set by the second.
  template <typename Done>
  std::string read_until(Done done, std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
    using std::chrono::steady_clock;
    Patience patience(timeout);
    std::string text;
    at_end_ = false;
    while (!done(text) && !patience.is_over()) {
      pollfd p{fd_, POLLIN, 0};
      const auto begin = steady_clock::now();
      const int ready = ::poll(&p, 1, static_cast<int>(patience.slice().count()));
      const int why = errno;
      patience.spend(std::chrono::ceil<std::chrono::milliseconds>(steady_clock::now() - begin));
      if (ready == 0 || (ready < 0 && why == EINTR)) continue;
      if (ready < 0) break;
      char chunk[16 << 10];
      const ssize_t n = ::recv(fd_, chunk, sizeof chunk, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        at_end_ = true;
        break;
      }
      text.append(chunk, static_cast<size_t>(n));
    }
    return text;
  }
  std::string read_to_end(std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
    return read_until([](const std::string&) { return false; }, timeout);
  }
  bool at_end() const { return at_end_; }

 private:
  // An interrupted connect() goes on by itself.
  bool connected_after_signal() {
    pollfd p{fd_, POLLOUT, 0};
    while (::poll(&p, 1, -1) < 0) {
      if (errno != EINTR) return false;
    }
    int problem = 0;
    socklen_t size = sizeof problem;
    return ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &problem, &size) == 0 && problem == 0;
  }

  int fd_ = -1;
  bool connected_ = false;
  bool at_end_ = false;
};

}  // namespace espalier::net
