// A blocking connection, as it is or under TLS: bytes in and out, with deadlines. What protocols
// (HTTP here, RESP in tiers/, transfer/) are built on.
//
// Not thread-safe, but for interrupt(), resume() and interrupted(). Without TLS one thread may read
// while another one writes.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "net/client_tls.h"

struct addrinfo;
struct sockaddr;

namespace espalier::net {

class Tls;

// Waits until the socket is ready for `events` of poll(), or has failed. kDeadlineExceeded at the
// deadline.
Status wait_ready(int fd, int16_t events, TimePoint deadline);

// Where to, and how.
struct ByteStreamTarget {
  std::string host;  // a name or an address
  int port = 0;
  std::shared_ptr<const TlsContext> tls;  // shared by connections; null: plain TCP
  Duration connect_timeout = std::chrono::seconds(10);
  // Whether an address that the host's name has may be connected to; null: each may.
  std::function<bool(const sockaddr& address)> allow_address;
};

// Failures: kUnavailable: no connection, or it broke; kDeadlineExceeded: a timeout;
// kPermissionDenied: no address is allowed.
class ByteStream {
 public:
  ByteStream();
  explicit ByteStream(int fd);  // owns `fd`, a connected socket that does not block
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  Status connect(const ByteStreamTarget& target);
  bool is_open() const { return fd_ >= 0; }
  void close();
  // Whether the server has closed a connection on which nothing is awaited, or has sent something.
  bool is_stale() const;

  // From any thread: what waits here fails, and what would, until resume(); the peer sees the end.
  void interrupt();
  void resume();
  bool interrupted() const;

  // Every wait fails from then on, but connect()'s.
  void set_deadline(TimePoint deadline) { deadline_ = deadline; }

  // `timeout`: of each wait without a byte.
  Status write_all(std::string_view bytes, Duration timeout);
  // Buffers at least one byte more; false at the end of the stream.
  Result<bool> read_more(Duration timeout);
  // Fills `to`, first with what is buffered, then from the socket without another copy.
  // kUnavailable at the end of the stream.
  Status read_exactly(std::span<char> to, Duration timeout);

  std::string_view buffered() const { return std::string_view(in_).substr(begin_); }
  void consume(size_t n);

 private:
  Status wait(int16_t events, Duration timeout, const char* what);
  Status connect_to(const addrinfo& address, Duration timeout);
  Status agree(const ByteStreamTarget& target);
  Status send_raw(std::string_view bytes, Duration timeout);
  // The number of bytes read into `to`, at least one; 0 at the end of the stream.
  Result<size_t> receive_raw(std::span<char> to, Duration timeout);
  Result<bool> receive_into(std::string& out, Duration timeout);

  mutable std::mutex mutex_;  // of the next two, which interrupt() touches
  int fd_ = -1;
  bool interrupted_ = false;
  TimePoint deadline_ = TimePoint::max();
  std::unique_ptr<Tls> tls_;
  std::string in_;
  size_t begin_ = 0;
};

}  // namespace espalier::net
