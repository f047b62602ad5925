// Reads requests from a connection's bytes: heads are checked and admitted before their bodies are
// taken, bodies are charged to the server's account. Internal to the room; Beast only in its
// source.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "net/http.h"
#include "net/http_server.h"
#include "net/router.h"

namespace espalier::net {

// Answers of the server itself: `config.make_error`, or a plain one.
HttpResponse make_error(const HttpServerConfig& config, int status, std::string_view message);

// What a connection must know of a request besides the request.
struct RequestTraits {
  bool is_head = false;     // method HEAD: the answer has no body
  bool http10 = false;      // the client speaks HTTP/1.0
  bool keep_alive = false;  // as the request asks
  std::string origin;       // Access-Control-Allow-Origin of the answer; empty: none
};

// Not thread-safe. `config` and `router` outlive it.
class RequestReader {
 public:
  RequestReader(const HttpServerConfig& config, const Router& router);
  ~RequestReader();
  void set_peer(std::string peer);  // "127.0.0.1:4711", of every request

  // The input: at most `num_bytes` are put where prepare() points, then committed.
  char* prepare(size_t num_bytes);
  void commit(size_t num_bytes);
  size_t num_buffered() const;
  void clear_input();
  void shrink_input();  // where it is empty and has grown for a body

  enum class Progress {
    kNeedsMore,  // bytes
    kComplete,   // take()
    kRefused,    // take() has the answer; the rest of the input may be a body, so close
    kContinue,   // kNeedsMore, and the client waits for "100 Continue" before it sends the body
  };
  Progress read();

  bool begun() const;               // a byte of the next request is there
  bool in_body() const;             // its head is accepted
  TimePoint head_deadline() const;  // by which the head must be complete. REQUIRES begun()

  // The request that is complete or refused, and what to answer at once where it was refused
  // although its bytes are all there. The reader begins the next one.
  struct Taken {
    HttpRequest request;
    RequestTraits traits;
    std::optional<HttpResponse> refusal;
  };
  Taken take();

 private:
  struct State;  // Beast's parser and buffer, and the head
  Progress refuse(HttpResponse&& response);
  Progress refuse(int status, std::string_view message);
  bool skip_empty_line();
  Progress put();
  Progress accept_head();
  void read_head();
  std::optional<HttpResponse> read_target();
  std::string allowed_origin() const;

  const HttpServerConfig& config_;
  const Router& router_;
  std::string peer_;
  std::unique_ptr<State> state_;
};

}  // namespace espalier::net
