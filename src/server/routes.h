// What the server answers to: one table of routes, from which the router and /openapi.json are
// made. Internal to the room.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/context.h"

namespace espalier::server {

using RouteHandler = std::function<void(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr)>;

enum class Access {
  kOpen,   // never asks for a key
  kUser,   // --api-key
  kAdmin,  // --admin-api-key, else --api-key
};

struct Route {
  std::vector<std::string> methods;
  std::string pattern;
  Access access = Access::kUser;
  std::string summary;
  RouteHandler handler;
  std::string body_schema;  // its name in openapi.json's components; empty: no body
};

// Every route, in the order of the documentation.
const std::vector<Route>& routes();
std::string openapi_json();

// generate_routes.cc
void handle_generate(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_completions(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_chat(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_concatenate(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
std::string concatenate_schema();
void handle_encode(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_embeddings(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_classify(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_score(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_rerank(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
// grammar_routes.cc
void handle_grammar_compile(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
std::string grammar_compile_schema();
// tool_routes.cc
void handle_parse_function_call(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_separate_reasoning(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
std::string parse_function_call_schema();
std::string separate_reasoning_schema();
// text_routes.cc
void handle_tokenize(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_detokenize(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
// info_routes.cc
void handle_root(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_health(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_health_generate(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_models(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_model(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_model_info(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_server_info(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_loads(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_get_load(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_metrics(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_openapi(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
// exact_routes.cc
void handle_exact_likelihood(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
std::string exact_likelihood_schema();
// event_routes.cc
void handle_kv_events(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
// session_routes.cc
void handle_open_session(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_close_session(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
std::string open_session_schema();
std::string close_session_schema();
// admin_routes.cc
void handle_flush_cache(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_pause(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_continue(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
void handle_abort(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr);
std::string abort_schema();
std::string pause_schema();

}  // namespace espalier::server
