// A plain TCP connection that threads read and write while they wait, for protocols that are no
// HTTP, and what accepts such connections.
//
// One thread reads and one writes at a time; shutdown() may be called from any. The descriptors
// close with the objects, which no call may be using then.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "net/bound_address.h"

namespace espalier::net {

class TcpStream {
 public:
  // Owns `fd`, a connected socket.
  explicit TcpStream(int fd);
  ~TcpStream();
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  // kUnavailable where no server answers at the address within `timeout`.
  static Result<std::unique_ptr<TcpStream>> connect(const std::string& host, int port,
                                                    Duration timeout);

  // Reads or writes all of the bytes. kUnavailable when the connection is closed or reset, or was
  // shut down; kDeadlineExceeded when no byte moves for `silence_max`.
  Status read(std::span<std::byte> to, Duration silence_max);
  Status write(std::span<const std::byte> bytes, Duration silence_max);

  // Ends all reads and writes, those in progress too, and lets the peer know.
  void shutdown();

 private:
  const int fd_;
};

class TcpListener {
 public:
  static Result<std::unique_ptr<TcpListener>> listen(const std::string& host, int port);
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  int port() const { return port_; }

  // The next connection; null where none has come within `timeout`, or none could be taken.
  std::unique_ptr<TcpStream> accept(Duration timeout);
  // accept() returns null at once from now on, one in progress too. Thread-safe.
  void shutdown();

 private:
  TcpListener(int fd, int port) : fd_(fd), port_(port) {}

  const int fd_;
  const int port_;
};

}  // namespace espalier::net
