#include "net/request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/string_body.hpp>
#include <new>

namespace espalier::net {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kInputBytesKept = 4096;  // of an idle connection's buffer

struct ParseFailure {
  int status;
  std::string_view message;
};

ParseFailure explain(const error_code& ec, bool in_first_line) {
  if (ec == http::error::body_limit) return {413, "the body is larger than this server accepts"};
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    return in_first_line ? ParseFailure{414, "the request line is too long"}
                         : ParseFailure{431, "the headers are larger than this server accepts"};
  }
  if (ec == http::error::bad_version) return {505, "HTTP/1.0 and HTTP/1.1 are spoken here"};
  if (ec == http::error::bad_method) return {400, "malformed request: bad method"};
  if (ec == http::error::bad_target) return {400, "malformed request: bad target"};
  if (ec == http::error::bad_content_length) return {400, "malformed request: bad Content-Length"};
  if (ec == http::error::bad_transfer_encoding) {
    return {400, "malformed request: bad Transfer-Encoding"};
  }
  if (ec == http::error::bad_chunk || ec == http::error::bad_chunk_extension) {
    return {400, "malformed request: bad chunk"};
  }
  return {400, "malformed request: this is not HTTP/1.1"};
}

// Whether a body follows is what two parsers must never disagree on (RFC 9112, 6.3): the last
// transfer coding is chunked, exactly once, and no other is known here.
std::optional<ParseFailure> check_transfer_coding(const HttpRequest& head, bool http10) {
  std::string codings;
  bool has_length = false;
  for (const auto& [name, value] : head.headers) {
    if (beast::iequals(name, "Transfer-Encoding")) codings += (codings.empty() ? "" : ",") + value;
    has_length = has_length || beast::iequals(name, "Content-Length");
  }
  if (head.header("Transfer-Encoding") == nullptr) return std::nullopt;
  if (http10) return ParseFailure{400, "malformed request: Transfer-Encoding in HTTP/1.0"};
  if (has_length)
    return ParseFailure{400, "malformed request: Transfer-Encoding beside Content-Length"};
  size_t num_chunked = 0, num_codings = 0;
  bool last_is_chunked = false;
  for (const auto coding : http::token_list(codings)) {
    last_is_chunked = beast::iequals(coding, "chunked");
    num_chunked += last_is_chunked ? 1 : 0;
    ++num_codings;
  }
  if (!last_is_chunked || num_chunked != 1)
    return ParseFailure{400, "malformed request: Transfer-Encoding must end in one chunked"};
  if (num_codings != 1) return ParseFailure{501, "chunked is the only transfer coding known here"};
  // Parameters and empty elements of the list are read differently by different parsers.
  if (!beast::iequals(codings, "chunked"))
    return ParseFailure{400, "malformed request: Transfer-Encoding must be chunked alone"};
  return std::nullopt;
}

// The name of a Host header without its port: "localhost", "127.0.0.1", "[::1]".
std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool is_local_host(std::string_view host) {
  const std::string_view name = host_name(host);
  if (beast::iequals(name, "localhost") || name.ends_with(".localhost")) return true;
  if (name.starts_with('[')) return true;
  error_code ec;
  asio::ip::make_address(std::string(name), ec);
  return !ec;
}

std::optional<ParseFailure> check_host(const HttpRequest& head, bool http10, bool local_only) {
  const auto is_host = [](const auto& field) { return beast::iequals(field.first, "Host"); };
  const auto count = std::ranges::count_if(head.headers, is_host);
  if (count > 1) return ParseFailure{400, "malformed request: more than one Host header"};
  if (count == 0)
    return http10 ? std::nullopt
                  : std::optional(ParseFailure{400, "malformed request: no Host header"});
  if (local_only && !is_local_host(*head.header("Host")))
    return ParseFailure{403,
                        "the Host header names another host: this server answers to localhost and "
                        "to addresses; bind another --host or set --api-key to serve names"};
  return std::nullopt;
}

}  // namespace

HttpResponse make_error(const HttpServerConfig& config, int status, std::string_view message) {
  if (config.make_error) return config.make_error(status, message);
  std::string safe(message);
  for (char& c : safe) {
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '?';
  }
  return HttpResponse::json(status, fmt::format(R"({{"error":{{"message":"{}"}}}})", safe));
}

struct RequestReader::State {
  beast::flat_buffer in;
  std::optional<http::request_parser<http::string_body>> parser;
  bool begun = false;            // a byte of the request is there
  bool first_line_seen = false;  // and its first line's end
  bool continue_sent = false;    // 100 Continue
  TimePoint head_deadline;       // REQUIRES begun
  HttpRequest head;              // once head_accepted; without the trailer's fields
  bool head_accepted = false;
  std::optional<HttpResponse> refusal;
  MemoryCharge body_charge;

  void reset(const HttpServerConfig& config) {
    parser.emplace();
    parser->eager(false);  // until the head is accepted
    parser->header_limit(static_cast<std::uint32_t>(config.max_header_bytes));
    parser->body_limit(config.max_body_bytes);
    begun = first_line_seen = continue_sent = head_accepted = false;
    head = HttpRequest();
    refusal.reset();
    body_charge = MemoryCharge(config.bodies);
  }
  bool complete() const { return head_accepted && parser->is_done(); }
};

RequestReader::RequestReader(const HttpServerConfig& config, const Router& router)
    : config_(config), router_(router), state_(std::make_unique<State>()) {
  state_->reset(config_);
}
RequestReader::~RequestReader() = default;

void RequestReader::set_peer(std::string peer) { peer_ = std::move(peer); }

char* RequestReader::prepare(size_t num_bytes) {
  return static_cast<char*>(state_->in.prepare(num_bytes).data());
}
void RequestReader::commit(size_t num_bytes) { state_->in.commit(num_bytes); }
size_t RequestReader::num_buffered() const { return state_->in.size(); }
void RequestReader::clear_input() { state_->in.consume(state_->in.size()); }
void RequestReader::shrink_input() {
  if (state_->in.size() == 0 && state_->in.capacity() > kInputBytesKept)
    state_->in = beast::flat_buffer();
}

bool RequestReader::begun() const { return state_->begun; }
bool RequestReader::in_body() const { return state_->head_accepted; }
TimePoint RequestReader::head_deadline() const { return state_->head_deadline; }

RequestReader::Progress RequestReader::read() {
  State& s = *state_;
  while (s.in.size() > 0 && !s.complete()) {
    if (skip_empty_line()) continue;
    const size_t before = s.in.size();
    if (put() == Progress::kRefused) return Progress::kRefused;
    if (s.in.size() == before && !s.complete()) break;
  }
  if (s.complete()) return Progress::kComplete;
  if (!s.head_accepted || s.continue_sent || s.head.header("Expect") == nullptr)
    return Progress::kNeedsMore;
  s.continue_sent = true;
  return Progress::kContinue;
}

// Empty lines before a request are no part of it (RFC 9112, 2.2).
bool RequestReader::skip_empty_line() {
  State& s = *state_;
  if (s.begun) return false;
  const char first = *static_cast<const char*>(s.in.data().data());
  if (first == '\r' || first == '\n') {
    s.in.consume(1);
    return true;
  }
  s.begun = true;
  s.head_deadline = std::chrono::steady_clock::now() + config_.header_timeout;
  return false;
}

RequestReader::Progress RequestReader::put() {
  State& s = *state_;
  if (!s.first_line_seen) {
    const std::string_view seen(static_cast<const char*>(s.in.data().data()), s.in.size());
    s.first_line_seen = seen.find('\n') != std::string_view::npos;
  }
  error_code ec;
  try {
    s.in.consume(s.parser->put(s.in.data(), ec));
  } catch (const std::bad_alloc&) {
    return refuse(503, "no memory for this body");
  }
  if (ec == http::error::need_more) {
    if (s.in.size() <= config_.max_header_bytes) return Progress::kNeedsMore;
    // A head, or a chunk's first line, that does not end.
    ec = s.parser->is_header_done() ? http::error::bad_chunk : http::error::header_limit;
  }
  if (ec) {
    const ParseFailure why = explain(ec, !s.first_line_seen);
    return refuse(why.status, why.message);
  }
  if (s.parser->is_header_done() && !s.head_accepted) return accept_head();
  if (s.body_charge.resize(static_cast<int64_t>(s.parser->get().body().capacity())))
    return Progress::kNeedsMore;
  HttpResponse response =
      make_error(config_, 503,
                 "the bodies of all requests take what memory there is for them: try again later");
  response.headers.emplace_back("Retry-After", "1");
  return refuse(std::move(response));
}

// Decides about a request before its body is read, so that no body is held for one that is refused.
RequestReader::Progress RequestReader::accept_head() {
  State& s = *state_;
  read_head();
  const bool http10 = s.parser->get().version() < 11;
  std::optional<ParseFailure> why = check_transfer_coding(s.head, http10);
  if (!why) why = check_host(s.head, http10, config_.local_hosts_only);
  const std::string* expect = s.head.header("Expect");
  if (!why && expect != nullptr && !beast::iequals(*expect, "100-continue"))
    why = ParseFailure{417, "the only expectation known is 100-continue"};
  if (why) return refuse(why->status, why->message);
  std::optional<HttpResponse> refusal = read_target();
  if (!refusal) {
    const Admission* admit = router_.find(s.head.method, s.head.path).admit;
    if (admit != nullptr) refusal = (*admit)(s.head);
  }
  // The bytes of a refused body could be read as a next request, so the connection ends.
  if (refusal && !s.parser->is_done()) return refuse(std::move(*refusal));
  s.refusal = std::move(refusal);
  s.head_accepted = true;
  s.parser->eager(true);
  return Progress::kNeedsMore;
}

void RequestReader::read_head() {
  const auto& message = state_->parser->get();
  HttpRequest& head = state_->head;
  head.method = std::string(message.method_string());
  for (const auto& field : message)
    head.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  head.peer = peer_;
}

// The head's path and query; what is wrong with them.
std::optional<HttpResponse> RequestReader::read_target() {
  const auto& message = state_->parser->get();
  HttpRequest& head = state_->head;
  std::string_view target(message.target().data(), message.target().size());
  if (target.size() > config_.max_target_bytes)
    return net::make_error(config_, 414, "the path and query are too long");
  if (target.starts_with("http://")) {  // absolute form, as sent to proxies
    target.remove_prefix(std::min(target.size(), target.find('/', 7)));
    if (target.empty()) target = "/";
  }
  if (!target.starts_with('/') && !(target == "*" && head.method == "OPTIONS"))
    return net::make_error(config_, 400, "malformed request: bad target");
  const size_t question = target.find('?');
  auto path = percent_decode(target.substr(0, question), false);
  if (!path) return net::make_error(config_, 400, "bad percent escape in the path");
  head.path = std::move(*path);
  if (question != std::string_view::npos) head.query = target.substr(question + 1);
  return std::nullopt;
}

std::string RequestReader::allowed_origin() const {
  const std::vector<std::string>& allowed = config_.cors_origins;
  if (std::ranges::find(allowed, "*") != allowed.end()) return "*";
  const std::string* origin = state_->head.header("Origin");
  const bool may_read = origin != nullptr && std::ranges::find(allowed, *origin) != allowed.end();
  return may_read ? *origin : "";
}

RequestReader::Progress RequestReader::refuse(int status, std::string_view message) {
  return refuse(net::make_error(config_, status, message));
}

RequestReader::Progress RequestReader::refuse(HttpResponse&& response) {
  state_->refusal = std::move(response);
  return Progress::kRefused;
}

RequestReader::Taken RequestReader::take() {
  State& s = *state_;
  const bool complete = s.complete();
  auto& message = s.parser->get();
  Taken out;
  out.traits.origin = allowed_origin();
  out.traits.is_head = s.head.method == "HEAD";
  if (complete) {
    out.traits.http10 = message.version() < 11;
    out.traits.keep_alive = message.keep_alive();
  } else {
    clear_input();
  }
  out.request = std::move(s.head);
  out.request.body = std::move(message.body());
  out.request.body_charge = std::move(s.body_charge);
  out.refusal = std::move(s.refusal);
  s.reset(config_);
  return out;
}

}  // namespace espalier::net
