#include "server/dialects/anthropic_models.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/errors.h"
#include "server/json_writer.h"
#include "server/served_models/model_registry.h"

namespace espalier::server {
namespace {

// The model is as old as the server: a checkpoint does not state when it was released. loaded: null
// for a model of several that is not ready, whose lengths are not known then.
void write_anthropic_model(JsonWriter& w, const Context& context, std::string_view name,
                           const Context* loaded) {
  const auto created = static_cast<std::time_t>(context.parts->created_unix);
  w.begin_object().member("type", "model").member("id", name).member("display_name", name);
  w.member("created_at", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(created)));
  w.member("lifecycle", "active").key("deprecated_at").null().key("capabilities").null();
  if (loaded != nullptr)
    w.member("max_input_tokens", max_input_len(loaded->engine))
        .member("max_tokens", loaded->engine.context_length());
  else
    w.key("max_input_tokens").null().key("max_tokens").null();
  w.end_object();
}

std::vector<std::string> served_names(const Context& context) {
  const ModelRegistry* const models = context.parts->models.get();
  if (models == nullptr) return {context.model_name};
  std::vector<std::string> names;
  for (size_t i = 0; i < models->size(); ++i) names.push_back(models->model(i).name);
  return names;
}

void write_named(JsonWriter& w, const Context& context, std::string_view name) {
  const ModelRegistry* const models = context.parts->models.get();
  if (models == nullptr) return write_anthropic_model(w, context, name, &context);
  write_anthropic_model(w, context, name, models->look_at(*models->find(name)).get());
}

}  // namespace

bool from_anthropic_client(const net::HttpRequest& request) {
  return request.header("anthropic-version") != nullptr;
}

net::HttpResponse anthropic_models(const Context& context) {
  const std::vector<std::string> names = served_names(context);
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("data").begin_array();
  for (const std::string& name : names) write_named(w, context, name);
  w.end_array().member("has_more", false).member("first_id", names.front());
  w.member("last_id", names.back()).end_object();
  return net::HttpResponse::json(200, std::move(out));
}

net::HttpResponse anthropic_model(const Context& context, std::string_view id) {
  const std::vector<std::string> names = served_names(context);
  if (std::ranges::find(names, id) == names.end()) {
    std::string served;
    for (const std::string& name : names)
      served += fmt::format("{}'{}'", served.empty() ? "" : ", ", name);
    return error_response(Dialect::kAnthropic, error(StatusCode::kNotFound,
                                                     "the model '{}' does not exist: {} {} served",
                                                     id, served, names.size() > 1 ? "are" : "is"));
  }
  std::string out;
  JsonWriter w(out);
  write_named(w, context, id);
  return net::HttpResponse::json(200, std::move(out));
}

}  // namespace espalier::server
