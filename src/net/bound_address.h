// An address of this system, bound before anything is served there.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace espalier::net {

// Bound, not listened on: connections are refused, and no other program can begin to listen there
// unseen. Move-only; gives the address up when destroyed.
class BoundAddress {
 public:
  // The first address of `host` (an address or a name) that can be bound. kFailedPrecondition when
  // the port is taken, kPermissionDenied when this user may not have it, kInvalidArgument when the
  // host cannot be bound. Port 0: any free one.
  static Result<BoundAddress> bind(const std::string& host, int port);

  BoundAddress(BoundAddress&& other) noexcept;
  BoundAddress& operator=(BoundAddress&& other) noexcept;
  ~BoundAddress();

  const std::string& host() const { return host_; }
  int port() const { return port_; }

  // Begins to listen; the descriptor is the caller's. Fails like bind() where another program that
  // had bound the same address listens by now. REQUIRES: called once.
  Result<int> listen() &&;

 private:
  BoundAddress(int fd, std::string host, int port) : fd_(fd), host_(std::move(host)), port_(port) {}

  int fd_ = -1;
  std::string host_;
  int port_ = 0;
};

}  // namespace espalier::net
