// A client's connection of gRPC. Internal to the room; includes Asio and nghttp2's header.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/clock.h"
#include "net/deadline.h"
#include "net/grpc_server.h"
#include "net/http2_library.h"
#include "net/io_thread.h"
#include "net/transport.h"

namespace espalier::net {

class GrpcConnection;

// What the connections of one server share.
struct GrpcShared {
  const Http2Library* h2 = nullptr;
  GrpcServerConfig config;
  std::mutex mutex;  // guards the rest
  std::condition_variable none_open;
  std::shared_ptr<const TlsContext> tls;
  std::unordered_set<std::shared_ptr<GrpcConnection>> open;
  bool stopping = false;
  TimePoint next_warning{};  // of connections that are refused
};

// Everything but the constructor runs on the connection's I/O thread.
class GrpcConnection : public std::enable_shared_from_this<GrpcConnection> {
 public:
  GrpcConnection(Transport transport, std::shared_ptr<IoThread> io,
                 std::shared_ptr<GrpcShared> shared);
  ~GrpcConnection();

  const std::shared_ptr<IoThread>& io() const { return io_; }
  void start();
  void begin_shutdown();  // closes when the calls under way have ended
  void close();           // at once

 private:
  class Call;
  struct Callbacks;  // what nghttp2 calls

  // Every entry that may allocate: what it throws closes the connection.
  template <typename Step>
  void run(const Step& step);
  void begin();
  void on_readable();
  bool read_once();  // false: nothing more can be read now
  void write();      // what nghttp2 and the transport have to send
  bool close_if_done();
  void wait_readable();
  void wait_writable();
  Call* find(int32_t stream);
  void begin_call(int32_t stream);

  const std::shared_ptr<IoThread> io_;  // first: it owns the context of transport
  const std::shared_ptr<GrpcShared> shared_;
  const Http2Library& h2_;
  Transport transport_;
  Deadline deadline_;  // of the client's first frame
  nghttp2_session* session_ = nullptr;
  std::unordered_map<int32_t, std::unique_ptr<Call>> calls_;  // by stream
  std::string output_;                                        // framed; the socket has not taken it
  size_t num_written_ = 0;                                    // of output_
  bool waiting_readable_ = false, waiting_writable_ = false, closed_ = false;
};

}  // namespace espalier::net
