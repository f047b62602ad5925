// One request that Envoy asks a worker for. Internal to the room.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "net/grpc_server.h"
#include "router/ext_proc.h"
#include "router/ext_proc_messages.h"
#include "router/route_table.h"
#include "router/tenant_call.h"

namespace espalier::router {

// What the calls of one picker share. Immutable but for the counters.
struct ExtProcShared {
  struct Route {
    PassedRoute route;
    net::Admission admit;  // may be null
  };
  ExtProcShared(ExtProcConfig config, const ProxyConfig& proxy, Dispatcher& dispatcher);

  const ExtProcConfig config;
  const ProxyConfig& proxy;
  Dispatcher& dispatcher;
  std::map<std::string, Route, std::less<>> routes;  // by "METHOD /path"
  std::atomic<int64_t> requests{0}, picks{0}, refused{0}, open{0}, ids_sent{0};
  std::atomic<bool> warned{false};  // of a body mode by which prompts are not seen
};

// The worker is chosen when the prompt is known: with the last part of the body where Envoy sends
// it, else with the head. The lease on it ends with the call, which Envoy ends with the answer (or
// with its head, where it does not send the body).
class ExtProcCall final : public net::GrpcHandler {
 public:
  explicit ExtProcCall(ExtProcShared& shared);
  ~ExtProcCall() override;

  void on_message(net::GrpcCall& call, std::string_view message) override;
  void on_end(net::GrpcCall& call) override;

 private:
  void take_head(net::GrpcCall& call, ExtProcMessage& message);
  bool admit(net::GrpcCall& call);
  void take_body(net::GrpcCall& call, const ExtProcMessage& message);
  bool pick(net::GrpcCall& call);
  void put_ids(const IdsPlace& place, std::span<const int32_t> ids);
  void send_body(net::GrpcCall& call, bool ends);
  void answer_with_pick(net::GrpcCall& call, ExtProcPhase phase);
  void take_answer_head(net::GrpcCall& call, ExtProcMessage& message);
  void take_answer_body(net::GrpcCall& call, const ExtProcMessage& message);
  void refuse(net::GrpcCall& call, const net::HttpResponse& answer);
  HeaderChanges worker_headers() const;

  ExtProcShared& shared_;
  const ExtProcShared::Route* route_ = nullptr;
  net::HttpRequest request_;
  std::optional<std::vector<std::string>> subset_;
  BodyMode request_body_ = BodyMode::kBuffered, response_body_ = BodyMode::kNone;
  std::optional<TenantCall> tenant_;
  Lease lease_;
  std::string endpoints_;  // that were picked; "": none yet
  int status_ = 0;         // of the answer; 0: none has begun
  bool retry_later_ = false;
  std::string type_;  // the answer's Content-Type
  std::string rest_;  // of a stream's message that is not complete
  bool refused_ = false;
  bool has_other_body_ = false;  // than the client's: ids are in place of text
};

}  // namespace espalier::router
