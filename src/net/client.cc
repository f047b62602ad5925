#include "net/client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <mutex>

#include "net/tls.h"

namespace espalier::net {
namespace {

constexpr size_t kHeadBytesMax = 256 << 10;

Status unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
Status not_http(std::string_view what) {
  return error(StatusCode::kDataLoss, "the answer is not HTTP/1.1: {}", what);
}

// A connected, non-blocking socket with deadlines, and what was read from it but not used yet.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { close(); }

  bool is_open() const { return fd_ >= 0; }
  void close() {
    {
      std::lock_guard lock(mutex_);
      if (fd_ >= 0) ::close(fd_);
      fd_ = -1;
    }
    tls_.reset();
    in_.clear();
    begin_ = 0;
  }

  // From any thread: what waits here fails, and what would.
  void interrupt() {
    std::lock_guard lock(mutex_);
    interrupted_ = true;
    if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
  }
  void resume() {
    std::lock_guard lock(mutex_);
    interrupted_ = false;
  }
  bool interrupted() const {
    std::lock_guard lock(mutex_);
    return interrupted_;
  }

  // `tls`: null for plain HTTP.
  Status connect(const Url& url, const std::shared_ptr<const TlsContext>& tls,
                 const HttpClientConfig& config);
  // Whatever waits fails from then on.
  void set_deadline(TimePoint deadline) { deadline_ = deadline; }
  Status write_all(std::string_view bytes, Duration timeout);
  // Reads at least one byte more; false at the end of the stream.
  Result<bool> read_more(Duration timeout);

  std::string_view buffered() const { return std::string_view(in_).substr(begin_); }
  void consume(size_t n) {
    begin_ += n;
    if (begin_ == in_.size()) {
      in_.clear();
      begin_ = 0;
    } else if (begin_ > (64 << 10)) {
      in_.erase(0, begin_);
      begin_ = 0;
    }
  }

 private:
  Status wait(short events, Duration timeout, const char* what);
  Status connect_to(const addrinfo& address, Duration timeout);
  Status agree(const Url& url, const std::shared_ptr<const TlsContext>& tls, Duration timeout);
  Status send_raw(std::string_view bytes, Duration timeout);
  // At least one byte, appended to `out`; false at the end of the stream.
  Result<bool> receive_raw(std::string& out, Duration timeout);

  mutable std::mutex mutex_;  // of the next two, which interrupt() touches
  int fd_ = -1;
  bool interrupted_ = false;
  TimePoint deadline_ = TimePoint::max();
  std::unique_ptr<Tls> tls_;
  std::string in_;
  size_t begin_ = 0;
};

Status Stream::wait(short events, Duration timeout, const char* what) {
  const auto start = std::chrono::steady_clock::now();
  const auto deadline = std::min(start + timeout, deadline_);
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd p{fd_, events, 0};
    const int n =
        ::poll(&p, 1, static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, 1 << 30)));
    if (n > 0) return {};
    if (n < 0 && errno != EINTR) return unavailable(fmt::format("poll: {}", strerror(errno)));
    if (n == 0 && std::chrono::steady_clock::now() >= deadline) {
      return error(StatusCode::kDeadlineExceeded, "timeout after {:.1f} s while {}",
                   to_seconds(deadline - start), what);
    }
  }
}

Status Stream::connect_to(const addrinfo& address, Duration timeout) {
  {
    std::lock_guard lock(mutex_);
    if (interrupted_) return unavailable("interrupted");
    fd_ = ::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                   address.ai_protocol);
  }
  if (fd_ < 0) return unavailable(fmt::format("socket: {}", strerror(errno)));
  const int one = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (::connect(fd_, address.ai_addr, address.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return unavailable(strerror(errno));
  ESP_RETURN_IF_ERROR(wait(POLLOUT, timeout, "connecting"));
  int failure = 0;
  socklen_t size = sizeof failure;
  ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &failure, &size);
  if (failure != 0) return unavailable(strerror(failure));
  return {};
}

Status Stream::connect(const Url& url, const std::shared_ptr<const TlsContext>& tls,
                       const HttpClientConfig& config) {
  const Duration timeout = config.connect_timeout;
  close();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(url.port);
  if (const int rc = ::getaddrinfo(url.host.c_str(), port.c_str(), &hints, &found); rc != 0) {
    return unavailable(fmt::format("host \"{}\": {}", url.host, gai_strerror(rc)));
  }
  Status status = unavailable("no address");
  for (const addrinfo* a = found; a != nullptr && !is_open(); a = a->ai_next) {
    if (config.allow_address && !config.allow_address(*a->ai_addr)) {
      status = error(StatusCode::kPermissionDenied, "the host's address may not be connected to");
      continue;
    }
    status = connect_to(*a, timeout);
    if (!status.ok()) close();
  }
  ::freeaddrinfo(found);
  if (status.ok() && tls != nullptr) {
    status = agree(url, tls, timeout);
    if (!status.ok()) close();
  }
  return status.with_context(fmt::format("cannot connect to {}:{}", url.host, url.port));
}

Status Stream::agree(const Url& url, const std::shared_ptr<const TlsContext>& tls,
                     Duration timeout) {
  ESP_ASSIGN_OR_RETURN(tls_, Tls::connect(tls, url.host));
  while (true) {
    const Result<bool> done = tls_->handshake();
    ESP_RETURN_IF_ERROR(send_raw(tls_->output(), timeout));  // an alert, too
    if (!done) return done.error();
    if (*done) return {};
    std::string received;
    ESP_ASSIGN_OR_RETURN(const bool more, receive_raw(received, timeout));
    if (!more) return unavailable("the server closed the connection while TLS was agreed on");
    tls_->feed(received);
  }
}

Status Stream::write_all(std::string_view bytes, Duration timeout) {
  if (tls_ == nullptr) return send_raw(bytes, timeout);
  ESP_RETURN_IF_ERROR(tls_->encrypt(bytes));
  return send_raw(tls_->output(), timeout);
}

Result<bool> Stream::read_more(Duration timeout) {
  if (tls_ == nullptr) return receive_raw(in_, timeout);
  const size_t before = in_.size();
  while (true) {
    std::string received;
    ESP_ASSIGN_OR_RETURN(const bool more, receive_raw(received, timeout));
    if (!more) return false;
    tls_->feed(received);
    ESP_ASSIGN_OR_RETURN(const bool goes_on, tls_->decrypt(in_));
    if (in_.size() > before) return true;
    if (!goes_on) return false;
  }
}

Status Stream::send_raw(std::string_view bytes, Duration timeout) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ESP_RETURN_IF_ERROR(wait(POLLOUT, timeout, "sending"));
    } else if (errno != EINTR) {
      return unavailable(fmt::format("the connection broke while sending: {}", strerror(errno)));
    }
  }
  return {};
}

Result<bool> Stream::receive_raw(std::string& out, Duration timeout) {
  char chunk[16 << 10];
  while (true) {
    const ssize_t n = ::recv(fd_, chunk, sizeof chunk, 0);
    if (n > 0) {
      out.append(chunk, static_cast<size_t>(n));
      return true;
    }
    if (n == 0) return false;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ESP_RETURN_IF_ERROR(wait(POLLIN, timeout, "waiting for the answer"));
    } else if (errno != EINTR) {
      return fail(unavailable(fmt::format("the connection broke: {}", strerror(errno))));
    }
  }
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

// Splits a stream of bytes into server-sent events and hands their data over.
class SseParser {
 public:
  explicit SseParser(const HttpClient::EventCallback* on_event) : on_event_(on_event) {}

  bool push(std::string_view bytes) {
    pending_.append(bytes);
    size_t begin = 0;
    for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string_view line = std::string_view(pending_).substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!take_line(line)) return false;
    }
    pending_.erase(0, begin);
    return true;
  }

 private:
  bool take_line(std::string_view line) {
    if (line.empty()) {
      if (!has_data_) return true;
      has_data_ = false;
      const std::string data = std::move(data_);
      data_.clear();
      return (*on_event_)(data);
    }
    if (!line.starts_with("data:")) return true;  // comments and other fields
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
    return true;
  }

  const HttpClient::EventCallback* on_event_;  // null: never pushed to
  std::string pending_, data_;
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

struct HttpClient::Impl {
  Url url;
  HttpClientConfig config;
  std::shared_ptr<const TlsContext> tls;  // shared with its connections; null for http
  Stream stream;

  std::string build(std::string_view method, std::string_view path, std::string_view body,
                    const Headers& headers) const;
  Result<HttpResponse> exchange(std::string_view method, std::string_view path,
                                std::string_view body, const Headers& headers,
                                const EventCallback* on_event);
  Result<HttpResponse> read_answer(bool is_head, const EventCallback* on_event, bool& any_byte);
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
  // The default port is left out, for signatures of URLs count without it.
  const bool is_default = url.port == (url.is_https ? 443 : 80);
  std::string out =
      fmt::format("{} {}{} HTTP/1.1\r\nHost: {}{}\r\nUser-Agent: espalier\r\n", method, url.path,
                  path, url.host, is_default ? "" : fmt::format(":{}", url.port));
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
                                                const EventCallback* on_event) {
  const std::string message = build(method, path, body, headers);
  stream.set_deadline(config.total_timeout > Duration::zero()
                          ? std::chrono::steady_clock::now() + config.total_timeout
                          : TimePoint::max());
  // A kept-alive connection may have been closed by the server meanwhile: once more, on a new one.
  for (bool reused = stream.is_open();; reused = false) {
    if (stream.interrupted())
      return fail(Status(StatusCode::kAborted, "the request was interrupted"));
    if (!stream.is_open()) ESP_RETURN_IF_ERROR(stream.connect(url, tls, config));
    bool any_byte = false;
    const Status sent = stream.write_all(message, config.read_timeout);
    // Even when sending broke, the server may have said why (413).
    auto answer = read_answer(method == "HEAD", on_event, any_byte);
    if (answer) return answer;
    stream.close();
    if (stream.interrupted())
      return fail(Status(StatusCode::kAborted, "the request was interrupted"));
    const Status why = sent.ok() ? answer.error() : sent;
    if (!reused || any_byte || why.code() != StatusCode::kUnavailable) return fail(why);
  }
}

Result<HttpResponse> HttpClient::Impl::read_answer(bool is_head, const EventCallback* on_event,
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

  const bool is_events =
      on_event != nullptr && response.status == 200 &&
      contains_word(find_header(response.headers, "Content-Type"), "text/event-stream");
  SseParser events(on_event);
  bool stopped = false;
  Status too_large;
  const Sink sink = [&](std::string_view bytes) {
    if (is_events) {
      stopped = !events.push(bytes);
      return !stopped;
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
  if (close_after || stopped) stream.close();
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
    ESP_ASSIGN_OR_RETURN(impl->tls, TlsContext::for_client({.ca = impl->config.ca_file}));
  }
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

Result<HttpResponse> HttpClient::post(std::string_view path, std::string_view json_body) {
  return impl_->exchange("POST", path, json_body, {}, nullptr);
}

Result<HttpResponse> HttpClient::post_stream(std::string_view path, std::string_view json_body,
                                             const EventCallback& on_event,
                                             const Headers& headers) {
  return impl_->exchange("POST", path, json_body, headers, &on_event);
}

void HttpClient::close() { impl_->stream.close(); }
void HttpClient::interrupt() { impl_->stream.interrupt(); }
void HttpClient::resume() { impl_->stream.resume(); }

}  // namespace espalier::net
