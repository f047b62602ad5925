#include "server/dialects/anthropic_models.h"

#include <fmt/chrono.h>

#include "server/errors.h"
#include "server/json_writer.h"

namespace espalier::server {
namespace {

// The model is as old as the server: a checkpoint does not state when it was released.
void write_anthropic_model(JsonWriter& w, const Context& context) {
  const int32_t length = context.engine.context_length();
  const auto created = static_cast<std::time_t>(context.created_unix);
  w.begin_object().member("type", "model").member("id", context.model_name);
  w.member("display_name", context.model_name);
  w.member("created_at", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(created)));
  w.member("lifecycle", "active").key("deprecated_at").null().key("capabilities").null();
  w.member("max_input_tokens", max_input_len(context.engine)).member("max_tokens", length);
  w.end_object();
}

}  // namespace

bool from_anthropic_client(const net::HttpRequest& request) {
  return request.header("anthropic-version") != nullptr;
}

net::HttpResponse anthropic_models(const Context& context) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("data").begin_array();
  write_anthropic_model(w, context);
  w.end_array().member("has_more", false).member("first_id", context.model_name);
  w.member("last_id", context.model_name).end_object();
  return net::HttpResponse::json(200, std::move(out));
}

net::HttpResponse anthropic_model(const Context& context, std::string_view id) {
  if (id != context.model_name)
    return error_response(
        Dialect::kAnthropic,
        error(StatusCode::kNotFound, "the model '{}' does not exist: '{}' is served", id,
              context.model_name));
  std::string out;
  JsonWriter w(out);
  write_anthropic_model(w, context);
  return net::HttpResponse::json(200, std::move(out));
}

}  // namespace espalier::server
