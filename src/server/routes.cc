#include "server/routes.h"

#include <malloc.h>

#include <set>

#include "server/json_memory.h"
#include "server/json_writer.h"
#include "server/memory_routes.h"
#include "server/native_request.h"

namespace espalier::server {
namespace {

// The names in a path's braces.
std::vector<std::string> params_of(const std::string& path) {
  std::vector<std::string> names;
  for (size_t open = path.find('{'); open != std::string::npos; open = path.find('{', open + 1))
    names.push_back(path.substr(open + 1, path.find('}', open) - open - 1));
  return names;
}

void write_operation(JsonWriter& w, const Route& route, const std::vector<std::string>& params) {
  w.begin_object().member("summary", route.summary);
  if (!params.empty()) w.key("parameters").begin_array();
  for (const std::string& param : params) {
    w.begin_object().member("name", param).member("in", "path").member("required", true);
    w.key("schema").begin_object().member("type", "string").end_object().end_object();
  }
  if (!params.empty()) w.end_array();
  if (!route.body_schema.empty()) {
    w.key("requestBody").begin_object().member("required", true).key("content").begin_object();
    w.key(route.body_type).begin_object().key("schema").begin_object();
    w.member("$ref", "#/components/schemas/" + route.body_schema);
    w.end_object().end_object().end_object().end_object();
  }
  if (route.access != Access::kOpen) {
    w.key("security").begin_array().begin_object().key("bearer").begin_array().end_array();
    w.end_object().end_array();
  }
  w.key("responses").begin_object().key(std::to_string(route.status)).begin_object();
  w.member("description", net::status_reason(route.status)).end_object().end_object().end_object();
}

std::string path_of(const Route& route) {
  std::string path = route.pattern;
  if (const size_t star = path.find("*}"); star != std::string::npos) path.erase(star, 1);
  return path;
}

void write_methods(JsonWriter& w, const Route& route, const std::string& path) {
  const std::vector<std::string> params = params_of(path);
  for (std::string method : route.methods) {
    for (char& c : method) c = static_cast<char>(c - 'A' + 'a');
    w.key(method);
    write_operation(w, route, params);
  }
}

// Each path once, with the methods of all its routes: a reader of JSON keeps one member of a name.
void write_paths(JsonWriter& w) {
  std::set<std::string> written;
  for (const Route& first : routes()) {
    const std::string path = path_of(first);
    if (!written.insert(path).second) continue;
    w.key(path).begin_object();
    for (const Route& route : routes())
      if (path_of(route) == path) write_methods(w, route, path);
    w.end_object();
  }
}

void write_schemas(JsonWriter& w) {
  w.begin_object().key("SamplingParams").raw(native_sampling_schema());
  std::set<std::string> written;
  for (const Route& route : routes())
    if (route.schema != nullptr && written.insert(route.body_schema).second)
      w.key(route.body_schema).raw(route.schema());
  w.end_object();
}

}  // namespace

namespace {
constexpr size_t kTrimmedBodyBytes = size_t{4} << 20;
}  // namespace

void handle(const ContextPtr& context, const Route& route, net::HttpRequest&& request,
            net::ResponsePtr response) {
  const size_t size = request.body.size();
  if (size <= Context::kInlineBytes)
    return route.handler(context, std::move(request), std::move(response));
  auto kept = std::make_shared<net::HttpRequest>(std::move(request));  // the task is copyable
  context->run_sized(size, response, [context, &route, size, kept, response] {
    const JsonChargeScope scope(kept->body_charge);
    route.handler(context, std::move(*kept), response);
    // The heap keeps what millions of small values leave; the system gets it back.
    if (size >= kTrimmedBodyBytes) ::malloc_trim(0);
  });
}

const std::vector<Route>& routes() {
  static const std::vector<Route> all = [] {
    std::vector<Route> joined;
    for (const auto* group :
         {&info_routes(),        &generate_routes(),     &audio_routes(),
          &stored_chat_routes(), &responses_routes(),    &anthropic_routes(),
          &ollama_routes(),      &llama_cpp_routes(),    &rerank_routes(),
          &moderation_routes(),  &grammar_routes(),      &text_routes(),
          &tool_routes(),        &vertex_routes(),       &exact_routes(),
          &file_routes(),        &batch_routes(),        &session_routes(),
          &lora_routes(),        &weight_routes(),       &event_routes(),
          &observer_routes(),    &admin_routes(),        &profile_routes(),
          &sglang_routes(),      &conversation_routes(), &message_batch_routes(),
          &expert_routes(),      &storage_routes(),      &cache_file_routes(),
          &memory_routes()})
      joined.insert(joined.end(), group->begin(), group->end());
    return joined;
  }();
  return all;
}

std::string openapi_json() {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("openapi", "3.1.0").key("info").begin_object();
  w.member("title", "Espalier").member("version", ESPALIER_VERSION).end_object();
  w.key("paths").begin_object();
  write_paths(w);
  w.end_object().key("components").begin_object().key("schemas");
  write_schemas(w);
  w.key("securitySchemes").begin_object().key("bearer").begin_object().member("type", "http");
  w.member("scheme", "bearer").end_object().end_object().end_object().end_object();
  return out;
}

}  // namespace espalier::server
