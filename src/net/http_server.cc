#include "net/http_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "net/acceptor.h"
#include "net/connection.h"
#include "net/io_thread.h"

namespace espalier::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct HttpServer::Impl {
  std::shared_ptr<ServerShared> shared = std::make_shared<ServerShared>();
  std::vector<std::shared_ptr<IoThread>> threads;
  std::unique_ptr<Acceptor> acceptor;
  int port = 0;
  std::mutex stop_mutex;
  bool stopped = false;

  void take(tcp::socket socket, const std::shared_ptr<IoThread>& io);
  void refuse(tcp::socket socket);
};

void HttpServer::Impl::take(tcp::socket socket, const std::shared_ptr<IoThread>& io) {
  std::unique_lock lock(shared->mutex);
  if (shared->connections_open >= shared->config.max_connections) {
    const bool in_clear = shared->tls == nullptr;
    lock.unlock();
    if (in_clear) refuse(std::move(socket));  // else it is closed: a handshake would take its time
    return;
  }
  std::unique_ptr<Tls> tls;
  if (shared->tls != nullptr) {
    auto accepted = Tls::accept(shared->tls);
    if (!accepted) return log_error("a connection was closed: {}", accepted.error().message());
    tls = std::move(*accepted);
  }
  auto connection =
      std::make_shared<Connection>(Transport(std::move(socket), std::move(tls)), io, shared);
  std::function<void()> start = [connection] {
    run_step(*connection, [&] { connection->start(); });
  };
  ++shared->connections_open;
  ++shared->connections_total;
  lock.unlock();
  try {
    io->run(std::move(start));
  } catch (const std::bad_alloc&) {  // it will not start, so it will not be closed
    lock.lock();
    --shared->connections_open;
    throw;
  }
}

// Best effort: what the socket's buffer takes.
void HttpServer::Impl::refuse(tcp::socket socket) {
  const HttpResponse body = make_error(shared->config, 503, "too many connections");
  const std::string answer = fmt::format(
      "HTTP/1.1 503 {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nRetry-After: "
      "1\r\n"
      "Connection: close\r\n\r\n{}",
      status_reason(503), body.body.size(), body.body);
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(answer), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerConfig config, Router router) {
  ESP_ASSIGN_OR_RETURN(BoundAddress address, BoundAddress::bind(config.host, config.port));
  return start(std::move(config), std::move(router), std::move(address));
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerConfig config, Router router,
                                                      BoundAddress address) {
  if (config.num_threads < 1) return fail(invalid_argument("num_threads must be at least 1"));
  auto impl = std::make_unique<Impl>();
  impl->shared->config = std::move(config);
  impl->shared->tls = impl->shared->config.tls;
  impl->shared->router = std::move(router);
  for (int i = 0; i < impl->shared->config.num_threads; ++i) {
    impl->threads.push_back(std::make_shared<IoThread>());
  }
  impl->port = address.port();
  ESP_ASSIGN_OR_RETURN(impl->acceptor,
                       Acceptor::listen(std::move(address), impl->threads,
                                        [raw = impl.get()](tcp::socket socket, const auto& io) {
                                          raw->take(std::move(socket), io);
                                        }));
  for (size_t i = 0; i < impl->threads.size(); ++i) {
    impl->threads[i]->start(fmt::format("esp-io-{}", i));
  }
  impl->acceptor->start();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

void HttpServer::set_tls(std::shared_ptr<const TlsContext> tls) {
  std::lock_guard lock(impl_->shared->mutex);
  impl_->shared->tls = std::move(tls);
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { stop(Duration::zero()); }

int HttpServer::port() const { return impl_->port; }

HttpServerStats HttpServer::stats() const {
  const ServerShared& s = *impl_->shared;
  HttpServerStats out;
  out.connections_total = s.connections_total;
  out.requests_total = s.requests_total;
  out.dropped_slow_total = s.dropped_slow_total;
  out.socket_writes_total = s.socket_writes_total;
  std::lock_guard lock(impl_->shared->mutex);
  out.connections_open = s.connections_open;
  return out;
}

void HttpServer::stop(Duration timeout) {
  std::lock_guard lock(impl_->stop_mutex);
  if (impl_->stopped) return;
  impl_->stopped = true;
  for (const auto& io : impl_->threads) ESP_CHECK(!io->in_thread(), "stop() on an I/O thread");
  ServerShared& shared = *impl_->shared;
  shared.stopping = true;
  impl_->acceptor->stop();
  for (const auto& io : impl_->threads) {
    io->post([io] {
      for (const auto& connection : io->connections()) connection->begin_shutdown();
    });
  }
  {
    std::unique_lock open_lock(shared.mutex);
    shared.none_open.wait_for(open_lock, timeout, [&] { return shared.connections_open == 0; });
  }
  for (const auto& io : impl_->threads) io->post([io] { io->finish(); });
  for (const auto& io : impl_->threads) io->join();
}

}  // namespace espalier::net
