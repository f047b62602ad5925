#include "server/served_models/dispatch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/errors.h"
#include "server/json_writer.h"
#include "server/served_models/model_registry.h"
#include "server/served_models/requested_model.h"

namespace espalier::server {
namespace {

// By exact pattern, or, with a star, by what the pattern begins with.
constexpr std::string_view kWithoutModel[] = {
    "/",
    "/abort_request",
    "/api/ps",
    "/api/tags",
    "/api/version",
    "/concate_and_append_request",
    "/get_load",
    "/health",
    "/metrics",
    "/openapi.json",
    "/ping",
    "/playground/*",
    "/ready",
    "/v1/batches*",
    "/v1/chat/completions/{id}*",
    "/v1/conversations*",
    "/v1/files*",
    "/v1/loads",
    "/v1/messages/batches*",
    "/v1/models*",
    "/v1/responses/{id}*",
    "/v1/uploads*",
};

// They show what an engine has: without one there is nothing to load it for.
constexpr std::string_view kOnlyLooks[] = {
    "/cache_tree", "/cache_tree/{number}", "/health_generate", "/props", "/requests", "/slots",
};

Dialect dialect_of(std::string_view pattern) {
  if (pattern.starts_with("/v1/messages")) return Dialect::kAnthropic;
  if (pattern.starts_with("/api/")) return Dialect::kOllama;
  return Dialect::kOpenAi;
}

net::HttpResponse no_such_model(std::string_view pattern, const std::string& name) {
  const Dialect dialect = dialect_of(pattern);
  if (dialect == Dialect::kOpenAi) return model_not_found(name);
  return error_response(dialect,
                        error(StatusCode::kNotFound, "the model '{}' does not exist", name));
}

net::HttpResponse not_loaded(std::string_view pattern, const Status& why) {
  // What a model's files lack is the server's matter, whatever its code means for a request.
  const bool retry = why.code() == StatusCode::kResourceExhausted;
  return error_response(
      dialect_of(pattern),
      Status(retry ? StatusCode::kResourceExhausted : StatusCode::kUnavailable, why.message()));
}

// On the thread that the registry calls, or on this one. A client that has left needs no answer.
void answer_with(const Route& route, net::HttpRequest&& request, const net::ResponsePtr& response,
                 Result<ContextPtr> model) {
  if (response->closed()) return;
  if (!model) return response->send(not_loaded(route.pattern, model.error()));
  handle(*model, route, std::move(request), response);
}

void choose_model(const ContextPtr& front, const Route& route, net::HttpRequest&& request,
                  const net::ResponsePtr& response) {
  const std::string name = requested_model(request);
  ModelRegistry& models = *front->parts->models;
  const std::optional<size_t> model = models.find(name);
  if (!model) return response->send(no_such_model(route.pattern, name));
  if (std::ranges::find(kOnlyLooks, route.pattern) != std::end(kOnlyLooks)) {
    if (ContextPtr looked_at = models.look_at(*model))
      return answer_with(route, std::move(request), response, std::move(looked_at));
    // A probe comes again and again, and from anybody: a model that is not there is well.
    if (route.pattern == "/health_generate") return response->send(net::HttpResponse{});
    return response->send(not_loaded(
        route.pattern, error(StatusCode::kUnavailable,
                             "the model '{}' is not loaded: a request for tokens loads it",
                             models.model(*model).name)));
  }
  if (ContextPtr ready = models.acquire_ready(*model))
    return answer_with(route, std::move(request), response, std::move(ready));
  auto kept = std::make_shared<net::HttpRequest>(std::move(request));  // functions are copied
  models.acquire(*model, [&route, kept, response](Result<ContextPtr> made) {
    // The connection's own thread goes on with it, as with a request whose model is ready.
    response->post([&route, kept, response, made = std::move(made)]() mutable {
      answer_with(route, std::move(*kept), response, std::move(made));
    });
  });
}

void write_served_model(JsonWriter& w, const Context& front, const RegisteredModel& model,
                        const ModelReport& report, const ContextPtr& ready) {
  w.begin_object().member("id", model.name).member("object", "model");
  w.member("created", front.parts->created_unix).member("owned_by", "sglang");
  w.member("root", model.name).key("parent").null().key("max_model_len");
  ready != nullptr ? static_cast<void>(w.value(ready->engine.context_length()))
                   : static_cast<void>(w.null());
  w.member("state", name_of(report.state)).member("memory_bytes", report.bytes);
  w.member("num_requests", report.num_users).member("num_waiting", report.num_waiting);
  w.key("aliases").begin_array();
  for (const std::string& alias : model.aliases) w.value(alias);
  w.end_array();
  if (!report.last_failure.ok()) w.member("last_error", report.last_failure.message());
  w.end_object();
}

}  // namespace

bool needs_no_model(std::string_view pattern) {
  return std::ranges::any_of(kWithoutModel, [&](std::string_view each) {
    if (!each.ends_with('*')) return pattern == each;
    return pattern.starts_with(each.substr(0, each.size() - 1));
  });
}

// Stored chats are the server's; POST of the same pattern asks a model.
static bool lists_stored_chats(const Route& route) {
  return route.pattern == "/v1/chat/completions" && route.methods.front() == "GET";
}

void dispatch(const ContextPtr& front, const Route& route, net::HttpRequest&& request,
              net::ResponsePtr response) {
  const bool is_refused = route.status == 501;
  if (front->parts->models == nullptr || is_refused || needs_no_model(route.pattern) ||
      lists_stored_chats(route))
    return handle(front, route, std::move(request), std::move(response));
  const size_t size = request.body.size();
  if (size <= Context::kInlineBytes)
    return choose_model(front, route, std::move(request), response);
  auto kept = std::make_shared<net::HttpRequest>(std::move(request));  // the task is copyable
  front->run_sized(size, response, [front, &route, kept, response] {
    choose_model(front, route, std::move(*kept), response);
  });
}

std::string served_models_json(const Context& front) {
  const ModelRegistry& models = *front.parts->models;
  const std::vector<ModelReport> reports = models.reports();
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("object", "list").key("data").begin_array();
  for (size_t i = 0; i < models.size(); ++i)
    write_served_model(w, front, models.model(i), reports[i], models.look_at(i));
  w.end_array().end_object();
  return out;
}

std::string served_model_json(const Context& front, std::string_view name) {
  const ModelRegistry& models = *front.parts->models;
  std::string out;
  const std::optional<size_t> model = models.find(name);
  if (!model) return out;
  JsonWriter w(out);
  write_served_model(w, front, models.model(*model), models.reports()[*model],
                     models.look_at(*model));
  return out;
}

void append_metrics(std::string& out, const ModelRegistry& models) {
  const std::vector<ModelReport> reports = models.reports();
  const auto family = [&](std::string_view name, std::string_view type, std::string_view help,
                          auto value) {
    out += fmt::format("# HELP espalier:{0} {1}\n# TYPE espalier:{0} {2}\n", name, help, type);
    for (size_t i = 0; i < models.size(); ++i)
      out += fmt::format("espalier:{}{{model_name=\"{}\"}} {}\n", name, models.model(i).name,
                         value(reports[i]));
  };
  family("model_ready", "gauge", "1 while a served model is ready.",
         [](const ModelReport& r) { return r.state == ModelState::kReady ? 1 : 0; });
  family("model_asleep", "gauge", "1 while a served model sleeps.",
         [](const ModelReport& r) { return r.state == ModelState::kAsleep ? 1 : 0; });
  family("model_memory_bytes", "gauge", "Memory that a served model has.",
         [](const ModelReport& r) { return r.bytes; });
  family("model_waiting_requests", "gauge", "Requests that wait until the model is loaded.",
         [](const ModelReport& r) { return r.num_waiting; });
  family("model_loads_total", "counter", "Loads and wakes of a served model.",
         [](const ModelReport& r) { return r.num_loads; });
  family("model_load_failures_total", "counter", "Loads and wakes that failed.",
         [](const ModelReport& r) { return r.num_failures; });
  family("model_load_seconds", "gauge", "Of the last load or wake.",
         [](const ModelReport& r) { return r.load_seconds; });
}

}  // namespace espalier::server
