#include "router/forwarding.h"

#include <algorithm>
#include <array>
#include <boost/beast/core/string.hpp>
#include <random>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "router/error_bodies.h"

namespace espalier::router {

using boost::beast::iequals;

namespace {

constexpr size_t kMessageBytesMax = 1 << 20;    // of a stream's message that is not complete
constexpr size_t kWholeBytesMax = 256 << 10;    // an answer up to here is sent in one piece
constexpr size_t kPendingBytesMax = 512 << 10;  // unread by the client: the worker is not read
constexpr Duration kPauseStep = std::chrono::milliseconds(5);
// A broken worker's stream goes on as long as it is never silent for so long.
constexpr Duration kSilenceMax = std::chrono::seconds(1);

// Of one connection (RFC 9110, 7.6.1), and what each side writes itself.
constexpr std::array<std::string_view, 10> kOwnHeaders = {
    "Connection",        "Keep-Alive", "Proxy-Connection", "TE",   "Trailer",
    "Transfer-Encoding", "Upgrade",    "Content-Length",   "Host", "Expect"};

bool is_own(std::string_view name) {
  return std::ranges::any_of(kOwnHeaders, [&](std::string_view own) {
    return iequals({own.data(), own.size()}, {name.data(), name.size()});
  });
}

std::string new_request_id() {
  thread_local Rng rng(std::random_device{}() | uint64_t{std::random_device{}()} << 32);
  return fmt::format("{:016x}{:016x}", rng(), rng());
}

std::string request_id_of(const net::HttpRequest& request) {
  const std::string* const given = request.header("X-Request-Id");
  return given != nullptr && !given->empty() ? *given : new_request_id();
}

// The path with what may not stand in a request line as %XX.
std::string encode_path(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~!$&'()*+,;=:@/").find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

// Whose prompts share nothing with those of other keys.
std::string_view key_header_of(const net::HttpRequest& request) {
  for (const char* name : {"Authorization", "X-Api-Key"})
    if (const std::string* const key = request.header(name); key != nullptr) return *key;
  return "";
}

// As the workers name a prompt's first block apart: where a name holds what divides the two, its
// tokens are not looked for.
PromptTokens tokens_of(const RequestFacts& facts, const TokenizedPrompt& text) {
  PromptTokens out;
  if (facts.extra_key.find_first_of("/\\") != std::string::npos) return out;
  out.ids = facts.has_text ? text.ids : facts.ids();
  out.extra = facts.extra_key;
  if (!facts.cache_salt.empty()) out.extra += "/" + facts.cache_salt;
  return out;
}

}  // namespace

bool states_tenant(std::string_view name) {
  return iequals(name.substr(0, kTenantHeader.size()), kTenantHeader);
}

RoutedCost routed_cost(const PassedRoute& route, const net::HttpRequest& request,
                       const ProxyConfig& config, bool sends_ids) {
  RequestFacts facts = read_facts(request.body, route.prompt_fields);
  const RequestCost cost = request_cost(facts);
  if (const std::string* const session = request.header("X-Session-Id"); session != nullptr)
    facts.session = *session;
  const bool may_send_ids = sends_ids && route.ids != nullptr;
  TokenizedPrompt text;
  if (config.tokenize && facts.has_text && (config.needs_tokens || may_send_ids))
    text = config.tokenize(route, request.body);
  PromptTokens tokens = tokens_of(facts, text);
  RoutedRequest out =
      routed_request(std::move(facts), config.tenant_isolation ? key_header_of(request) : "");
  if (!config.tenant_isolation && config.needs_tokens) out.tokens = std::move(tokens);
  if (!may_send_ids || !text.is_whole) text.ids.clear();
  return {std::move(out), cost, std::move(text.ids)};
}

net::UpstreamRequest worker_request(const net::HttpRequest& request, std::string_view request_id,
                                    const std::string& worker_api_key, bool passes_client_key) {
  net::UpstreamRequest out;
  out.method = request.method;
  out.target = encode_path(request.path);
  if (!request.query.empty()) out.target += "?" + request.query;
  for (const auto& [name, value] : request.headers) {
    if (is_own(name) || iequals(name, "X-Request-Id") || states_tenant(name)) continue;
    const bool is_key = iequals(name, "Authorization") || iequals(name, "X-Api-Key");
    if (is_key && (!passes_client_key || !worker_api_key.empty())) continue;
    out.headers.emplace_back(name, value);
  }
  if (!worker_api_key.empty())
    out.headers.emplace_back("Authorization", "Bearer " + worker_api_key);
  out.headers.emplace_back("X-Request-Id", request_id);
  return out;
}

net::Headers client_headers(const net::Headers& headers, std::string_view request_id) {
  net::Headers out;
  bool has_id = false;
  for (const auto& [name, value] : headers) {
    const bool is_cors = name.size() > 15 && iequals({name.data(), 15}, "Access-Control-");
    if (is_own(name) || is_cors || iequals(name, "Date")) continue;
    has_id = has_id || iequals(name, "X-Request-Id");
    out.emplace_back(name, value);
  }
  if (!has_id) out.emplace_back("X-Request-Id", request_id);
  return out;
}

Forwarding::Forwarding(Proxy& proxy, const PassedRoute& route, net::HttpRequest&& request,
                       net::ResponsePtr response)
    : proxy_(proxy),
      route_(route),
      request_(std::move(request)),
      response_(std::move(response)),
      io_(net::io_thread_of(*response_)),
      request_id_(request_id_of(request_)),
      to_worker_(worker_request(request_, request_id_, proxy.config_.worker_api_key,
                                proxy.config_.tenants == nullptr)),
      routed_(routed_cost(route, request_, proxy.config_, proxy.config_.sends_ids)),
      tenant_(tenant_of(proxy.config_.tenants, request_), routed_.cost, route.computes),
      plan_(proxy.config_.max_retries, proxy.budget_),
      backoff_(proxy.config_.retry_backoff) {
  if (request_.method != "GET" && request_.method != "HEAD")
    to_worker_.body = std::make_shared<const std::string>(std::move(request_.body));
  if (!proxy.config_.worker_api_key.empty()) tenant_.state(to_worker_.headers);
  ++proxy_.open_;
}

Forwarding::~Forwarding() { --proxy_.open_; }

void Forwarding::begin() {
  if (auto refused = tenant_.admit(route_.errors, std::chrono::steady_clock::now())) {
    ++proxy_.refused_;
    refused->headers.emplace_back("X-Request-Id", request_id_);
    response_->send(std::move(*refused));
    return finish();
  }
  response_->on_disconnect([self = shared_from_this()] { self->client_gone(); });
  attempt();
}

void Forwarding::attempt() {
  if (response_ == nullptr) return;
  status_ = 0;
  headers_.clear();
  body_.clear();
  Result<Lease> lease = proxy_.dispatcher_.assign(routed_.request, tried_);
  Result<net::UpstreamRequest> request =
      lease ? begin_prefill(*lease) : Result<net::UpstreamRequest>(espalier::fail(lease.error()));
  if (!request) {
    if (plan_.on_failure() == ForwardPlan::Action::kRetry) return retry();
    return fail(503, request.error());
  }
  attempt_.lease = std::move(*lease);
  proxy_.enter(attempt_.lease.generation(), shared_from_this());
  attempt_.call = proxy_.upstream_.call(io_, attempt_.lease.endpoint(), std::move(*request),
                                        shared_from_this());
}

// The request's body, with ids in place of text where that changes no answer.
std::shared_ptr<const std::string> Forwarding::body_for(const TakenIds& taken) {
  if (route_.ids == nullptr || !route_.ids->is_taken(taken)) return to_worker_.body;
  if (!routed_.ids.empty()) {
    std::string body = body_with_ids(*route_.ids, *to_worker_.body, routed_.ids);
    routed_.ids.clear();
    const auto bytes = static_cast<int64_t>(to_worker_.body->size() + body.size());
    if (!body.empty() && request_.body_charge.resize(bytes))
      ids_body_ = std::make_shared<const std::string>(std::move(body));
  }
  if (ids_body_ == nullptr) return to_worker_.body;
  ++proxy_.ids_sent_;
  return ids_body_;
}

// Sends the request to a prefill worker, where a pair is to answer it. Returns what the other
// worker, which has `serving`, gets.
Result<net::UpstreamRequest> Forwarding::begin_prefill(const Lease& serving) {
  net::UpstreamRequest request = to_worker_;
  if (!proxy_.config_.pairs || !route_.pairs || request.body == nullptr) {
    request.body = body_for(serving.takes_ids());
    return request;
  }
  ESP_ASSIGN_OR_RETURN(Lease lease,
                       proxy_.dispatcher_.assign(routed_.request, tried_, WorkerRole::kPrefill));
  const TakenIds one = serving.takes_ids(), other = lease.takes_ids();
  request.body = body_for({one.texts && other.texts, one.chats && other.chats});
  std::string body =
      body_with_room(*request.body, lease.endpoint().address, lease.bootstrap_port(), draw_room());
  if (body.empty()) return request;  // no object: the worker's answer will say what is wrong
  request.body = std::make_shared<const std::string>(std::move(body));
  attempt_.prefill = std::make_shared<PrefillCall>(
      std::move(lease), [weak = weak_from_this()](PrefillCall::Failure failure) {
        if (const auto self = weak.lock()) self->prefill_failed(std::move(failure));
      });
  attempt_.prefill->begin(proxy_.upstream_, io_, request);
  return request;
}

// Where the decode worker has begun to answer it has the prompt; else it waits until its timeout.
// What is wrong with the request itself is the client's answer.
void Forwarding::prefill_failed(PrefillCall::Failure failure) {
  if (status_ != 0 || response_ == nullptr) return;
  const ForwardPlan::Action action =
      failure.status != 0 ? plan_.on_status(failure.status) : plan_.on_failure();
  if (action == ForwardPlan::Action::kNothing) return;
  log_warning("prefill worker failed request_id={} status={} why=\"{}\"", request_id_,
              failure.status, failure.why.message());
  tried_.push_back(attempt_.prefill->slot());
  end_attempt(WorkerOutcome::kAbandoned);
  if (action == ForwardPlan::Action::kRetry) return retry();
  if (failure.status == 0) return fail(502, failure.why);
  take_head(failure.status, failure.headers);
  body_ = std::move(failure.body);
  whole_ = true;
  on_end();
}

// The first retry goes out at once, to another worker; later ones wait longer and longer.
void Forwarding::retry() {
  ++proxy_.retries_;
  const Duration wait = plan_.num_retries() == 1 && !tried_.empty() ? Duration::zero() : backoff_;
  if (wait > Duration::zero()) backoff_ = std::min(backoff_ * 2, proxy_.config_.retry_backoff_max);
  response_->post_after(wait, [self = shared_from_this()] { self->attempt(); });
}

void Forwarding::end_attempt(WorkerOutcome outcome) {
  if (attempt_.prefill != nullptr && outcome != WorkerOutcome::kSuccess)
    std::exchange(attempt_.prefill, nullptr)->cancel();
  if (!attempt_.lease.active()) return;
  if (attempt_.call != nullptr) std::exchange(attempt_.call, nullptr)->cancel();
  proxy_.leave(attempt_.lease.generation(), shared_from_this());
  attempt_.lease.end(outcome);
}

void Forwarding::on_head(int status, net::Headers headers, std::optional<size_t> length) {
  switch (plan_.on_status(status)) {
    case ForwardPlan::Action::kRetry:
      tried_.push_back(attempt_.lease.slot());
      // The decode worker may have failed for want of its prefill worker.
      if (attempt_.prefill != nullptr) tried_.push_back(attempt_.prefill->slot());
      end_attempt(status == 429 || status == 503 ? WorkerOutcome::kBusy : WorkerOutcome::kFailure);
      return retry();
    case ForwardPlan::Action::kPass:
      break;
    default:
      return;
  }
  take_head(status, headers);
  whole_ = request_.method == "HEAD" || status == 204 || status == 304 ||
           (length && *length <= kWholeBytesMax);
}

void Forwarding::take_head(int status, const net::Headers& headers) {
  status_ = status;
  headers_ = client_headers(headers, request_id_);
  const std::string* const type = net::find_header(headers_, "Content-Type");
  type_ = type == nullptr ? "" : *type;
  tenant_.on_head(status, type_, headers_, std::chrono::steady_clock::now());
}

void Forwarding::start_stream() {
  if (std::exchange(streaming_, true)) return;
  response_->start_stream(status_, headers_);
}

void Forwarding::on_body(std::string bytes) {
  if (whole_) {
    body_ += bytes;
    return;
  }
  // A client gets whole events, so that an error may stand behind the last one.
  if (!body_.empty()) bytes.insert(0, std::exchange(body_, {}));
  const size_t num_whole = num_whole_bytes(type_, bytes);
  if (num_whole < bytes.size() && bytes.size() - num_whole <= kMessageBytesMax) {
    body_ = bytes.substr(num_whole);
    bytes.resize(num_whole);
  }
  if (bytes.empty() || plan_.on_bytes() != ForwardPlan::Action::kPass) return;
  attempt_.last_bytes = std::chrono::steady_clock::now();
  tenant_.on_bytes(bytes);
  start_stream();
  response_->write(std::move(bytes));
  slow_down();
}

void Forwarding::slow_down() {
  if (attempt_.call == nullptr || response_ == nullptr) return;
  if (response_->pending_output() <= kPendingBytesMax) return attempt_.call->resume();
  attempt_.call->pause();
  attempt_.last_paused = std::chrono::steady_clock::now();
  response_->post_after(kPauseStep, [self = shared_from_this()] { self->slow_down(); });
}

void Forwarding::on_end() {
  if (plan_.on_end() != ForwardPlan::Action::kPass) return;
  attempt_.call = nullptr;
  end_attempt(status_ == 429 || status_ == 503 ? WorkerOutcome::kBusy
              : status_ >= 500                 ? WorkerOutcome::kFailure
                                               : WorkerOutcome::kSuccess);
  tenant_.on_bytes(body_);
  tenant_.on_end();
  if (whole_) {
    response_->send({status_, std::move(headers_), std::move(body_)});
  } else {
    start_stream();
    response_->write(std::move(body_));
    response_->finish();
  }
  finish();
}

void Forwarding::on_failure(Status why) {
  const ForwardPlan::Action action = plan_.on_failure();
  if (action == ForwardPlan::Action::kNothing) return;
  log_warning("worker failed request_id={} why=\"{}\" retry={}", request_id_, why.message(),
              action == ForwardPlan::Action::kRetry);
  attempt_.call = nullptr;
  tried_.push_back(attempt_.lease.slot());
  end_attempt(WorkerOutcome::kFailure);
  if (action == ForwardPlan::Action::kRetry) return retry();
  if (action == ForwardPlan::Action::kCut) return cut(why);
  fail(why.code() == StatusCode::kDeadlineExceeded ? 504 : 502, why);
}

void Forwarding::fail(int status, const Status& why) {
  ++proxy_.refused_;
  tenant_.on_refused();
  net::HttpResponse answer = error_answer(route_.errors, status, why.message());
  answer.headers.emplace_back("X-Request-Id", request_id_);
  response_->send(std::move(answer));
  finish();
}

// A stream gets an error of its kind. Another answer is cut off, so that it does not look complete.
void Forwarding::cut(const Status& why) {
  ++proxy_.cut_;
  tenant_.on_cut();
  const std::string error = stream_error(
      route_.errors, type_,
      "the worker failed while it answered (" + why.message() + "): send the request again");
  if (!error.empty()) {
    response_->write(error);
    response_->finish();
  }
  finish();
}

void Forwarding::abandon(uint64_t generation) {
  net::post_on(io_, [self = shared_from_this(), generation] { self->end_if_silent(generation); });
}

// A worker that is being stopped takes no connections, so its checks fail, and completes its
// streams. Time in which the client does not read is no silence of the worker.
void Forwarding::end_if_silent(uint64_t generation) {
  const Lease& lease = attempt_.lease;
  if (!lease.active() || lease.generation() != generation) return;
  if (proxy_.dispatcher_.is_back(lease.slot(), generation)) return;
  const TimePoint last_sign = std::max(attempt_.last_bytes, attempt_.last_paused);
  const Duration silent = std::chrono::steady_clock::now() - last_sign;
  if (streaming_ && silent < kSilenceMax)
    return response_->post_after(kSilenceMax - silent, [self = shared_from_this(), generation] {
      self->end_if_silent(generation);
    });
  if (attempt_.call != nullptr) std::exchange(attempt_.call, nullptr)->cancel();
  on_failure({StatusCode::kUnavailable, "the worker does not answer its health checks"});
}

void Forwarding::client_gone() {
  ++proxy_.clients_gone_;
  plan_.on_client_gone();
  end_attempt(WorkerOutcome::kAbandoned);
  finish();
}

void Forwarding::finish() {
  response_ = nullptr;  // which holds this by its callback
}

}  // namespace espalier::router
