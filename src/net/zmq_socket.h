// Sockets of ZeroMQ, by which vLLM and SGLang publish events of their caches. libzmq is loaded when
// the first socket is opened, for most servers open none; a build without its header has none
// (zmq_socket_none.cc).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace espalier::net {

//   kPublish    to every subscriber that is there; what a slow one does not take is dropped for it
//   kSubscribe  to all topics; connects again by itself, and misses what was sent meanwhile
//   kRouter     answers several askers; the first frame of a message names the one it is of or for
//   kAsk        asks one router; several may be asked and answered without taking turns (DEALER)
enum class ZmqKind { kPublish, kSubscribe, kRouter, kAsk };

// Move-only. One thread at a time. Nothing but wait_readable() waits; what has not been sent when
// the socket is destroyed is dropped.
class ZmqSocket {
 public:
  // Of queued messages, for each side; beyond, they are dropped (kRouter, kPublish) or refused.
  static constexpr int kQueuedMax = 100000;
  // Of one received message: a peer that sends more is disconnected.
  static constexpr int64_t kMessageBytesMax = int64_t{256} << 20;

  // kUnavailable, with the package to install, where libzmq is missing.
  static Result<ZmqSocket> open(ZmqKind kind);
  ~ZmqSocket();
  ZmqSocket(ZmqSocket&&) noexcept;
  ZmqSocket& operator=(ZmqSocket&&) noexcept;

  // "tcp://*:5557", "tcp://127.0.0.1:*" (any free port), "ipc:///run/events". kInvalidArgument or
  // kFailedPrecondition (the address is taken) names the endpoint.
  Status bind(const std::string& endpoint);
  // Never waits for the other side to be there.
  Status connect(const std::string& endpoint);
  std::string bound_endpoint() const;  // with the port that was chosen

  // kUnavailable: the queue is full, or nobody is connected to be asked.
  Status send(std::span<const std::string_view> frames);
  // The frames of a message; none: there is no message.
  std::vector<std::string> receive();

 private:
  friend bool wait_readable(std::span<const ZmqSocket* const>, Duration);
  struct Impl;
  explicit ZmqSocket(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// True where one of them, of which there is one at least, has a message or an error; false after
// the timeout.
bool wait_readable(std::span<const ZmqSocket* const> sockets, Duration timeout);

}  // namespace espalier::net
