// POST /load_lora_adapter and /unload_lora_adapter, as SGLang has them.
#include <algorithm>
#include <boost/json/value.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/adapter_choice.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "server/json_writer.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

struct LoadLoraBody {
  std::string name, path;
};
struct UnloadLoraBody {
  std::string name;
};

const Fields<LoadLoraBody>& load_lora_fields() {
  static const Fields<LoadLoraBody> fields = {
      field<LoadLoraBody>("lora_name", "what requests will call it", &LoadLoraBody::name),
      field<LoadLoraBody>("lora_path", "a folder that PEFT saved, on the server's computer",
                          &LoadLoraBody::path),
      ignored<LoadLoraBody>("pinned"),
  };
  return fields;
}

const Fields<UnloadLoraBody>& unload_lora_fields() {
  static const Fields<UnloadLoraBody> fields = {
      field<UnloadLoraBody>("lora_name", "as it was loaded", &UnloadLoraBody::name),
      ignored<UnloadLoraBody>("lora_id"),
  };
  return fields;
}

std::string load_lora_schema() { return schema_of(load_lora_fields()); }
std::string unload_lora_schema() { return schema_of(unload_lora_fields()); }

void send_adapters(const Context& context, const ResponsePtr& response, const Status& status) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("success", status.ok());
  w.member("error_message", status.ok() ? "" : status.to_string());
  w.key("loaded_adapters").begin_object();
  for (const LoadedAdapter& adapter : context.engine.adapters())
    w.member(adapter.name, adapter.path.string());
  w.end_object().end_object();
  const int code = status.ok() ? 200 : status.code() == StatusCode::kUnavailable ? 503 : 400;
  response->send(HttpResponse::json(code, std::move(out)));
}

// Runs `call` on a worker: it reads files, or waits for requests.
void run_call(const ContextPtr& context, const ResponsePtr& response,
              std::function<Status()> call) {
  const bool queued = context->threads->workers.run([context, response, call = std::move(call)] {
    const Status status = call();
    response->post([context, response, status] { send_adapters(*context, response, status); });
  });
  if (!queued) response->send(http_error(503, "too much work is waiting: try again later"));
}

template <typename Body>
bool read_body(const HttpRequest& request, const Fields<Body>& fields, const ResponsePtr& response,
               Body& body) {
  const auto value = parse_json(request.body);
  Status read = value ? read_fields(fields, *value, "", body) : value.error();
  if (read.ok() && body.name.empty()) read = invalid_argument("lora_name is missing");
  if (!read.ok()) response->send(malformed_response(read));
  return read.ok();
}

// An answer of 400 names the field that it is about: `field`, but for a name that is taken.
Status with_field(const Status& status, std::string_view field) {
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kUnavailable:        // 503
    case StatusCode::kResourceExhausted:  // the number or the bytes of adapters, by their flags
      return status;
    case StatusCode::kAlreadyExists:
      return status.with_context("lora_name");
    default:
      return status.with_context(field);
  }
}

void handle_load_lora(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  LoadLoraBody body;
  if (!read_body(request, load_lora_fields(), response, body)) return;
  if (body.path.empty())
    return response->send(malformed_response(invalid_argument("lora_path is missing")));
  run_call(context, response, [context, body]() -> Status {
    const auto info = context->engine.load_adapter(body.name, body.path);
    return info ? Status() : with_field(info.error(), "lora_path");
  });
}

void handle_unload_lora(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  UnloadLoraBody body;
  if (!read_body(request, unload_lora_fields(), response, body)) return;
  run_call(context, response, [context, body] {
    return with_field(context->engine.unload_adapter(body.name), "lora_name");
  });
}

}  // namespace

std::string adapter_of_model(const Context& context, std::string_view model) {
  if (model == context.model_name) return {};
  const size_t colon = model.rfind(':');
  const std::string_view behind =
      colon == std::string_view::npos ? std::string_view() : model.substr(colon + 1);
  // Ollama's clients write MODEL:latest for MODEL.
  const bool of_served =
      !behind.empty() && behind != "latest" && model.substr(0, colon) == context.model_name;
  if (!context.engine.config().lora.enable_lora) return std::string(of_served ? behind : "");
  const std::vector<LoadedAdapter> adapters = context.engine.adapters();
  const auto is_loaded = [&](std::string_view name) {
    return std::ranges::any_of(adapters,
                               [&](const LoadedAdapter& each) { return each.name == name; });
  };
  if (is_loaded(model)) return std::string(model);
  return std::string(of_served || is_loaded(behind) ? behind : "");
}

void choose_adapter(const Context& context, std::string_view model, GenerateRequest& request) {
  if (request.lora.empty()) request.lora = adapter_of_model(context, model);
}

const std::vector<Route>& lora_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/load_lora_adapter",
       kAdmin,
       "Load a LoRA adapter",
       handle_load_lora,
       "LoadLoraAdapter",
       load_lora_schema},
      {{"POST"},
       "/unload_lora_adapter",
       kAdmin,
       "Unload a LoRA adapter once no request uses it",
       handle_unload_lora,
       "UnloadLoraAdapter",
       unload_lora_schema},
  };
  return table;
}

}  // namespace espalier::server
