#include "net/client.h"

#include <algorithm>
#include <charconv>

#include "net/byte_stream.h"
#include "net/tls.h"

namespace espalier::net {
namespace {

constexpr size_t kHeadBytesMax = 256 << 10;

Status unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
Status not_http(std::string_view what) {
  return error(StatusCode::kDataLoss, "the answer is not HTTP/1.1: {}", what);
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool contains_word(const std::string* value, std::string_view word) {
  if (value == nullptr) return false;
  std::string lower = *value;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return lower.find(word) != std::string::npos;
}

// "HTTP/1.1 200 OK\r\nName: value\r\n...", without the empty line.
Result<HttpResponse> parse_head(std::string_view head) {
  HttpResponse response;
  const std::string_view line = head.substr(0, head.find("\r\n"));
  if (!line.starts_with("HTTP/1.") || line.size() < 12) return fail(not_http("bad status line"));
  const auto code = std::from_chars(line.data() + 9, line.data() + 12, response.status);
  if (code.ptr != line.data() + 12) return fail(not_http("bad status"));
  head.remove_prefix(std::min(head.size(), line.size() + 2));
  while (!head.empty()) {
    const std::string_view field = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(head.size(), field.size() + 2));
    const size_t colon = field.find(':');
    if (colon == std::string_view::npos) return fail(not_http("bad header"));
    response.headers.emplace_back(trim(field.substr(0, colon)), trim(field.substr(colon + 1)));
  }
  return response;
}

// Whole lines of a stream of bytes. `take` returns false to read no more.
class LineSplitter {
 public:
  template <typename Take>
  Status push(std::string_view bytes, size_t line_bytes_max, bool& go_on, const Take& take) {
    size_t begin = 0, from = pending_.size();  // no line ends before
    pending_.append(bytes);
    for (size_t end; go_on && (end = pending_.find('\n', from)) != std::string::npos;
         begin = from = end + 1) {
      std::string_view line = std::string_view(pending_).substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      go_on = take(line);
    }
    pending_.erase(0, begin);
    if (pending_.size() <= line_bytes_max) return {};
    return error(StatusCode::kResourceExhausted, "a line of the answer has more than {} bytes",
                 line_bytes_max);
  }

 private:
  std::string pending_;
};

// How the body of an answer of 200 is handed over while it comes.
struct LineReader {
  HttpClient::LineCallback take;
  std::string_view type;  // of the content of such answers; "": any
};

// Joins lines to server-sent events and hands their data over.
class SseParser {
 public:
  explicit SseParser(const HttpClient::EventCallback& on_event) : on_event_(on_event) {}

  bool take_line(std::string_view line) {
    if (line.empty()) {
      if (!has_data_) return true;
      has_data_ = false;
      const std::string data = std::move(data_);
      data_.clear();
      return on_event_(data);
    }
    if (!line.starts_with("data:")) return true;  // comments and other fields
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
    return true;
  }

 private:
  const HttpClient::EventCallback& on_event_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace

Result<Url> Url::parse(std::string_view text) {
  Url url;
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
    url.is_https = true;
    url.port = 443;
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.find("://") < rest.find('/')) {
    return fail(
        invalid_argument("bad URL \"{}\": expected http://host:port or https://host:port", text));
  }
  const std::string_view authority = rest.substr(0, rest.find('/'));
  url.path = rest.substr(authority.size());
  while (url.path.ends_with('/')) url.path.pop_back();
  std::string_view host = authority, port;
  if (authority.starts_with('[')) {  // [::1]:30000
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return fail(invalid_argument("bad URL \"{}\"", text));
    host = authority.substr(1, end - 1);
    port = authority.substr(end + 1);
  } else if (const size_t colon = authority.rfind(':'); colon != std::string_view::npos) {
    host = authority.substr(0, colon);
    port = authority.substr(colon);
  }
  if (port.starts_with(':')) port.remove_prefix(1);
  if (!port.empty()) {
    const auto parsed = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (parsed.ptr != port.data() + port.size() || url.port < 1 || url.port > 65535) {
      return fail(invalid_argument("bad port in URL \"{}\"", text));
    }
  }
  if (host.empty()) {
    return fail(invalid_argument("bad URL \"{}\": expected http://host:port", text));
  }
  url.host = host;
  return url;
}

std::string Url::authority() const {
  std::string out = host.find(':') == std::string::npos ? host : fmt::format("[{}]", host);
  if (port != (is_https ? 443 : 80)) out += fmt::format(":{}", port);
  return out;
}

struct HttpClient::Impl {
  Url url;
  HttpClientConfig config;
  ByteStreamTarget target;  // of the URL
  ByteStream stream;
  // Of start(): what finish() sends again where the connection has been closed meanwhile.
  struct Started {
    std::string message;
    TimePoint deadline{};
    bool is_head = false, is_reused = false;
    Status sent;
  } started;

  std::string build(std::string_view method, std::string_view path, std::string_view body,
                    const Headers& headers) const;
  Result<HttpResponse> exchange(std::string_view method, std::string_view path,
                                std::string_view body, const Headers& headers,
                                const LineReader* lines);
  Status send(Started request);
  Result<HttpResponse> receive(const LineReader* lines);
  Result<HttpResponse> read_answer(bool is_head, const LineReader* lines, bool& any_byte);
  // Hands the body's bytes to `sink` as they come; false from it ends the reading.
  using Sink = std::function<bool(std::string_view)>;
  Status read_sized(size_t size, const Sink& sink);
  Status read_to_end(const Sink& sink);
  Status read_chunked(const Sink& sink);
  Result<std::string> read_line();
  Status need_more() {
    ESP_ASSIGN_OR_RETURN(const bool more, stream.read_more(config.read_timeout));
    if (!more) return unavailable("the server closed the connection before its answer was whole");
    return {};
  }
};

std::string HttpClient::Impl::build(std::string_view method, std::string_view path,
                                    std::string_view body, const Headers& headers) const {
  std::string out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: espalier\r\n", method,
                                url.path, path, url.authority());
  for (const Headers* list : {&config.headers, &headers}) {
    for (const auto& [name, value] : *list) out += fmt::format("{}: {}\r\n", name, value);
  }
  if (!body.empty() || method == "POST" || method == "PUT") {
    if (find_header(headers, "Content-Type") == nullptr)
      out += "Content-Type: application/json\r\n";
    out += fmt::format("Content-Length: {}\r\n", body.size());
  }
  out += "\r\n";
  out += body;
  return out;
}

Result<HttpResponse> HttpClient::Impl::exchange(std::string_view method, std::string_view path,
                                                std::string_view body, const Headers& headers,
                                                const LineReader* lines) {
  const TimePoint deadline = config.total_timeout > Duration::zero()
                                 ? std::chrono::steady_clock::now() + config.total_timeout
                                 : TimePoint::max();
  ESP_RETURN_IF_ERROR(send({.message = build(method, path, body, headers),
                            .deadline = deadline,
                            .is_head = method == "HEAD"}));
  return receive(lines);
}

// A message that could not be sent whole is no failure yet: the server may have said why (413).
Status HttpClient::Impl::send(Started request) {
  started = std::move(request);
  stream.set_deadline(started.deadline);
  started.is_reused = stream.is_open();
  if (stream.interrupted()) return {StatusCode::kAborted, "the request was interrupted"};
  if (!stream.is_open()) ESP_RETURN_IF_ERROR(stream.connect(target));
  started.sent = stream.write_all(started.message, config.read_timeout);
  return {};
}

// A kept-alive connection may have been closed by the server meanwhile: once more, on a new one.
Result<HttpResponse> HttpClient::Impl::receive(const LineReader* lines) {
  stream.set_deadline(started.deadline);
  while (true) {
    bool any_byte = false;
    auto answer = read_answer(started.is_head, lines, any_byte);
    if (answer) {
      started.message = {};  // a body may be large
      return answer;
    }
    stream.close();
    if (stream.interrupted())
      return fail(Status(StatusCode::kAborted, "the request was interrupted"));
    const Status why = started.sent.ok() ? answer.error() : started.sent;
    if (!started.is_reused || any_byte || why.code() != StatusCode::kUnavailable) return fail(why);
    ESP_RETURN_IF_ERROR(send(std::move(started)));
  }
}

Result<HttpResponse> HttpClient::Impl::read_answer(bool is_head, const LineReader* lines,
                                                   bool& any_byte) {
  HttpResponse response;
  do {  // 1xx answers stand before the real one
    size_t end;
    while ((end = stream.buffered().find("\r\n\r\n")) == std::string_view::npos) {
      if (stream.buffered().size() > kHeadBytesMax) return fail(not_http("endless headers"));
      ESP_RETURN_IF_ERROR(need_more());
      any_byte = true;
    }
    ESP_ASSIGN_OR_RETURN(response, parse_head(stream.buffered().substr(0, end)));
    stream.consume(end + 4);
  } while (response.status < 200);

  const bool is_lines = lines != nullptr && response.status == 200 &&
                        (lines->type.empty() ||
                         contains_word(find_header(response.headers, "Content-Type"), lines->type));
  LineSplitter splitter;
  bool go_on = true;
  Status too_large;
  const Sink sink = [&](std::string_view bytes) {
    if (is_lines) {
      too_large = splitter.push(bytes, config.max_body_bytes, go_on, lines->take);
      return go_on && too_large.ok();
    }
    if (response.body.size() + bytes.size() > config.max_body_bytes) {
      too_large = error(StatusCode::kResourceExhausted, "the answer is larger than {} bytes",
                        config.max_body_bytes);
      return false;
    }
    response.body.append(bytes);
    return true;
  };

  bool close_after = contains_word(find_header(response.headers, "Connection"), "close");
  if (is_head || response.status == 204 || response.status == 304) {
  } else if (contains_word(find_header(response.headers, "Transfer-Encoding"), "chunked")) {
    ESP_RETURN_IF_ERROR(read_chunked(sink));
  } else if (const std::string* length = find_header(response.headers, "Content-Length")) {
    size_t size = 0;
    const auto parsed = std::from_chars(length->data(), length->data() + length->size(), size);
    if (parsed.ptr != length->data() + length->size()) return fail(not_http("bad Content-Length"));
    ESP_RETURN_IF_ERROR(read_sized(size, sink));
  } else {
    close_after = true;
    ESP_RETURN_IF_ERROR(read_to_end(sink));
  }
  ESP_RETURN_IF_ERROR(too_large);
  if (close_after || !go_on) stream.close();
  return response;
}

Status HttpClient::Impl::read_sized(size_t size, const Sink& sink) {
  while (size > 0) {
    if (stream.buffered().empty()) ESP_RETURN_IF_ERROR(need_more());
    const std::string_view part = stream.buffered().substr(0, size);
    const bool go_on = sink(part);
    size -= part.size();
    stream.consume(part.size());
    if (!go_on) return {};
  }
  return {};
}

Status HttpClient::Impl::read_to_end(const Sink& sink) {
  while (true) {
    if (!stream.buffered().empty()) {
      const bool go_on = sink(stream.buffered());
      stream.consume(stream.buffered().size());
      if (!go_on) return {};
    }
    ESP_ASSIGN_OR_RETURN(const bool more, stream.read_more(config.read_timeout));
    if (!more) return {};
  }
}

Result<std::string> HttpClient::Impl::read_line() {
  size_t end;
  while ((end = stream.buffered().find("\r\n")) == std::string_view::npos) {
    if (stream.buffered().size() > kHeadBytesMax) return fail(not_http("endless line"));
    ESP_RETURN_IF_ERROR(need_more());
  }
  std::string line(stream.buffered().substr(0, end));
  stream.consume(end + 2);
  return line;
}

Status HttpClient::Impl::read_chunked(const Sink& sink) {
  bool go_on = true;
  while (true) {
    ESP_ASSIGN_OR_RETURN(const std::string line, read_line());
    size_t size = 0;
    const auto parsed = std::from_chars(line.data(), line.data() + line.size(), size, 16);
    if (parsed.ec != std::errc() || parsed.ptr == line.data()) return not_http("bad chunk size");
    if (size == 0) break;
    ESP_RETURN_IF_ERROR(
        read_sized(size, [&](std::string_view part) { return go_on = sink(part); }));
    if (!go_on) return {};
    ESP_ASSIGN_OR_RETURN(const std::string end, read_line());
    if (!end.empty()) return not_http("bad chunk end");
  }
  while (true) {  // trailers
    ESP_ASSIGN_OR_RETURN(const std::string line, read_line());
    if (line.empty()) return {};
  }
}

Result<HttpClient> HttpClient::create(std::string_view base_url, HttpClientConfig config) {
  auto impl = std::make_unique<Impl>();
  ESP_ASSIGN_OR_RETURN(impl->url, Url::parse(base_url));
  impl->config = std::move(config);
  if (impl->url.is_https) {
    ESP_ASSIGN_OR_RETURN(impl->target.tls, TlsContext::for_client({.ca = impl->config.ca_file}));
  }
  impl->target.host = impl->url.host;
  impl->target.port = impl->url.port;
  impl->target.connect_timeout = impl->config.connect_timeout;
  impl->target.allow_address = impl->config.allow_address;
  return HttpClient(std::move(impl));
}

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;
HttpClient::~HttpClient() = default;

Result<HttpResponse> HttpClient::request(std::string_view method, std::string_view path,
                                         std::string_view body, const Headers& headers) {
  return impl_->exchange(method, path, body, headers, nullptr);
}

Status HttpClient::start(std::string_view method, std::string_view path, std::string_view body,
                         const Headers& headers, TimePoint deadline) {
  return impl_->send({.message = impl_->build(method, path, body, headers),
                      .deadline = deadline,
                      .is_head = method == "HEAD"});
}

Result<HttpResponse> HttpClient::finish() { return impl_->receive(nullptr); }

Result<HttpResponse> HttpClient::post(std::string_view path, std::string_view json_body) {
  return impl_->exchange("POST", path, json_body, {}, nullptr);
}

Result<HttpResponse> HttpClient::post_stream(std::string_view path, std::string_view json_body,
                                             const EventCallback& on_event,
                                             const Headers& headers) {
  SseParser events(on_event);
  const LineReader lines{[&](std::string_view line) { return events.take_line(line); },
                         "text/event-stream"};
  return impl_->exchange("POST", path, json_body, headers, &lines);
}

Result<HttpResponse> HttpClient::get_lines(std::string_view path, const LineCallback& on_line,
                                           const Headers& headers) {
  const LineReader lines{on_line, ""};
  return impl_->exchange("GET", path, {}, headers, &lines);
}

void HttpClient::close() { impl_->stream.close(); }
void HttpClient::interrupt() { impl_->stream.interrupt(); }
void HttpClient::resume() { impl_->stream.resume(); }

}  // namespace espalier::net
