// For builds without ZeroMQ's header: no socket is ever opened.
#include <utility>

#include "net/zmq_socket.h"

namespace espalier::net {

struct ZmqSocket::Impl {};

ZmqSocket::ZmqSocket(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ZmqSocket::~ZmqSocket() = default;
ZmqSocket::ZmqSocket(ZmqSocket&&) noexcept = default;
ZmqSocket& ZmqSocket::operator=(ZmqSocket&&) noexcept = default;

namespace {

Status no_zmq() {
  return error(StatusCode::kUnavailable,
               "this build has no ZeroMQ: build it again with its header (Debian: apt-get install "
               "libzmq3-dev)");
}

}  // namespace

Result<ZmqSocket> ZmqSocket::open(ZmqKind) { return fail(no_zmq()); }
Status ZmqSocket::bind(const std::string&) { return no_zmq(); }
Status ZmqSocket::connect(const std::string&) { return no_zmq(); }
std::string ZmqSocket::bound_endpoint() const { return ""; }
Status ZmqSocket::send(std::span<const std::string_view>) { return no_zmq(); }
std::vector<std::string> ZmqSocket::receive() { return {}; }
bool wait_readable(std::span<const ZmqSocket* const>, Duration) { return false; }

}  // namespace espalier::net
