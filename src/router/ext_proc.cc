#include "router/ext_proc.h"

#include <algorithm>
#include <utility>

#include "router/ext_proc_call.h"
#include "router/protobuf.h"

namespace espalier::router {

namespace {

constexpr std::string_view kProcessor = "envoy.service.ext_proc.v3.ExternalProcessor";

// grpc.health.v1.Health/Check: HealthCheckRequest of service = 1, HealthCheckResponse of status =
// 1, which is 1 (SERVING) or 2 (NOT_SERVING).
class HealthCall final : public net::GrpcHandler {
 public:
  explicit HealthCall(const Dispatcher& dispatcher) : dispatcher_(dispatcher) {}

  void on_message(net::GrpcCall& call, std::string_view message) override {
    ProtoReader reader(message);
    std::string_view service;
    for (ProtoField field; reader.next(field);)
      if (field.number == 1) service = field.bytes;
    const bool is_alive = service.empty() || service == "liveness";
    if (!is_alive && service != "readiness" && service != kProcessor)
      return call.finish(net::GrpcStatus::kNotFound, fmt::format("no service {}", service));
    std::string answer;
    put_number(answer, 1, is_alive || has_healthy_worker() ? 1 : 2);
    call.send(answer);
    call.finish(net::GrpcStatus::kOk, "");
  }
  void on_end(net::GrpcCall& call) override { call.finish(net::GrpcStatus::kOk, ""); }

 private:
  bool has_healthy_worker() const {
    return std::ranges::any_of(dispatcher_.workers(), [](const WorkerInfo& worker) {
      return worker.state == WorkerState::kHealthy;
    });
  }

  const Dispatcher& dispatcher_;
};

}  // namespace

struct ExtProc::Impl {
  std::unique_ptr<ExtProcShared> shared;
  std::unique_ptr<net::GrpcServer> server;  // last: it is stopped first
};

Result<std::unique_ptr<ExtProc>> ExtProc::start(ExtProcConfig config, const ProxyConfig& proxy,
                                                Dispatcher& dispatcher, net::BoundAddress address) {
  net::GrpcServerConfig grpc;
  grpc.num_threads = config.num_threads;
  grpc.max_message_bytes = config.max_body_bytes + (size_t{1} << 20);
  grpc.max_pending_bytes = 2 * grpc.max_message_bytes;
  grpc.tls = config.tls;
  auto impl = std::make_unique<Impl>();
  impl->shared = std::make_unique<ExtProcShared>(std::move(config), proxy, dispatcher);
  grpc.methods[fmt::format("/{}/Process", kProcessor)] = [shared = impl->shared.get()] {
    return std::make_unique<ExtProcCall>(*shared);
  };
  grpc.methods["/grpc.health.v1.Health/Check"] = [&dispatcher] {
    return std::make_unique<HealthCall>(dispatcher);
  };
  ESP_ASSIGN_OR_RETURN(impl->server, net::GrpcServer::start(std::move(grpc), std::move(address)));
  return std::unique_ptr<ExtProc>(new ExtProc(std::move(impl)));
}

ExtProc::ExtProc(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExtProc::~ExtProc() { stop(Duration::zero()); }

int ExtProc::port() const { return impl_->server->port(); }

ExtProcStats ExtProc::stats() const {
  const ExtProcShared& shared = *impl_->shared;
  return {shared.requests, shared.picks, shared.refused, shared.open, shared.ids_sent};
}

void ExtProc::set_tls(std::shared_ptr<const net::TlsContext> tls) {
  impl_->server->set_tls(std::move(tls));
}

void ExtProc::begin_stop() { impl_->server->begin_stop(); }
void ExtProc::stop(Duration timeout) { impl_->server->stop(timeout); }

}  // namespace espalier::router
