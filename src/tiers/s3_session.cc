#include "tiers/s3_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace espalier {
namespace {

constexpr size_t kErrorBytesMax = 64 << 10;  // of an answer that is no page
constexpr size_t kListBytesMax = 4 << 20;    // a list has 1,000 keys
// Names that one look-up asks for before it looks at the time.
constexpr size_t kLookUpRounds = 4;

std::string hex_digits(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// What stands between "<NAME>" and its end, from `at` on, which is set behind it; "": none does.
std::string_view xml_element(std::string_view xml, std::string_view name, size_t& at) {
  const std::string begin = fmt::format("<{}>", name), end = fmt::format("</{}>", name);
  const size_t first = xml.find(begin, at);
  const size_t last = first == std::string_view::npos ? first : xml.find(end, first);
  if (last == std::string_view::npos) return {};
  at = last + end.size();
  return xml.substr(first + begin.size(), last - first - begin.size());
}

std::string_view code_of_error(const net::HttpResponse& answer) {
  size_t at = 0;
  return xml_element(std::string_view(answer.body).substr(0, kErrorBytesMax), "Code", at);
}

// What an operator can do about a refusal.
std::string_view advice_for_s3(int status, std::string_view code) {
  if (code == "SignatureDoesNotMatch" || code == "InvalidAccessKeyId")
    return ": give the key that the store knows (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)";
  if (code == "ExpiredToken" || code == "InvalidToken")
    return ": give a session token that is valid (AWS_SESSION_TOKEN), and attach the storage again";
  if (code == "RequestTimeTooSkewed") return ": set this computer's clock";
  if (code == "AuthorizationHeaderMalformed" || code == "PermanentRedirect" || status == 301)
    return ": the bucket is in another region; give it (region, AWS_REGION)";
  if (code == "NoSuchBucket" || status == 404) return ": make the bucket, or give another one";
  if (status == 401 || status == 403)
    return ": the key may be wrong, or needs s3:ListBucket, s3:GetObject, s3:PutObject and "
           "s3:DeleteObject";
  return "";
}

Status refused_by_s3(std::string_view method, const net::HttpResponse& answer) {
  const std::string_view code = code_of_error(answer);
  return error(StatusCode::kFailedPrecondition, "the S3 store refuses {} ({}{}{}){}", method,
               answer.status, code.empty() ? "" : " ", code.substr(0, 100),
               advice_for_s3(answer.status, code));
}

bool is_absent(const net::HttpResponse& answer) {
  return answer.status == 404 && code_of_error(answer) != "NoSuchBucket";
}

}  // namespace

Result<std::unique_ptr<S3Session>> S3Session::create(const S3Server& server,
                                                     const ScopeDigest& scope, size_t page_bytes,
                                                     size_t num_connections) {
  ESP_ASSIGN_OR_RETURN(const net::Url url, net::Url::parse(server.endpoint));
  std::unique_ptr<S3Session> session(new S3Session(server, scope));
  session->host_ = url.authority();
  session->bucket_path_ = "/" + server.bucket;
  session->signs_body_ = !url.is_https;
  const net::HttpClientConfig config{.connect_timeout = server.connect_timeout,
                                     .max_body_bytes = std::max(page_bytes, kListBytesMax),
                                     .ca_file = server.ca_file};
  for (size_t i = 0; i < std::max<size_t>(num_connections, 1); ++i) {
    ESP_ASSIGN_OR_RETURN(auto client, net::HttpClient::create(server.endpoint, config));
    session->clients_.push_back(std::move(client));
  }
  return session;
}

std::string S3Session::path_of(const PageName& name) const {
  return fmt::format("/{}{}/{}", server_.key_prefix, hex_digits(scope_), hex_digits(name.bytes));
}

// The body of a request over TLS is not signed: TLS covers it, and the page has a checksum.
Status S3Session::start(net::HttpClient& client, const Request& request, TimePoint deadline) const {
  const std::string time = sigv4_time(std::chrono::system_clock::now());
  const std::string hash = signs_body_ ? hex_sha256(request.body) : "UNSIGNED-PAYLOAD";
  const std::string path = bucket_path_ + request.path;
  net::Headers headers = {{"x-amz-content-sha256", hash}, {"x-amz-date", time}};
  if (!server_.session_token.empty())
    headers.emplace_back("x-amz-security-token", server_.session_token);
  SigV4Request to_sign{.method = request.method,
                       .path = path,
                       .query = request.query,
                       .headers = headers,
                       .body_hash = hash};
  to_sign.headers.emplace_back("host", host_);
  headers.emplace_back("Authorization",
                       sigv4_authorization({.access_key_id = server_.access_key_id,
                                            .secret_access_key = server_.secret_access_key,
                                            .region = server_.region,
                                            .service = "s3"},
                                           std::move(to_sign), time));
  headers.emplace_back("Content-Type", "application/octet-stream");
  const std::string target = request.query.empty() ? path : path + "?" + request.query;
  return client.start(request.method, target, request.body, headers, deadline);
}

Result<S3Session::Answer> S3Session::ask(const Request& request, TimePoint deadline) {
  ESP_RETURN_IF_ERROR(start(clients_[0], request, deadline));
  return clients_[0].finish();
}

Status S3Session::ask_all(size_t count, const MakeRequest& make, TimePoint deadline,
                          const TakeAnswer& take) {
  size_t num_sent = 0;
  for (size_t i = 0; i < count; ++i) {
    for (; num_sent < std::min(count, i + clients_.size()); ++num_sent)
      ESP_RETURN_IF_ERROR(start(clients_[num_sent % clients_.size()], make(num_sent), deadline));
    ESP_ASSIGN_OR_RETURN(const Answer answer, clients_[i % clients_.size()].finish());
    ESP_RETURN_IF_ERROR(take(i, answer));
  }
  return {};
}

void S3Session::close() {
  is_open_ = false;
  for (net::HttpClient& client : clients_) client.close();
}

void S3Session::interrupt() {
  for (net::HttpClient& client : clients_) client.interrupt();
}

// Answers that are still on their way belong to no later request.
Status S3Session::closed_on_failure(Status status) {
  if (!status.ok()) close();
  return status;
}

Status S3Session::open() {
  const auto answer = ask({.method = "HEAD"}, SteadyClock().now() + server_.connect_timeout);
  if (!answer) return closed_on_failure(answer.error());
  if (answer->status != 200) return closed_on_failure(refused_by_s3("HEAD of the bucket", *answer));
  is_open_ = true;
  return {};
}

// Names that are not asked for in the first half of the time count as absent, so that a long
// prefix is no timeout.
Result<size_t> S3Session::look_up(std::span<const PageName> names, TimePoint deadline) {
  const TimePoint now = SteadyClock().now();
  const TimePoint last_start = now + (deadline - now) / 2;
  const size_t batch = clients_.size() * kLookUpRounds;
  size_t num_leading = 0;
  for (size_t first = 0; first < names.size() && num_leading == first; first += batch) {
    if (first > 0 && SteadyClock().now() > last_start) break;
    const auto asked = names.subspan(first, std::min(batch, names.size() - first));
    const Status status = ask_all(
        asked.size(),
        [&](size_t i) { return Request{.method = "HEAD", .path = path_of(asked[i])}; }, deadline,
        [&](size_t i, const Answer& answer) -> Status {
          if (answer.status == 200 && num_leading == first + i) ++num_leading;
          if (answer.status == 200 || answer.status == 404) return {};
          return refused_by_s3("HEAD", answer);
        });
    if (!status.ok()) return fail(closed_on_failure(status));
  }
  return num_leading;
}

Status S3Session::read(std::span<const PageName> names, TimePoint deadline, Receiver& receiver) {
  using Outcome = Receiver::Outcome;
  return closed_on_failure(ask_all(
      names.size(), [&](size_t i) { return Request{.method = "GET", .path = path_of(names[i])}; },
      deadline,
      [&](size_t i, const Answer& answer) -> Status {
        if (is_absent(answer)) {
          receiver.received(i, Outcome::kAbsent);
          return {};
        }
        if (answer.status != 200) return refused_by_s3("GET", answer);
        const std::span<std::byte> buffer = receiver.buffer();
        const bool is_page = answer.body.size() == buffer.size();
        if (is_page) std::memcpy(buffer.data(), answer.body.data(), buffer.size());
        receiver.received(i, is_page ? Outcome::kFound : Outcome::kWrongSize);
        return {};
      }));
}

Status S3Session::write(std::span<const SealedPage> pages, TimePoint deadline,
                        std::vector<bool>& taken, std::string& refusal) {
  return closed_on_failure(ask_all(
      pages.size(),
      [&](size_t i) {
        const std::span<const std::byte> bytes = pages[i].bytes;
        return Request{.method = "PUT",
                       .path = path_of(pages[i].name),
                       .body = {reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
      },
      deadline,
      [&](size_t i, const Answer& answer) -> Status {
        taken[i] = answer.status == 200;
        if (!taken[i]) refusal = refused_by_s3("PUT", answer).message();
        return {};
      }));
}

Status S3Session::erase_paths(std::span<const std::string> paths, TimePoint deadline) {
  return ask_all(
      paths.size(), [&](size_t i) { return Request{.method = "DELETE", .path = paths[i]}; },
      deadline,
      [](size_t, const Answer& answer) -> Status {
        if (answer.status == 204 || answer.status == 200 || is_absent(answer)) return {};
        return refused_by_s3("DELETE", answer);
      });
}

Status S3Session::erase(std::span<const PageName> names, TimePoint deadline) {
  std::vector<std::string> paths;
  for (const PageName& name : names) paths.push_back(path_of(name));
  return closed_on_failure(erase_paths(paths, deadline));
}

Status S3Session::clear(TimePoint deadline) { return closed_on_failure(erase_all(deadline)); }

// What is listed is removed, until nothing is listed any more: a list has 1,000 keys at most. A key
// goes into the head of a request as it is listed, so one that is no page's name ends it.
Status S3Session::erase_all(TimePoint deadline) {
  const std::string prefix = fmt::format("{}{}/", server_.key_prefix, hex_digits(scope_));
  while (true) {
    ESP_ASSIGN_OR_RETURN(
        const Answer answer,
        ask({.method = "GET",
             .query = fmt::format("list-type=2&prefix={}", uri_encode(prefix, true))},
            deadline));
    if (answer.status != 200) return refused_by_s3("the list of objects", answer);
    std::vector<std::string> paths;
    size_t at = 0;
    for (std::string_view key; !(key = xml_element(answer.body, "Key", at)).empty();) {
      if (!key.starts_with(prefix) || !is_hex(key.substr(prefix.size())))
        return error(StatusCode::kDataLoss,
                     "the S3 store lists objects that are no pages: move what else is below {}",
                     prefix);
      paths.push_back("/" + std::string(key));
    }
    if (paths.empty()) return {};
    ESP_RETURN_IF_ERROR(erase_paths(paths, deadline));
  }
}

}  // namespace espalier
