#include "net/grpc_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "net/acceptor.h"
#include "net/grpc_connection.h"

namespace espalier::net {

namespace {

constexpr Duration kBetweenWarnings = std::chrono::seconds(10);

// Under the mutex of `shared`.
void warn_of_refusal(GrpcShared& shared) {
  const TimePoint now = std::chrono::steady_clock::now();
  if (now < shared.next_warning) return;
  shared.next_warning = now + kBetweenWarnings;
  log_warning("a connection of gRPC was refused: {} are open, which is the most",
              shared.open.size());
}

}  // namespace

struct GrpcServer::Impl {
  std::shared_ptr<GrpcShared> shared = std::make_shared<GrpcShared>();  // with connections
  std::vector<std::shared_ptr<IoThread>> threads;
  std::unique_ptr<Acceptor> acceptor;
  int port = 0;
  bool stopped = false;  // guarded by the mutex of `shared`

  void take(boost::asio::ip::tcp::socket socket, const std::shared_ptr<IoThread>& io);
};

void GrpcServer::Impl::take(boost::asio::ip::tcp::socket socket,
                            const std::shared_ptr<IoThread>& io) {
  std::shared_ptr<GrpcConnection> connection;
  {
    const std::lock_guard lock(shared->mutex);
    if (shared->stopping) return;  // it is closed
    if (shared->open.size() >= static_cast<size_t>(shared->config.max_connections))
      return warn_of_refusal(*shared);
    std::unique_ptr<Tls> tls;
    if (shared->tls != nullptr) {
      auto accepted = Tls::accept(shared->tls);
      if (!accepted) return log_error("a connection was closed: {}", accepted.error().message());
      tls = std::move(*accepted);
    }
    connection =
        std::make_shared<GrpcConnection>(Transport(std::move(socket), std::move(tls)), io, shared);
    shared->open.insert(connection);
  }
  const MemoryReserveScope reserve;  // it is among those that are open, so it must begin
  io->run([connection] { connection->start(); });
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(GrpcServerConfig config,
                                                      BoundAddress address) {
  if (config.num_threads < 1) return fail(invalid_argument("num_threads must be at least 1"));
  auto impl = std::make_unique<Impl>();
  ESP_ASSIGN_OR_RETURN(impl->shared->h2, Http2Library::load());
  impl->shared->tls = std::move(config.tls);
  for (int i = 0; i < config.num_threads; ++i)
    impl->threads.push_back(std::make_shared<IoThread>());
  impl->shared->config = std::move(config);
  impl->port = address.port();
  ESP_ASSIGN_OR_RETURN(impl->acceptor,
                       Acceptor::listen(std::move(address), impl->threads,
                                        [raw = impl.get()](auto socket, const auto& io) {
                                          raw->take(std::move(socket), io);
                                        }));
  for (size_t i = 0; i < impl->threads.size(); ++i)
    impl->threads[i]->start(fmt::format("esp-grpc-{}", i));
  impl->acceptor->start();
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() { stop(Duration::zero()); }

int GrpcServer::port() const { return impl_->port; }

void GrpcServer::set_tls(std::shared_ptr<const TlsContext> tls) {
  const std::lock_guard lock(impl_->shared->mutex);
  impl_->shared->tls = std::move(tls);
}

void GrpcServer::begin_stop() {
  GrpcShared& shared = *impl_->shared;
  std::vector<std::shared_ptr<GrpcConnection>> open;
  {
    const std::lock_guard lock(shared.mutex);
    if (std::exchange(shared.stopping, true)) return;
    open.assign(shared.open.begin(), shared.open.end());
  }
  impl_->acceptor->stop();
  for (const auto& connection : open)
    connection->io()->post([connection] { connection->begin_shutdown(); });
}

void GrpcServer::stop(Duration timeout) {
  begin_stop();
  GrpcShared& shared = *impl_->shared;
  std::vector<std::shared_ptr<GrpcConnection>> open;
  {
    std::unique_lock lock(shared.mutex);
    if (std::exchange(impl_->stopped, true)) return;
    shared.none_open.wait_for(lock, timeout, [&] { return shared.open.empty(); });
    open.assign(shared.open.begin(), shared.open.end());
  }
  for (const auto& connection : open) connection->io()->post([connection] { connection->close(); });
  for (const auto& io : impl_->threads) io->post([io] { io->finish(); });
  for (const auto& io : impl_->threads) io->join();
}

}  // namespace espalier::net
