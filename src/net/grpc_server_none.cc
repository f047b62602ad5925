// A build without nghttp2's header: there is no server of gRPC.
#include "net/grpc_server.h"

namespace espalier::net {

struct GrpcServer::Impl {};

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(GrpcServerConfig, BoundAddress) {
  return fail(
      error(StatusCode::kUnavailable,
            "this build speaks no HTTP/2: install nghttp2's header (Debian: apt-get install "
            "libnghttp2-dev), and configure and build again"));
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() = default;
int GrpcServer::port() const { return 0; }
void GrpcServer::set_tls(std::shared_ptr<const TlsContext>) {}
void GrpcServer::begin_stop() {}
void GrpcServer::stop(Duration) {}

}  // namespace espalier::net
