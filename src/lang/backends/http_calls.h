// Calls to an HTTP API: connections that are kept, retries, a rate limit, timeouts, cancelling.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "net/http.h"

namespace espalier::lang {

struct HttpLimits {
  int num_connections = 64;  // calls at once; each has a thread that waits for its answer
  // 429, 500, 502, 503, 504, 529 and lost connections are tried again, with a wait that doubles (or
  // what Retry-After says), unless a part of the answer was handed on already.
  int num_retries = 3;
  Duration backoff = std::chrono::milliseconds(250);
  Duration backoff_max = std::chrono::seconds(20);
  double requests_per_minute = 0;  // 0: no limit. Calls wait for their turn
  Duration connect_timeout = std::chrono::seconds(10);
  Duration timeout = std::chrono::minutes(10);  // without a byte
  std::string ca_file;  // of https: trusted certificates, PEM; "": the system's
};

// Thread-safe. The destructor ends what is queued and what runs, with kAborted.
class HttpCalls {
 public:
  static Result<std::unique_ptr<HttpCalls>> create(const std::string& base_url,
                                                   net::Headers headers, HttpLimits limits);
  ~HttpCalls();

  struct Call {
    std::string id;
    std::string path, body;
    std::function<void(std::string_view data)> on_event;  // not null: a stream is asked for
    // Once, on a thread of the pool. Statuses other than 2xx are failures whose message quotes
    // the answer's body. `num_retries` were made.
    std::function<void(Result<std::string> body, int num_retries)> on_done;
  };
  void submit(Call call);
  void cancel(const std::string& id);
  // Waits for the answer; method "GET" or "POST". Not retried.
  Result<std::string> fetch(std::string_view method, std::string_view path);

 private:
  struct Impl;
  explicit HttpCalls(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The failure that an answer's status and body report.
Status status_of_answer(int http_status, std::string_view body);

}  // namespace espalier::lang
