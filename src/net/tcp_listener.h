// What accepts connections of protocols that are no HTTP.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "net/byte_stream.h"

namespace espalier::net {

class TcpListener {
 public:
  static Result<std::unique_ptr<TcpListener>> listen(const std::string& host, int port);
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  int port() const { return port_; }

  // The next connection; null where none has come within `timeout`, or none could be taken.
  std::unique_ptr<ByteStream> accept(Duration timeout);
  // accept() returns null at once from now on, one in progress too. Thread-safe.
  void shutdown();

 private:
  TcpListener(int fd, int port) : fd_(fd), port_(port) {}

  const int fd_;
  const int port_;
};

}  // namespace espalier::net
