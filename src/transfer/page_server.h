// The prefill server's side: listens on the bootstrap port and sends each room to the decode server
// that requests it with the shared token. A connection carries one room and has a thread; while
// there is nothing to send, a frame a second shows either side that the other one lives.
//
// Thread-safe. Owns its threads; borrows the rooms.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "net/tcp_listener.h"
#include "transfer/frame_stream.h"
#include "transfer/room.h"

namespace espalier::transfer {

// Totals since the start.
struct TransferStats {
  int64_t num_transfers = 0;  // that ended well
  int64_t num_failed = 0;
  int64_t num_bytes = 0;         // of pages
  int64_t num_staged_bytes = 0;  // of these, read from staging memory
  double seconds = 0;  // of the transfers that ended well, from connecting to the first token
  double exposed_seconds = 0;  // of them, from the first token to the reader's last page
};

struct PageServerConfig {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any free one
  std::string token;
  KvShape shape;
  StagingHandle staging;  // of this process, in which rooms' pages may lie; without kind: none
  Duration room_timeout = std::chrono::seconds(300);  // a reader waits so long for its room
  Duration wait_interval = std::chrono::seconds(1);
  Duration silence_max = std::chrono::seconds(10);
  size_t num_connections_max = 1024;
};

class PageServer {
 public:
  // Fails where the address cannot be had.
  static Result<std::unique_ptr<PageServer>> start(const PageServerConfig& config,
                                                   RoomTable& rooms);
  ~PageServer();  // ends all connections

  int port() const { return listener_->port(); }
  TransferStats stats() const;
  size_t num_connections() const;

 private:
  struct Connection {
    explicit Connection(std::unique_ptr<net::ByteStream> s) : stream(std::move(s)) {}
    const std::unique_ptr<net::ByteStream> stream;
    const TimePoint begun = SteadyClock().now();
    std::atomic<bool> is_greeted = false, is_done = false;
    std::thread thread;
  };

  PageServer(const PageServerConfig& config, RoomTable& rooms,
             std::unique_ptr<net::TcpListener> listener);
  void run();
  void add(std::unique_ptr<net::ByteStream> stream);
  void reap(bool all);
  void serve(Connection& connection);
  Status transfer(FrameStream& frames, std::atomic<bool>& is_greeted, TransferStats& sent);
  Result<Hello> greet(FrameStream& frames) const;
  Result<bool> offer_staging(FrameStream& frames, const Hello& hello) const;
  Result<std::shared_ptr<Room>> await_room(FrameStream& frames, const Hello& hello);
  Status send_room(FrameStream& frames, Room& room, bool maps, TransferStats& sent);
  Status send_item(FrameStream& frames, const Room::Item& item, bool maps,
                   TransferStats& sent) const;

  const PageServerConfig config_;
  RoomTable& rooms_;
  const std::unique_ptr<net::TcpListener> listener_;
  std::atomic<bool> is_stopped_ = false;
  mutable std::mutex mutex_;
  std::list<Connection> connections_;
  TransferStats stats_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace espalier::transfer
