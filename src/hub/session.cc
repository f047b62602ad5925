#include "hub/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "hub/curl_library.h"

namespace espalier::hub {
namespace {

constexpr long kConnectSeconds = 15;
constexpr long kStalledSeconds = 60;  // without a byte
constexpr int kRedirects = 5;
constexpr size_t kBodyBytesMax = 64u << 20;  // of an answer that is kept in memory

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

// What the callbacks of one request write.
struct Exchange {
  const CurlLibrary& curl;
  CURL* handle;
  HubResponse response;
  const Session::Sink* sink = nullptr;
  int64_t offset = 0;
  bool first = true;
  bool aborted = false;
};

size_t take_header(char* data, size_t size, size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view line(data, size * count);
  if (line.starts_with("HTTP/")) exchange.response.headers.clear();
  const size_t colon = line.find(':');
  if (colon != std::string_view::npos) {
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    exchange.response.headers[name] = trimmed(line.substr(colon + 1));
  }
  return size * count;
}

size_t take_body(char* data, size_t size, size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view bytes(data, size * count);
  long status = 0;
  exchange.curl.easy_getinfo(exchange.handle, CURLINFO_RESPONSE_CODE, &status);
  if (exchange.sink == nullptr || (status != 200 && status != 206)) {
    exchange.aborted = exchange.response.body.size() + bytes.size() > kBodyBytesMax;
    if (!exchange.aborted) exchange.response.body += bytes;
    return exchange.aborted ? 0 : bytes.size();
  }
  const bool restart = exchange.first && exchange.offset > 0 && status == 200;
  exchange.first = false;
  exchange.aborted = !(*exchange.sink)(bytes, restart);
  return exchange.aborted ? 0 : bytes.size();
}

}  // namespace

std::string HubResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

struct Session::Impl {
  const CurlLibrary& curl;
  SessionConfig config;
  CURL* handle;
  curl_slist* headers = nullptr;

  ~Impl() {
    curl.slist_free_all(headers);
    curl.easy_cleanup(handle);
  }

  template <typename Value>
  void set(CURLoption option, Value value) {
    curl.easy_setopt(handle, option, value);
  }

  void prepare(const std::string& url, Exchange& exchange, char* problem) {
    curl.easy_reset(handle);
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_ERRORBUFFER, problem);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
    set(CURLOPT_USERAGENT, "espalier");
    if (headers != nullptr) set(CURLOPT_HTTPHEADER, headers);
    if (!config.ca_file.empty()) set(CURLOPT_CAINFO, config.ca_file.c_str());
    set(CURLOPT_HEADERFUNCTION, &take_header);
    set(CURLOPT_HEADERDATA, static_cast<void*>(&exchange));
    set(CURLOPT_WRITEFUNCTION, &take_body);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&exchange));
  }

  Result<HubResponse> perform(const std::string& url, const char* problem, Exchange& exchange) {
    const CURLcode code = curl.easy_perform(handle);
    curl.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &exchange.response.status);
    if (code == CURLE_OK) return std::move(exchange.response);
    if (exchange.aborted) return fail(error(StatusCode::kAborted, "{}: ended here", url));
    return fail(error(StatusCode::kUnavailable, "{}: {}", url,
                      *problem != '\0' ? problem : curl.easy_strerror(code)));
  }

  Result<HubResponse> fetch(const std::string& path, int64_t offset, const Sink* sink) {
    const std::string url = config.endpoint + path;
    char problem[CURL_ERROR_SIZE] = "";
    Exchange exchange{curl, handle, {}, sink, offset};
    prepare(url, exchange, problem);
    set(CURLOPT_FOLLOWLOCATION, 1L);  // other hosts get no Authorization header
    set(CURLOPT_MAXREDIRS, static_cast<long>(kRedirects));
    // A server that ignores a range answers 200, which CURLOPT_RESUME_FROM would refuse.
    const std::string range = fmt::format("{}-", offset);
    if (offset > 0) set(CURLOPT_RANGE, range.c_str());
    return perform(url, problem, exchange);
  }
};

Result<Session> Session::create(const SessionConfig& config) {
  ESP_ASSIGN_OR_RETURN(const CurlLibrary* curl, CurlLibrary::load());
  CURL* handle = curl->easy_init();
  if (handle == nullptr) return fail(error(StatusCode::kInternal, "libcurl makes no handle"));
  auto impl = std::unique_ptr<Impl>(new Impl{*curl, config, handle});
  if (!config.token.empty())
    impl->headers = curl->slist_append(nullptr, ("Authorization: Bearer " + config.token).c_str());
  return Session(std::move(impl));
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session::~Session() = default;

Result<HubResponse> Session::get(const std::string& path) { return impl_->fetch(path, 0, nullptr); }

Result<HubResponse> Session::head(const std::string& path) {
  std::string at = path;
  for (int i = 0;; ++i) {
    const std::string url = impl_->config.endpoint + at;
    char problem[CURL_ERROR_SIZE] = "";
    Exchange exchange{impl_->curl, impl_->handle, {}};
    impl_->prepare(url, exchange, problem);
    impl_->set(CURLOPT_NOBODY, 1L);
    ESP_ASSIGN_OR_RETURN(HubResponse response, impl_->perform(url, problem, exchange));
    const std::string location = response.header("location");
    const bool stays = location.starts_with("/") && !location.starts_with("//");
    if (response.status / 100 != 3 || !stays || i == kRedirects) return response;
    at = location;
  }
}

Result<HubResponse> Session::download(const std::string& path, int64_t offset, const Sink& sink) {
  return impl_->fetch(path, offset, &sink);
}

std::string url_path(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace espalier::hub
