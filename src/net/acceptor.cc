#include "net/acceptor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"

namespace espalier::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

Acceptor::Acceptor(Threads threads, Take take)
    : threads_(std::move(threads)), take_(std::move(take)), acceptor_(threads_[0]->context()) {}

Result<std::unique_ptr<Acceptor>> Acceptor::listen(BoundAddress address, Threads threads,
                                                   Take take) {
  std::unique_ptr<Acceptor> out(new Acceptor(std::move(threads), std::move(take)));
  const std::string where = fmt::format("{}:{}", address.host(), address.port());
  ESP_ASSIGN_OR_RETURN(const int fd, std::move(address).listen());
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  error_code ec;
  const bool known = ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0;
  out->acceptor_.assign(known && bound.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd, ec);
  if (!ec) return out;
  ::close(fd);
  return fail(invalid_argument("cannot listen on {}: {}", where, ec.message()));
}

void Acceptor::start() {
  threads_[0]->post([this] { accept_next(); });
}

void Acceptor::stop() {
  stopping_ = true;
  threads_[0]->post([this] {
    error_code ignored;
    acceptor_.close(ignored);
  });
}

void Acceptor::accept_next() {
  if (stopping_) return;
  const std::shared_ptr<IoThread>& io = threads_[next_thread_++ % threads_.size()];
  acceptor_.async_accept(io->context(), [this, io](error_code ec, tcp::socket socket) {
    if (!ec) {
      take_or_close(std::move(socket), io);
    } else if (ec == asio::error::operation_aborted || stopping_) {
      return;
    } else if (ec == asio::error::no_descriptors || ec == asio::error::no_memory ||
               ec == asio::error::no_buffer_space ||
               ec == error_code(ENFILE, boost::system::system_category())) {
      log_warning("accept failed why=\"{}\" retry_ms=100", ec.message());
      threads_[0]->post_after(std::chrono::milliseconds(100), [this] { accept_next(); });
      return;
    }
    accept_next();
  });
}

// Accepting goes on where memory ends: this client finds its connection closed.
void Acceptor::take_or_close(tcp::socket socket, const std::shared_ptr<IoThread>& io) {
  try {
    take_(std::move(socket), io);
  } catch (const std::bad_alloc&) {
    const MemoryReserveScope reserve;
    log_error("a connection was closed: no memory for it");
  }
}

}  // namespace espalier::net
