// One request on its way through the proxy. Internal to the room.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/http.h"
#include "net/upstream.h"
#include "router/forward_plan.h"
#include "router/prefill_call.h"
#include "router/proxy.h"
#include "router/tenant_call.h"

namespace espalier::router {

// The head of the request to the worker: the client's without what belongs to its connection, and
// with the key that workers get: the router's, or where that is empty the client's, or none.
net::UpstreamRequest worker_request(const net::HttpRequest& request, std::string_view request_id,
                                    const std::string& worker_api_key, bool passes_client_key);
// The head of the answer to the client: the worker's without what the server adds itself.
net::Headers client_headers(const net::Headers& headers, std::string_view request_id);

// Workers take a router's word for these headers, so a client's never pass.
bool states_tenant(std::string_view name);

// What a request's body says of it.
struct RoutedCost {
  RoutedRequest request;
  RequestCost cost;
  std::vector<int32_t> ids;  // all of a prompt of text, where workers may get them; else empty
};
RoutedCost routed_cost(const PassedRoute& route, const net::HttpRequest& request,
                       const ProxyConfig& config, bool sends_ids);

// Belongs to the I/O thread of its client's connection. Alive as long as a call or a callback of
// the connection holds it.
class Forwarding final : public net::UpstreamHandler,
                         public std::enable_shared_from_this<Forwarding> {
 public:
  Forwarding(Proxy& proxy, const PassedRoute& route, net::HttpRequest&& request,
             net::ResponsePtr response);
  ~Forwarding() override;

  void begin();
  // The worker of the attempt under way is broken: the attempt ends, unless it is a stream that
  // still comes. From any thread.
  void abandon(uint64_t generation);

  void on_head(int status, net::Headers headers, std::optional<size_t> length) override;
  void on_body(std::string bytes) override;
  void on_end() override;
  void on_failure(Status why) override;

 private:
  void attempt();
  Result<net::UpstreamRequest> begin_prefill(const Lease& serving);
  std::shared_ptr<const std::string> body_for(const TakenIds& taken);
  void prefill_failed(PrefillCall::Failure failure);
  void retry();
  void fail(int status, const Status& why);
  void cut(const Status& why);
  void end_attempt(WorkerOutcome outcome);
  void end_if_silent(uint64_t generation);
  void client_gone();
  void take_head(int status, const net::Headers& headers);
  void start_stream();
  void slow_down();  // where the client does not read
  void finish();     // nothing will come any more

  Proxy& proxy_;
  const PassedRoute& route_;
  net::HttpRequest request_;   // without its body, whose charge it holds
  net::ResponsePtr response_;  // null when it is over
  const std::shared_ptr<net::IoThread> io_;
  const std::string request_id_;
  net::UpstreamRequest to_worker_;
  RoutedCost routed_;
  std::shared_ptr<const std::string> ids_body_;  // as to_worker_'s; null: not made yet, or not here
  TenantCall tenant_;
  ForwardPlan plan_;
  std::vector<WorkerSlot> tried_;
  // Of one worker, or of a pair: then `prefill` is the other half.
  struct Attempt {
    Lease lease;
    std::shared_ptr<net::UpstreamCall> call;
    std::shared_ptr<PrefillCall> prefill;
    TimePoint last_bytes{};   // when whole messages of its stream came
    TimePoint last_paused{};  // when the client was last found not to read
  };
  Attempt attempt_;
  Duration backoff_;

  int status_ = 0;
  net::Headers headers_;
  bool whole_ = false;  // the answer is short: it is sent when it is complete
  bool streaming_ = false;
  std::string type_;  // Content-Type
  std::string body_;  // of a whole answer, or what there is of a stream's next message
};

}  // namespace espalier::router
