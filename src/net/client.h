// A small blocking HTTP/1.1 client: for `espalier bench serving`, `espalier chat` and tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "net/http.h"

struct sockaddr;

namespace espalier::net {

struct HttpClientConfig {
  Duration connect_timeout = std::chrono::seconds(10);
  Duration read_timeout = std::chrono::minutes(10);  // without a byte
  size_t max_body_bytes = 1ull << 30;
  Headers headers;      // sent with each request
  std::string ca_file;  // of https: trusted certificates, PEM; "": the system's
  Duration total_timeout = Duration::zero();  // of a request with its connection; 0: none
  // Whether an address that the host's name has may be connected to; null: each may. The address
  // that was asked about is the one that is connected to, so a name cannot change in between.
  std::function<bool(const sockaddr& address)> allow_address;
};

// "http://host:port/prefix", or https.
struct Url {
  std::string host;
  int port = 80;
  std::string path;  // "" or "/prefix"
  bool is_https = false;
  static Result<Url> parse(std::string_view text);
  // As the header Host has it: an address of IPv6 in brackets, and no port that is the default, for
  // signatures of URLs count without it.
  std::string authority() const;
};

// One connection, kept alive and reopened when the server closed it between requests. Not
// thread-safe.
class HttpClient {
 public:
  // Connects with the first request. Paths of requests are appended to the URL's.
  static Result<HttpClient> create(std::string_view base_url, HttpClientConfig config = {});
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;
  ~HttpClient();

  // Any HTTP status is a success here. kUnavailable: no connection, or it broke; kDeadlineExceeded:
  // a timeout; kDataLoss: an answer that is not HTTP.
  Result<HttpResponse> request(std::string_view method, std::string_view path,
                               std::string_view body = {}, const Headers& headers = {});
  Result<HttpResponse> get(std::string_view path) { return request("GET", path); }
  Result<HttpResponse> post(std::string_view path, std::string_view json_body);

  // The halves of request(), so that one thread has a request on each of several clients at once:
  // start() sends it, on an open connection or a new one, and finish() waits for its answer. Both
  // end at `deadline`. REQUIRES that a start() that succeeded is followed by finish() or close().
  Status start(std::string_view method, std::string_view path, std::string_view body,
               const Headers& headers, TimePoint deadline);
  Result<HttpResponse> finish();

  // Sends and hands over each event's data as it arrives ("[DONE]" included); false from the
  // callback closes the connection and ends the call. The answer's body is empty, unless it was no
  // event stream (an error): then it is whole and the callback was not called.
  using EventCallback = std::function<bool(std::string_view data)>;
  Result<HttpResponse> post_stream(std::string_view path, std::string_view json_body,
                                   const EventCallback& on_event, const Headers& headers = {});

  // Hands over each line of an answer of 200 as it arrives, without its end; another answer is
  // whole. False from the callback closes the connection and ends the call. A last line without an
  // end is no line: the server was cut off in it.
  using LineCallback = std::function<bool(std::string_view line)>;
  Result<HttpResponse> get_lines(std::string_view path, const LineCallback& on_line,
                                 const Headers& headers = {});

  void close();  // the next request connects anew

  // From any thread: the request in progress, and every one until resume(), fails with kAborted.
  void interrupt();
  void resume();

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::net
