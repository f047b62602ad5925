// What an HTTP exchange is made of: the request, the answer, and the handle by which a handler
// answers from any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/memory_account.h"
#include "base/status.h"

namespace espalier::net {

using Headers = std::vector<std::pair<std::string, std::string>>;

// The first header of that name (case-insensitive); null when there is none.
const std::string* find_header(const Headers& headers, std::string_view name);

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // decoded, without the query: "/v1/models"
  std::string query;   // raw: "timeout=5"
  Headers headers;
  std::string body;
  std::vector<std::pair<std::string, std::string>> params;  // from the route's pattern, by name
  std::string peer;                                         // "127.0.0.1:4711"
  std::string tenant;        // whose request it is where the process makes it; never from the wire
  MemoryCharge body_charge;  // what `body` takes of HttpServerConfig::bodies, while this lives

  const std::string* header(std::string_view name) const { return find_header(headers, name); }
  std::string_view param(std::string_view name) const;  // "" when the pattern has none
  // Decoded value of `name` in the query; nothing when it is absent.
  std::optional<std::string> query_param(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  Headers headers;  // Content-Length, Date, Connection and CORS are added
  std::string body;

  static HttpResponse json(int status, std::string body);
  static HttpResponse text(int status, std::string body);
};

std::string_view status_reason(int status);  // "Not Found"
// "%20" and, in a query, "+". Nothing on a bad escape or a NUL.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space);

// How a handler answers: either send(), or start_stream(), write()s and finish(), each from any
// thread, in the order of the calls of one thread. None of them blocks or throws. When the last
// reference goes and nothing was sent, the client gets a 500. After the client has gone, or after
// the end, calls do nothing.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  virtual void send(HttpResponse response) = 0;

  virtual void start_stream(int status, Headers headers) = 0;
  // Bytes are collected until the socket takes them, then written together. A client that has left
  // more than the server's bound (and the write before) unread is dropped.
  virtual void write(std::string bytes) = 0;
  // Bytes that the client has not taken yet. On the connection's I/O thread only.
  virtual size_t pending_output() const = 0;
  virtual void finish() = 0;

  // Called once, on the connection's I/O thread, if the client goes before the answer is complete
  // (at once when it has gone already). Replaces an earlier callback.
  virtual void on_disconnect(std::function<void()> callback) = 0;

  // Runs `task` on the connection's I/O thread, after what was posted before. Many tasks cost one
  // wake-up. Tasks still run when the client has gone; they are dropped once the server has
  // stopped.
  virtual void post(std::function<void()> task) = 0;
  // The same, not before `delay` has passed.
  virtual void post_after(Duration delay, std::function<void()> task) = 0;

  virtual bool closed() const = 0;  // the client has gone, or the answer is complete
};
using ResponsePtr = std::shared_ptr<ResponseWriter>;  // shared by the connection and who answers

// Called on an I/O thread; must not block.
using Handler = std::function<void(HttpRequest&&, ResponsePtr)>;

// Called on an I/O thread when a request's head is complete and before its body is read; `head` has
// no body and no params. A response refuses the request.
using Admission = std::function<std::optional<HttpResponse>(const HttpRequest& head)>;

// Server-sent events: "data: PAYLOAD\n\n". `payload` holds no newline.
void append_sse(std::string& out, std::string_view payload);
Headers event_stream_headers();  // of an answer that is a stream of them

}  // namespace espalier::net
