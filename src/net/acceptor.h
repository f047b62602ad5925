// What accepts connections for the I/O threads of a server. Internal to the room; includes Asio.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "net/bound_address.h"
#include "net/io_thread.h"

namespace espalier::net {

// Connections go to the threads in turn; accepting happens on the first. Outlives the threads'
// work: they are joined before it is destroyed.
class Acceptor {
 public:
  using Threads = std::vector<std::shared_ptr<IoThread>>;
  // Called on the first thread, with the thread that the socket belongs to.
  using Take =
      std::function<void(boost::asio::ip::tcp::socket socket, const std::shared_ptr<IoThread>& io)>;

  // Listens; `threads`, not empty, need not have been started. kFailedPrecondition where another
  // program listens there.
  static Result<std::unique_ptr<Acceptor>> listen(BoundAddress address, Threads threads, Take take);

  void start();  // once the threads run
  void stop();   // from any thread: no connection is taken any more

 private:
  Acceptor(Threads threads, Take take);
  void accept_next();
  void take_or_close(boost::asio::ip::tcp::socket socket, const std::shared_ptr<IoThread>& io);

  const Threads threads_;
  const Take take_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::atomic<bool> stopping_{false};
  size_t next_thread_ = 0;
};

}  // namespace espalier::net
