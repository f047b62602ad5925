#include "router/ext_proc_call.h"

#include <boost/beast/core/string.hpp>
#include <charconv>
#include <utility>

#include "base/log.h"
#include "router/error_bodies.h"
#include "router/forwarding.h"
#include "tenants/api_key.h"

namespace espalier::router {

namespace {

using Phase = ExtProcPhase;

constexpr size_t kBodyPartBytes = 60 << 10;      // of a message to Envoy
constexpr size_t kStreamRestBytesMax = 1 << 20;  // of a stream's message that is not complete

// "/v1/models?x=1" as a server reads it. False where the path cannot be decoded.
bool read_target(std::string_view target, net::HttpRequest& out) {
  const size_t mark = target.find('?');
  if (mark != std::string_view::npos) out.query = target.substr(mark + 1);
  auto path = net::percent_decode(target.substr(0, mark), false);
  if (path) out.path = std::move(*path);
  return path.has_value();
}

bool is_rate_limit(std::string_view name) {
  return boost::beast::iequals(name.substr(0, 12), "x-ratelimit-");
}

int status_of(const net::Headers& headers) {
  const std::string* const text = net::find_header(headers, ":status");
  int status = 0;
  if (text != nullptr) std::from_chars(text->data(), text->data() + text->size(), status);
  return status;
}

}  // namespace

ExtProcShared::ExtProcShared(ExtProcConfig c, const ProxyConfig& p, Dispatcher& d)
    : config(std::move(c)), proxy(p), dispatcher(d) {
  const auto add = [&](const PassedRoute& route) {
    routes[fmt::format("{} {}", route.method, route.pattern)] = {
        route, config.admission ? config.admission(route.errors) : nullptr};
  };
  for (const PassedRoute& route : passed_routes()) add(route);
  add({"GET", "/v1/models", ErrorStyle::kOpenAi, {}, false});
}

ExtProcCall::ExtProcCall(ExtProcShared& shared) : shared_(shared) { ++shared.open; }

ExtProcCall::~ExtProcCall() {
  // A busy worker says when to come again; what Envoy answers for one that is gone does not.
  const bool is_busy = status_ == 429 || (status_ == 503 && retry_later_);
  lease_.end(status_ == 0     ? WorkerOutcome::kAbandoned
             : is_busy        ? WorkerOutcome::kBusy
             : status_ >= 500 ? WorkerOutcome::kFailure
                              : WorkerOutcome::kSuccess);
  --shared_.open;
}

void ExtProcCall::on_message(net::GrpcCall& call, std::string_view bytes) {
  Result<ExtProcMessage> message = read_ext_proc_message(bytes);
  if (!message) return call.finish(net::GrpcStatus::kInternal, message.error().message());
  if (message->is_observed)
    return call.finish(net::GrpcStatus::kUnimplemented,
                       "an endpoint picker answers: set observability_mode to false");
  if (refused_) return;
  if (message->request_body) request_body_ = *message->request_body;
  if (message->response_body) response_body_ = *message->response_body;
  if (message->subset) subset_ = std::move(message->subset);
  switch (message->phase) {
    case Phase::kRequestHeaders:
      return take_head(call, *message);
    case Phase::kRequestBody:
      return take_body(call, *message);
    case Phase::kRequestTrailers:
      if (request_body_ == BodyMode::kFullDuplex && endpoints_.empty()) {
        if (route_ == nullptr || !pick(call)) return;
        answer_with_pick(call, Phase::kRequestHeaders);
        send_body(call, false);
      }
      return call.send(ext_proc_answer(message->phase));
    case Phase::kResponseHeaders:
      return take_answer_head(call, *message);
    case Phase::kResponseBody:
      return take_answer_body(call, *message);
    case Phase::kResponseTrailers:
      if (tenant_) tenant_->on_end();
      return call.send(ext_proc_answer(message->phase));
    case Phase::kNone:
      return call.finish(net::GrpcStatus::kUnimplemented,
                         "the message is of no phase that is known here");
  }
}

void ExtProcCall::on_end(net::GrpcCall& call) { call.finish(net::GrpcStatus::kOk, ""); }

void ExtProcCall::take_head(net::GrpcCall& call, ExtProcMessage& message) {
  ++shared_.requests;
  request_.headers = std::move(message.headers);
  request_.body_charge = MemoryCharge(shared_.config.bodies);
  if (!admit(call)) return;
  if (request_body_ == BodyMode::kFullDuplex && !message.ends) return;  // the body decides
  const bool has_body = !message.ends && (request_body_ == BodyMode::kBuffered ||
                                          request_body_ == BodyMode::kBufferedPartial);
  if (has_body) return call.send(ext_proc_answer(Phase::kRequestHeaders));
  if (!message.ends && !shared_.warned.exchange(true))
    log_warning(
        "Envoy sends the picker no whole bodies, so prompts do not count: set request_body_mode of "
        "its filter ext_proc to FULL_DUPLEX_STREAMED or BUFFERED");
  if (pick(call)) answer_with_pick(call, Phase::kRequestHeaders);
}

// Whether the request has a route and may take it.
bool ExtProcCall::admit(net::GrpcCall& call) {
  const std::string* const method = request_.header(":method");
  const std::string* const target = request_.header(":path");
  if (method != nullptr) request_.method = *method;
  const bool readable = target != nullptr && read_target(*target, request_);
  const auto found = shared_.routes.find(fmt::format("{} {}", request_.method, request_.path));
  if (!readable || found == shared_.routes.end()) {
    refuse(call, error_answer(ErrorStyle::kOpenAi, 404,
                              fmt::format("there is no {} {} here: it is not passed to workers",
                                          request_.method, request_.path)));
    return false;
  }
  route_ = &found->second;
  if (route_->admit == nullptr) return true;
  const auto refused = route_->admit(request_);
  if (refused) refuse(call, *refused);
  return !refused;
}

void ExtProcCall::take_body(net::GrpcCall& call, const ExtProcMessage& message) {
  if (route_ == nullptr) return;
  if (!endpoints_.empty()) {  // chosen by the head; Envoy sends the parts on itself
    return call.send(ext_proc_answer(Phase::kRequestBody));
  }
  const size_t size = request_.body.size() + message.body.size();
  if (size > shared_.config.max_body_bytes)
    return refuse(call, error_answer(route_->route.errors, 413,
                                     fmt::format("the body has more than {} bytes",
                                                 shared_.config.max_body_bytes)));
  if (!request_.body_charge.resize(static_cast<int64_t>(size)))
    return refuse(
        call, error_answer(route_->route.errors, 503, "too many bytes of requests are under way"));
  request_.body += message.body;
  if (request_body_ == BodyMode::kFullDuplex && !message.ends) return;
  if (!pick(call)) return;
  if (request_body_ != BodyMode::kFullDuplex) return answer_with_pick(call, Phase::kRequestBody);
  answer_with_pick(call, Phase::kRequestHeaders);
  send_body(call, true);
}

bool ExtProcCall::pick(net::GrpcCall& call) {
  const PassedRoute& route = route_->route;
  // Envoy may send a request on to a fallback, of which nothing is known here.
  const bool may_send_ids = shared_.proxy.sends_ids && request_body_ == BodyMode::kFullDuplex &&
                            shared_.config.fallbacks == 0;
  auto [routed, cost, ids] = routed_cost(route, request_, shared_.proxy, may_send_ids);
  tenant_.emplace(tenant_of(shared_.proxy.tenants, request_), cost, route.computes);
  if (const auto refused = tenant_->admit(route.errors, std::chrono::steady_clock::now())) {
    refuse(call, *refused);
    return false;
  }
  routed.endpoints = std::move(subset_);
  routed.num_fallbacks = shared_.config.fallbacks;
  Result<Lease> lease = shared_.dispatcher.assign(routed);
  if (!lease) {
    tenant_->on_refused();
    refuse(call, error_answer(route.errors, 503, lease.error().message()));
    return false;
  }
  ++shared_.picks;
  lease_ = std::move(*lease);
  endpoints_ = endpoint_text(lease_.endpoint());
  for (const net::Endpoint& other : lease_.fallbacks()) endpoints_ += "," + endpoint_text(other);
  if (!ids.empty() && route.ids->is_taken(lease_.takes_ids())) put_ids(*route.ids, ids);
  return true;
}

// The body is sent from here, so it may be another than the client's.
void ExtProcCall::put_ids(const IdsPlace& place, std::span<const int32_t> ids) {
  std::string body = body_with_ids(place, request_.body, ids);
  const auto bytes = static_cast<int64_t>(request_.body.size() + body.size());
  if (body.empty() || !request_.body_charge.resize(bytes)) return;
  request_.body = std::move(body);
  has_other_body_ = true;
  ++shared_.ids_sent;
}

void ExtProcCall::answer_with_pick(net::GrpcCall& call, ExtProcPhase phase) {
  call.send(ext_proc_answer(phase, worker_headers(), endpoints_));
  if (request_body_ == BodyMode::kFullDuplex) return;  // its body is sent from here
  std::string().swap(request_.body);
  request_.body_charge.release();
}

// As Forwarding changes them.
HeaderChanges ExtProcCall::worker_headers() const {
  HeaderChanges out;
  out.set.emplace_back(kEndpointHeader, endpoints_);
  if (has_other_body_) out.removed.emplace_back("content-length");
  const std::string& key = shared_.proxy.worker_api_key;
  const bool hides_key = !key.empty() || shared_.proxy.tenants != nullptr;
  if (!key.empty()) {
    out.set.emplace_back("authorization", "Bearer " + key);
    tenant_->state(out.set);
  }
  for (const auto& [name, value] : request_.headers) {
    const bool is_key =
        boost::beast::iequals(name, "authorization") || boost::beast::iequals(name, "x-api-key");
    const bool goes = states_tenant(name) || (is_key && hides_key);
    if (goes && net::find_header(out.set, name) == nullptr) out.removed.push_back(name);
  }
  return out;
}

void ExtProcCall::send_body(net::GrpcCall& call, bool ends) {
  std::string_view left = request_.body;
  do {
    const std::string_view part = left.substr(0, kBodyPartBytes);
    left.remove_prefix(part.size());
    call.send(ext_proc_body_part(Phase::kRequestBody, part, ends && left.empty()));
  } while (!left.empty());
  std::string().swap(request_.body);
  request_.body_charge.release();
}

void ExtProcCall::take_answer_head(net::GrpcCall& call, ExtProcMessage& message) {
  status_ = status_of(message.headers);
  HeaderChanges changes;
  const std::string* const type = net::find_header(message.headers, "content-type");
  if (type != nullptr) type_ = *type;
  retry_later_ = net::find_header(message.headers, "retry-after") != nullptr;
  if (tenant_) {
    std::vector<std::string> before;
    for (const auto& [name, value] : message.headers)
      if (is_rate_limit(name)) before.push_back(name);
    tenant_->on_head(status_, type_, message.headers, std::chrono::steady_clock::now());
    for (auto& header : message.headers)
      if (is_rate_limit(header.first)) changes.set.push_back(std::move(header));
    for (std::string& name : before)
      if (net::find_header(changes.set, name) == nullptr && shared_.proxy.tenants != nullptr)
        changes.removed.push_back(std::move(name));
    if (message.ends) tenant_->on_end();
  }
  call.send(ext_proc_answer(Phase::kResponseHeaders, changes));
}

// Usage is read from whole messages of a stream.
void ExtProcCall::take_answer_body(net::GrpcCall& call, const ExtProcMessage& message) {
  if (tenant_ && shared_.proxy.tenants != nullptr) {
    rest_ += message.body;
    const size_t num_whole = message.ends ? rest_.size() : num_whole_bytes(type_, rest_);
    tenant_->on_bytes(std::string_view(rest_).substr(0, num_whole));
    rest_.erase(0, rest_.size() - num_whole > kStreamRestBytesMax ? rest_.size() : num_whole);
    if (message.ends) tenant_->on_end();
  }
  if (response_body_ != BodyMode::kFullDuplex)
    return call.send(ext_proc_answer(Phase::kResponseBody));
  std::string_view left = message.body;
  do {
    const std::string_view part = left.substr(0, kBodyPartBytes);
    left.remove_prefix(part.size());
    call.send(ext_proc_body_part(Phase::kResponseBody, part, message.ends && left.empty()));
  } while (!left.empty());
}

void ExtProcCall::refuse(net::GrpcCall& call, const net::HttpResponse& answer) {
  ++shared_.refused;
  refused_ = true;
  std::string().swap(request_.body);
  request_.body_charge.release();
  call.send(ext_proc_immediate_answer(answer));
}

}  // namespace espalier::router
