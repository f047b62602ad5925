// /flush_cache, /abort_request, /pause_generation and /continue_generation.
#include <boost/json/value.hpp>
#include <cmath>
#include <cstdlib>
#include <map>

#include "server/errors.h"
#include "server/json_fields.h"
#include "server/json_writer.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

constexpr Duration kFlushRetry = std::chrono::milliseconds(20);
constexpr double kFlushTimeoutMax = 3600;  // seconds

// Again and again until the engine is idle or the deadline has passed.
void flush(const ContextPtr& context, const ResponsePtr& response, TimePoint deadline) {
  const Status status = context->engine.flush_cache();
  if (status.ok()) {
    return response->send(
        HttpResponse::text(200, "Cache flushed.\nAll cached prefixes are gone.\n"));
  }
  if (status.code() == StatusCode::kFailedPrecondition &&
      std::chrono::steady_clock::now() < deadline && !response->closed()) {
    return response->post_after(
        kFlushRetry, [context, response, deadline] { flush(context, response, deadline); });
  }
  response->send(HttpResponse::text(http_status(status.code()),
                                    fmt::format("Cache not flushed: {}.\n", status.message())));
}

struct AbortBody {
  std::string rid;
  bool abort_all = false;
};

const Fields<AbortBody>& abort_fields() {
  static const Fields<AbortBody> fields = {
      field<AbortBody>("rid", "requests whose id begins like this", &AbortBody::rid),
      field<AbortBody>("abort_all", "all requests", &AbortBody::abort_all),
      ignored<AbortBody>("finished_reason"),
      ignored<AbortBody>("abort_message"),
  };
  return fields;
}

struct PauseBody {
  std::string mode = "abort";
};

const Fields<PauseBody>& pause_fields() {
  static const Fields<PauseBody> fields = {
      field<PauseBody>("mode", "abort, retract or in_place", &PauseBody::mode),
  };
  return fields;
}

void send_done(const ResponsePtr& response, const Status& status, std::string_view message) {
  if (!status.ok()) return response->send(malformed_response(status));
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("message", message).member("status", "ok").end_object();
  response->send(HttpResponse::json(200, std::move(out)));
}

void handle_pause(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  using Mode = Engine::PauseMode;
  PauseBody body;
  if (!request.body.empty()) {
    auto value = parse_json(request.body);
    if (!value) return response->send(malformed_response(value.error()));
    if (const Status read = read_fields(pause_fields(), *value, "", body); !read.ok())
      return response->send(malformed_response(read));
  }
  const std::map<std::string_view, Mode> modes = {
      {"abort", Mode::kAbort}, {"retract", Mode::kRetract}, {"in_place", Mode::kInPlace}};
  const auto mode = modes.find(body.mode);
  if (mode == modes.end())
    return response->send(malformed_response(
        invalid_argument("mode is \"{}\", but must be abort, retract or in_place", body.mode)));
  send_done(response, context->engine.pause_generation(mode->second), "Generation paused.");
}

void handle_continue(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  send_done(response, context->engine.continue_generation(), "Generation continued.");
}

std::string pause_schema() { return schema_of(pause_fields()); }

void handle_flush_cache(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  double timeout = 0;  // seconds
  if (const auto stated = request.query_param("timeout")) {
    char* end = nullptr;
    timeout = std::strtod(stated->c_str(), &end);
    if (stated->empty() || *end != '\0' || !(timeout >= 0 && timeout <= kFlushTimeoutMax)) {
      return response->send(malformed_response(invalid_argument(
          "timeout must be seconds from 0 to {}, but it is \"{}\"", kFlushTimeoutMax, *stated)));
    }
  }
  const auto wait = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout));
  flush(context, response, std::chrono::steady_clock::now() + wait);
}

void handle_abort(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  auto value = parse_json(request.body);
  if (!value) return response->send(malformed_response(value.error()));
  AbortBody body;
  if (const Status read = read_fields(abort_fields(), *value, "", body); !read.ok()) {
    return response->send(malformed_response(read));
  }
  if (body.abort_all) {
    context->engine.abort("", Engine::AbortScope::kAll);
  } else if (!body.rid.empty()) {  // an empty one would begin every id
    context->engine.abort(body.rid, Engine::AbortScope::kPrefix);
  }
  response->send(HttpResponse{});
}

std::string abort_schema() { return schema_of(abort_fields()); }

}  // namespace

const std::vector<Route>& admin_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"GET", "POST"}, "/flush_cache", kAdmin, "Drop all cached prefixes", handle_flush_cache},
      {{"POST"},
       "/pause_generation",
       kAdmin,
       "Stop generating",
       handle_pause,
       "PauseGeneration",
       pause_schema},
      {{"POST"}, "/continue_generation", kAdmin, "Go on generating", handle_continue},
      {{"POST"},
       "/abort_request",
       kAdmin,
       "Abort requests by rid",
       handle_abort,
       "AbortRequest",
       abort_schema},
  };
  return table;
}

}  // namespace espalier::server
