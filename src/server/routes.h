// What the server answers to: tables of routes, from which the router and /openapi.json are made.
// The tables are constant; any thread may read them. Internal to the room.
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
  // As kAdmin; the answer shows what others asked. Where no key protects it, a page of another
  // origin that a browser shows is refused, though CORS lets it call the model.
  kPrompts,
  // As kAdmin, for what a call changes. Where no key protects it, a page of another origin may not
  // call it, and GET, which a page sends for a picture without naming its origin, is refused.
  kControl,
};

struct Route {
  std::vector<std::string> methods;
  std::string pattern;
  Access access = Access::kUser;
  std::string summary;
  RouteHandler handler;
  std::string body_schema;            // its name in openapi.json's components; empty: no body
  std::string (*schema)() = nullptr;  // the body's JSON Schema
  int status = 200;                   // of its usual answer
  std::string_view body_type = "application/json";
};

// Calls the route's handler: here, or on a worker where the body is large, with its JSON charged to
// the account of bodies. Until the handler has returned the body's own charge stays.
void handle(const ContextPtr& context, const Route& route, net::HttpRequest&& request,
            net::ResponsePtr response);

// Every route, in the order of the documentation: the tables below, one after another.
const std::vector<Route>& routes();
std::string openapi_json();

// A group's table stands at the end of its source, behind the handlers and schemas that it alone
// names. A new route of a group is a row and a handler there.
const std::vector<Route>& anthropic_routes();    // /v1/messages
const std::vector<Route>& llama_cpp_routes();    // /completion, /infill, /props and others
const std::vector<Route>& ollama_routes();       // /api/*
const std::vector<Route>& responses_routes();    // /v1/responses
const std::vector<Route>& stored_chat_routes();  // what /v1/chat/completions has stored
const std::vector<Route>& admin_routes();        // flush, pause, continue, abort
const std::vector<Route>& audio_routes();        // /v1/audio/transcriptions, translations
const std::vector<Route>& batch_routes();        // /v1/batches
const std::vector<Route>& cache_file_routes();   // /cache/export, /cache/import
const std::vector<Route>& event_routes();        // the cache's events
const std::vector<Route>& observer_routes();     // the cache's tree, requests, the playground
const std::vector<Route>& expert_routes();       // /dump_expert_distribution_record and others
const std::vector<Route>& exact_routes();        // /exact_likelihood
const std::vector<Route>& file_routes();         // /v1/files
const std::vector<Route>& generate_routes();     // answers of the model, in every dialect
const std::vector<Route>& grammar_routes();      // /v1/grammar/compile
const std::vector<Route>& lora_routes();
const std::vector<Route>& info_routes();     // models, health, state, metrics
const std::vector<Route>& profile_routes();  // /start_profile, /stop_profile
const std::vector<Route>& session_routes();  // open, close
const std::vector<Route>& storage_routes();  // /hicache/storage-backend
const std::vector<Route>& sglang_routes();   // of SGLang alone: 501 with advice
const std::vector<Route>& weight_routes();   // /update_weights_from_disk, the version
const std::vector<Route>& text_routes();     // tokenize, detokenize
const std::vector<Route>& tool_routes();     // texts to tool calls and reasoning
const std::vector<Route>& vertex_routes();   // /vertex_generate

const std::vector<Route>& conversation_routes();  // /v1/conversations

const std::vector<Route>& message_batch_routes();  // /v1/messages/batches (Anthropic)

const std::vector<Route>& moderation_routes();  // /v1/moderations
const std::vector<Route>& rerank_routes();      // /rerank, /v2/rerank

}  // namespace espalier::server
