// /open_session and /close_session.
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "server/authorize.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

struct OpenBody {
  uint64_t capacity = 0;
  std::string id;
  bool streaming = false;
  float timeout_seconds = 0;
};

const Fields<OpenBody>& open_fields() {
  using B = OpenBody;
  static const Fields<B> fields = [] {
    Fields<B> f = {
        field<B>("capacity_of_str_len", "bytes of text that the session's requests may hold",
                 &B::capacity),
        field<B>("session_id", "made up where absent", &B::id),
        field<B>("streaming", "a request that names no rid continues the last one", &B::streaming),
        field<B>("timeout", "seconds without a request after which it is closed; 0: never",
                 &B::timeout_seconds),
    };
    f[0].required = true;
    return f;
  }();
  return fields;
}

struct CloseBody {
  std::string id;
};

const Fields<CloseBody>& close_fields() {
  static const Fields<CloseBody> fields = [] {
    Fields<CloseBody> f = {field<CloseBody>("session_id", "the session", &CloseBody::id)};
    f[0].required = true;
    return f;
  }();
  return fields;
}

template <typename T>
Status read_body(const Fields<T>& fields, const HttpRequest& request, T& out) {
  ESP_ASSIGN_OR_RETURN(const Json value, parse_json(request.body));
  return read_fields(fields, value, "", out);
}

std::string engine_name(const Context& context, const HttpRequest& request, std::string_view id) {
  Tenants* const tenants = context.tenants.get();
  return owned_id(tenants, tenant_of(tenants, request).get(), id);
}

void handle_open_session(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  OpenBody body;
  if (const Status read = read_body(open_fields(), request, body); !read.ok())
    return response->send(malformed_response(read));
  if (body.id.empty()) body.id = context->make_rid();
  const auto opened = context->engine.open_session({.id = engine_name(*context, request, body.id),
                                                    .capacity = static_cast<int64_t>(body.capacity),
                                                    .streaming = body.streaming,
                                                    .timeout_seconds = body.timeout_seconds});
  if (!opened) return response->send(error_response(Dialect::kNative, opened.error()));
  response->send(HttpResponse::json(200, boost::json::serialize(boost::json::string(body.id))));
}

void handle_close_session(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  CloseBody body;
  if (const Status read = read_body(close_fields(), request, body); !read.ok())
    return response->send(malformed_response(read));
  const Status closed = context->engine.close_session(engine_name(*context, request, body.id));
  if (!closed.ok()) return response->send(error_response(Dialect::kNative, closed));
  response->send(HttpResponse{});
}

std::string open_session_schema() { return schema_of(open_fields()); }
std::string close_session_schema() { return schema_of(close_fields()); }

}  // namespace

const std::vector<Route>& session_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"GET", "POST"},
       "/open_session",
       kUser,
       "Open a session, whose requests continue each other's tokens",
       handle_open_session,
       "OpenSession",
       open_session_schema},
      {{"GET", "POST"},
       "/close_session",
       kUser,
       "Close a session",
       handle_close_session,
       "CloseSession",
       close_session_schema},
  };
  return table;
}

}  // namespace espalier::server
